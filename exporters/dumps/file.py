"""A file in which one rank, or a tool, has left what the rank was doing."""

import re
from pathlib import Path

# Bytes of a dump. Chosen: 20,000 entries with stack traces.
MAX_BYTES = 256 * 2**20

_RANK = re.compile(r"(\d+)(?:\.json|\.txt)?$")


class BadDump(ValueError):
    """The file is no dump that can be read."""


def rank_of(path: Path) -> int | None:
    """Return the rank that the name of a dump ends with, as in ``nccl_trace_rank_12``."""
    named = _RANK.search(path.name)
    return int(named[1]) if named else None


def read_file(path: Path) -> tuple[int, bytes]:
    """Return the rank and the content of a dump. Raises ``BadDump`` and ``OSError``."""
    with path.open("rb") as file:
        data = file.read(MAX_BYTES + 1)
    rank = rank_of(path)
    if rank is None:
        raise BadDump("its name does not end with a rank")
    if len(data) > MAX_BYTES:
        raise BadDump(f"more than {MAX_BYTES >> 20} MiB")
    return rank, data
