"""Rows of the binary format of COPY, made from columns: the numbers of all rows are encoded at once.

https://www.postgresql.org/docs/current/sql-copy.html, "Binary Format". COPY converts nothing: each type must
be the table's own.
"""

import functools
import struct
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from psycopg.errors import NumericValueOutOfRange

from store.text import storable

# The types of number columns, and how their values are encoded.
TYPES = {"int4": ">i4", "int8": ">i8", "float4": ">f4", "float8": ">f8", "timestamptz": ">i8"}

# 2000-01-01 in Unix seconds, from which PostgreSQL counts microseconds.
_EPOCH = 946_684_800

_BEGIN, _END = b"PGCOPY\n\xff\r\n\0" + bytes(8), b"\xff\xff"
# The length that a NULL has in the binary format of COPY: -1.
_NULL = 0xFFFFFFFF


def encoded(
    texts: Iterable[tuple[str, ...]], types: Sequence[str], columns: Sequence[npt.NDArray[Any]]
) -> bytes:
    """Return the stream of rows that begin with ``texts`` and go on with ``columns`` [rows] of ``types``.

    A ``timestamptz`` is given in finite Unix seconds. NaN, infinity, and what is infinite as the type, become
    NULL.
    Raises ``NumericValueOutOfRange`` for an integer that its type does not hold, as PostgreSQL would.
    """
    heads = [_head(names, len(names) + len(types)) for names in texts]
    words = 1 + np.array([np.dtype(TYPES[kind]).itemsize // 4 for kind in types], np.intp)
    ends = np.cumsum(words)
    raw = np.empty((len(heads), ends[-1]), ">u4")
    kept = np.ones(raw.shape, np.bool_)
    for kind, values, count, end in zip(types, columns, words.tolist(), ends.tolist(), strict=True):
        begin = end - count
        held = _values(kind, values)
        raw[:, begin] = 4 * (count - 1)
        raw[:, begin + 1 : end] = held.view(">u4").reshape(len(heads), count - 1)
        if held.dtype.kind == "f" and not (known := np.isfinite(held)).all():
            raw[~known, begin] = _NULL
            kept[:, begin + 1 : end] = known[:, np.newaxis]
    numbers = raw[kept].tobytes()
    stops = (4 * np.cumsum(kept.sum(axis=1))).tolist()
    parts, at = [_BEGIN], 0
    for head, stop in zip(heads, stops, strict=True):
        parts += (head, numbers[at:stop])
        at = stop
    return b"".join((*parts, _END))


def _values(kind: str, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    if kind == "timestamptz":
        values = np.rint((values - _EPOCH) * 1e6)
    elif kind.startswith("int") and len(values):
        limits = np.iinfo(TYPES[kind])
        if values.min() < limits.min or values.max() > limits.max:
            raise NumericValueOutOfRange(f"{values.min()} to {values.max()} do not fit {kind}")
    with np.errstate(over="ignore"):
        return values.astype(TYPES[kind])


# A worker writes the same names with every bucket. Holds those of 12,500 nodes of 8 GPUs and ports; measured
# 412 bytes each for usual names (88 MB in all), 1.2 kB for the longest.
@functools.lru_cache(maxsize=1 << 18)
def _head(names: tuple[str, ...], fields: int) -> bytes:
    held = (storable(name).encode() for name in names)
    return struct.pack(">h", fields) + b"".join(struct.pack(">i", len(text)) + text for text in held)
