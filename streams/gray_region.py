"""The healthy region of nodes: learnt from records in which nothing is wrong, and read from its file."""

import hashlib
import math
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path

import msgspec
import numpy as np

from detectors.multivariate import Envelope, fit_envelope
from slowrank.telemetry import NodeSample, Record, Suspicion
from streams.gray_windows import Windows
from streams.readings import FEATURES, Readings
from streams.watermark import Watermark


def fit(records: Iterable[Record]) -> Envelope:
    """Fit the healthy region on recorded telemetry in which nothing is wrong. Raises as ``fit_envelope``."""
    windows, found = Windows(), [np.zeros((0, len(FEATURES)))]
    for told in _minutes(records):
        windows.add(told)
        # The minute before it is whole.
        found += [window.z for window in windows.due(told.onset)]
    found += [window.z for window in windows.due(math.inf)]
    return fit_envelope(np.concatenate(found), FEATURES)


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
    """Return what tells a region from others, for evidence: only with the same one are findings the same."""
    return hashlib.sha256(msgspec.json.encode(region)).hexdigest()[:12]


def _minutes(records: Iterable[Record]) -> Iterator[Suspicion]:
    readings, watermark, second = Readings(), Watermark(), list[NodeSample]()
    for record in records:
        if isinstance(record, NodeSample):
            if passed := watermark.advance(record.ts):
                readings.take(second)
                second.clear()
                yield from readings.tick(passed[-1])
            second.append(record)
    readings.take(second)
    yield from readings.tick(math.inf)
