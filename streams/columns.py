"""Numpy arrays laid over the column bytes of a record: no copy, no parsing, names from the schema block."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from slowrank.telemetry.schema import MISSING, Block

FloatArray = npt.NDArray[np.float64]
Array = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]
Rows = slice | npt.NDArray[np.int64]
"""Rows of a bank: a slice where they are neighbours, which copies nothing; else indexes."""


class ColumnRun(NamedTuple):
    """Neighbouring columns of one dtype as ``values`` [columns, instances], a read-only view."""

    names: tuple[str, ...]
    values: Array


@dataclass(frozen=True, slots=True)
class _Layout:
    """Shape, dtype and offset of each run of a ``block`` with a number of bytes."""

    # A reference, so that the block lives as long as its layout: ids are reused after deletion.
    block: Block
    names: tuple[tuple[str, ...], ...]
    views: tuple[tuple[tuple[int, int], np.dtype[Any], int], ...]


# Keyed by identity because blocks are constants and hashing thirty columns costs more than the views.
_layouts: dict[tuple[int, int], _Layout] = {}


def runs(block: Block, data: bytes) -> list[ColumnRun]:
    """Return one array [columns, n] per run of equal dtype. Raises ``ValueError`` for a partial row."""
    return list(map(ColumnRun, _layout(block, len(data)).names, views(block, data)))


def views(block: Block, data: bytes) -> list[Array]:
    """Return the arrays of ``runs`` alone. Raises ``ValueError`` for a partial row."""
    layout = _layouts.get((id(block), len(data))) or _layout(block, len(data))
    return [np.ndarray(shape, dtype, data, offset) for shape, dtype, offset in layout.views]


def columns(block: Block, data: bytes) -> dict[str, Array]:
    """Return name -> read-only view [n] in the column's own dtype; missing is NaN or ``MISSING``."""
    return {
        name: values for run in runs(block, data) for name, values in zip(run.names, run.values, strict=True)
    }


def pack_arrays(block: Block, held: Mapping[str, npt.NDArray[np.int64] | FloatArray]) -> bytes:
    """Return the column bytes of ``held`` (name -> [n]); a negative whole number counts as missing."""
    parts = []
    for column in block.columns:
        values: Array = held[column.name]
        if column.dtype in MISSING:
            values = np.where(values < 0, MISSING[column.dtype], values)
        parts.append(values.astype(column.dtype).tobytes())
    return b"".join(parts)


def stacked(block: Block, parts: Sequence[bytes]) -> dict[str, Array]:
    """Return name -> [len(parts), n] over column bytes of equal length, n instances each.

    Raises ``ValueError`` for a partial row.
    """
    layout = _layout(block, len(parts[0]))
    raw = np.ndarray((len(parts), len(parts[0])), np.uint8, b"".join(parts))
    held: dict[str, Array] = {}
    for names, (shape, dtype, offset) in zip(layout.names, layout.views, strict=True):
        run = raw[:, offset : offset + shape[0] * shape[1] * dtype.itemsize].view(dtype)
        held.update((name, run[:, i * shape[1] : (i + 1) * shape[1]]) for i, name in enumerate(names))
    return held


def spread(block: Block, data: bytes, places: Sequence[int], count: int) -> bytes:
    """Return the column bytes of ``count`` instances: ``data`` at ``places``, and missing values
    elsewhere."""
    parts = []
    for run in runs(block, data):
        integer = run.values.dtype.kind == "i"
        missing = np.iinfo(run.values.dtype).min if integer else np.nan
        whole = np.full((len(run.names), count), missing, run.values.dtype)
        whole[:, places] = run.values
        parts.append(whole.tobytes())
    return b"".join(parts)


def as_float(values: Array) -> FloatArray:
    """Return a float64 copy in which missing values are NaN.

    An int64 beyond 2**53 loses its low bits: take counter differences in int64 first.
    """
    if values.dtype.kind == "i":
        return np.where(values == np.iinfo(values.dtype).min, np.nan, values.astype(np.float64))
    return cast(FloatArray, values.astype(np.float64))


def _layout(block: Block, size: int) -> _Layout:
    held = _layouts.get((id(block), size))
    if held is None:
        held = _layouts[id(block), size] = _lay_out(block, size)
    return held


def _lay_out(block: Block, size: int) -> _Layout:
    count, rest = divmod(size, block.row_size)
    if rest:
        raise ValueError(f"{size} bytes are not whole {block.row_size}-byte rows")
    names, places, offset = [], [], 0
    for dtype, group in itertools.groupby(block.columns, key=lambda column: np.dtype(column.dtype)):
        names.append(tuple(column.name for column in group))
        places.append(((len(names[-1]), count), dtype, offset))
        offset += len(names[-1]) * count * dtype.itemsize
    return _Layout(block, tuple(names), tuple(places))
