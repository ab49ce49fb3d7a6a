"""Two-sided CUSUM (Page 1954) over many series: the companion of BOCPD for creeping and moderate shifts."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray


class CusumBank:
    """Cumulative sums of (z - slack) and (-z - slack), floored at zero; an alarm above `threshold`.

    With the defaults a series of independent standard normal samples alarms about once in 70,000 samples.
    NaN means "not read" and leaves a series as it was. An alarm stands until `reset`.

    >>> bank = CusumBank(1)
    >>> [bool(bank.update([1.5])[0]) for _ in range(12)].index(True), bank.age(0)
    (10, 12)
    """

    def __init__(self, series: int, *, slack: float = 0.5, threshold: float = 10.0) -> None:
        if slack < 0 or threshold <= 0:
            raise ValueError(f"need slack >= 0 and threshold > 0, got {slack} and {threshold}")
        self._slack, self._threshold = slack, threshold
        self._sums = np.zeros((2, series))
        self._ages = np.zeros((2, series), np.int64)

    def update(self, z: ArrayLike, lanes: slice | NDArray[np.int64] = slice(None)) -> NDArray[np.bool_]:
        """Feed one sample to each of the `lanes` (default: all series), z [lanes]; return which are in
        alarm."""
        values = np.asarray(z, np.float64)
        sums, ages = self._sums[:, lanes], self._ages[:, lanes]
        if values.shape != sums.shape[1:]:
            raise ValueError(f"expected {sums.shape[1:]}, got shape {values.shape}")
        moved = np.maximum(sums + np.stack((values, -values)) - self._slack, 0.0)
        read = values == values
        ages = self._ages[:, lanes] = np.where(read, np.where(moved > 0.0, ages + 1, 0), ages)
        sums = self._sums[:, lanes] = np.where(read, moved, sums)
        return np.asarray(sums.max(axis=0) > self._threshold)

    def age(self, series: int) -> int:
        """Samples since the larger of the two sums last stood at zero: Page's estimate of the change."""
        return int(self._ages[self._sums[:, series].argmax(), series])

    def reset(self, series: int | NDArray[np.int64]) -> None:
        """Start one series over, or several."""
        self._sums[:, series] = 0.0
        self._ages[:, series] = 0

    def snapshot(self) -> dict[str, NDArray[np.generic]]:
        """Copies of the state arrays."""
        return {"sums": self._sums.copy(), "ages": self._ages.copy()}

    def restore(self, snapshot: Mapping[str, NDArray[np.generic]]) -> None:
        """Continue from a snapshot of a bank of the same size. ValueError otherwise."""
        if snapshot["sums"].shape != self._sums.shape or snapshot["ages"].shape != self._ages.shape:
            raise ValueError(f"snapshot does not fit this bank of {self._sums.shape[1]} series")
        self._sums[...] = snapshot["sums"]
        self._ages[...] = snapshot["ages"]
