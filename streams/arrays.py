"""Numpy arrays laid over the column bytes of a record: no copy, no parsing, names from the schema block."""

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from slowrank.telemetry.schema import MISSING_INT, Block

FloatArray = npt.NDArray[np.float64]
Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Run:
    """Neighbouring columns of one dtype as ``values`` [columns, instances], a read-only view."""

    names: tuple[str, ...]
    values: Array


@dataclass(frozen=True, slots=True)
class _Layout:
    block: Block
    runs: tuple[tuple[np.dtype[Any], tuple[str, ...]], ...]


# Keyed by identity because blocks are constants and hashing thirty columns costs more than the view.
_layouts: dict[int, _Layout] = {}


def runs(block: Block, data: bytes) -> list[Run]:
    """Return one array [columns, n] per run of equal dtype. Raises ``ValueError`` for a partial row."""
    count, rest = divmod(len(data), block.row_size)
    if rest:
        raise ValueError(f"{len(data)} bytes are not whole {block.row_size}-byte rows")
    found, offset = [], 0
    for dtype, names in _layout(block).runs:
        size = len(names) * count
        values = np.frombuffer(data, dtype, size, offset) if size else np.empty(0, dtype)
        found.append(Run(names, values.reshape(len(names), count)))
        offset += size * dtype.itemsize
    return found


def columns(block: Block, data: bytes) -> dict[str, Array]:
    """Return name -> read-only view [n] in the column's own dtype; missing is NaN or ``MISSING_INT``."""
    return {
        name: values for run in runs(block, data) for name, values in zip(run.names, run.values, strict=True)
    }


def as_float(values: Array) -> FloatArray:
    """Return a float64 copy in which whatever was not read is NaN.

    An int64 beyond 2**53 loses its low bits: take counter differences in int64 first.
    """
    if values.dtype.kind == "i":
        return np.where(values == MISSING_INT, np.nan, values.astype(np.float64))
    return cast(FloatArray, values.astype(np.float64))


def _layout(block: Block) -> _Layout:
    held = _layouts.get(id(block))
    if held is None or held.block is not block:
        held = _layouts[id(block)] = _Layout(block, _split(block))
    return held


def _split(block: Block) -> tuple[tuple[np.dtype[Any], tuple[str, ...]], ...]:
    found: list[tuple[np.dtype[Any], list[str]]] = []
    for column in block.columns:
        dtype = np.dtype(column.dtype)
        if not found or found[-1][0] != dtype:
            found.append((dtype, []))
        found[-1][1].append(column.name)
    return tuple((dtype, tuple(names)) for dtype, names in found)
