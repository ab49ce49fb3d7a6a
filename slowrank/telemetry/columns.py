"""Pack named values into column bytes and unpack them, with the standard library only.

The exporter and the hook's listener use ``pack``, programs that print ``unpack``; the stages map numpy arrays
to the same bytes (``streams.columns``).
"""

import math
import struct
import sys
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from slowrank.telemetry.schema import MISSING, Block, Dtype, StepSchema, step_schema

_TYPECODE: dict[Dtype, str] = {"<f4": "f", "<f8": "d", "<i2": "h", "<i4": "i", "<i8": "q"}

Value = float | int | None


def pack(block: Block, rows: Sequence[Mapping[str, Value]]) -> bytes:
    """Return the columns of ``rows`` (one mapping per instance) in the order of ``block``.

    A missing or None value becomes NaN or the dtype's ``MISSING``; names that the block lacks are ignored.
    Raises ``OverflowError`` for an integer beyond its column's dtype.
    """
    return b"".join(_pack_column(c.dtype, [row.get(c.name) for row in rows]) for c in block.columns)


def step_schema_of(rows: Iterable[Mapping[str, Value]]) -> StepSchema:
    """Return the smallest schema with all columns of step ``rows``."""
    return step_schema(squares=any(row.get("seq_len_sq_sum") is not None for row in rows))


def unpack(block: Block, data: bytes) -> Iterator[dict[str, Value]]:
    """Yield one mapping per instance, with None for what was not read.

    Raises ``ValueError`` when ``data`` is not whole rows.
    """
    count, rest = divmod(len(data), block.row_size)
    if rest:
        raise ValueError(f"{len(data)} bytes are not whole {block.row_size}-byte rows")
    held = read(block, data, block.names)
    columns = {c.name: _present(held[c.name], MISSING.get(c.dtype)) for c in block.columns}
    for i in range(count):
        yield {name: values[i] for name, values in columns.items()}


def read(block: Block, data: bytes, names: Iterable[str]) -> dict[str, tuple[Any, ...]]:
    """Return the named columns of ``data`` as stored, NaN and ``MISSING`` for what was not read.

    Raises ``KeyError`` for a name that the block lacks.
    """
    count = len(data) // block.row_size
    columns = {}
    for name in names:
        start, dtype = block.offsets[name]
        columns[name] = struct.unpack_from(f"<{count}{_TYPECODE[dtype]}", data, start * count)
    return columns


def _pack_column(dtype: Dtype, values: Sequence[Value]) -> bytes:
    packed: array[Any] = array(_TYPECODE[dtype])
    # v != v only for NaN; math.isnan() fails on an integer that no float can hold.
    if dtype in MISSING:
        packed.extend(MISSING[dtype] if v is None or v != v else int(v) for v in values)
    else:
        packed.extend(math.nan if v is None else v for v in values)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def _present(values: Sequence[Any], missing: int | None) -> list[Value]:
    return [None if v != v or v == missing else v for v in values]
