"""The healthy region of nodes, as ``slowrank gray`` wrote it to a file."""

import hashlib
from functools import lru_cache
from pathlib import Path

import msgspec

from detectors.node.gray_envelope import Envelope
from streams.gray_features import FEATURES


def read_region(path: Path) -> Envelope:
    """Return the region in a file that ``slowrank gray`` wrote. Raises ``ValueError`` when it is none."""
    try:
        region = msgspec.json.decode(path.read_bytes(), type=Envelope)
        region.check(FEATURES)
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror})") from error
    except (UnicodeDecodeError, RecursionError, ValueError) as error:
        raise ValueError(f"{path}: no model of `slowrank gray`: {error}") from error
    return region


@lru_cache
def fingerprint(region: Envelope) -> str:
    """Return a short hash of a region, for evidence: findings are the same only under the same region."""
    return hashlib.sha256(msgspec.json.encode(region)).hexdigest()[:12]
