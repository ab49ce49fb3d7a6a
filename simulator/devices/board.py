"""Columns of all nodes of a cluster: numpy arrays by metric name, encoded node by node."""

import itertools
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from slowrank.telemetry.schema import MISSING_INT, Block

BoolArray = npt.NDArray[np.bool_]


class Board:
    """Values of one block for ``nodes`` nodes of ``count`` instances each, not read until set."""

    def __init__(self, block: Block, nodes: int, count: int) -> None:
        self._columns: dict[str, npt.NDArray[np.float32 | np.float64 | np.int64]] = {}
        self._runs = []
        for dtype, group in itertools.groupby(block.columns, key=lambda column: column.dtype):
            names = [column.name for column in group]
            missing = MISSING_INT if dtype == "<i8" else np.nan
            run = np.full((nodes, len(names), count), missing, dtype)
            self._runs.append(run)
            self._columns |= {name: run[:, i] for i, name in enumerate(names)}

    def __setitem__(self, metric: str, values: npt.ArrayLike) -> None:
        """Set ``metric`` from anything that broadcasts to [nodes, count]; NaN and None are not read."""
        self._columns[metric][...] = values

    def update(self, values: Mapping[str, npt.ArrayLike], *, held: BoolArray | None = None) -> None:
        """Set several metrics, but not where the mask ``held`` [nodes, count] is True."""
        for metric, given in values.items():
            if held is None:
                self._columns[metric][...] = given
            else:
                np.copyto(self._columns[metric], given, where=~held, casting="unsafe")

    def part(self, node: int, kept: BoolArray) -> bytes:
        """Return the columns of ``node``, of the instances in the mask ``kept`` [count]."""
        return b"".join(run[node][:, kept].tobytes() for run in self._runs)

    def rows(self) -> list[bytes]:
        """Return the columns of each node, of all its instances."""
        flat = [run.reshape(len(run), -1).view(np.uint8) for run in self._runs]
        whole = np.concatenate(flat, axis=1)
        return [row.tobytes() for row in whole]
