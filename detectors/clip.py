"""Winsorising of isolated spikes, which otherwise make nearly all false change points."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray


class Winsoriser:
    """Clips z to ±limit, at most `run` samples of the same sign in a row: a real step must pass.

    NaN passes through and neither breaks nor extends a streak. `counts` holds clipped samples per series.

    >>> winsorise = Winsoriser(1, limit=4.0, run=3)
    >>> [float(winsorise(np.array([z]))[0]) for z in (9.0, 1.0, 9.0, 9.0, 9.0, 9.0, 9.0)]
    [4.0, 1.0, 4.0, 4.0, 4.0, 9.0, 9.0]
    """

    def __init__(self, series: int, *, limit: float, run: int) -> None:
        if limit <= 0 or run < 0:
            raise ValueError(f"need limit > 0 and run >= 0, got {limit} and {run}")
        self._limit, self._run = limit, run
        self._streak = np.zeros(series, np.int64)
        self.counts = np.zeros(series, np.int64)

    def __call__(self, z: NDArray[np.float64]) -> NDArray[np.float64]:
        """Winsorised copy of z [series]."""
        side = (z > self._limit).astype(np.int64) - (z < -self._limit)
        if side.any():
            going_on = np.where(self._streak * side > 0, self._streak, 0)
            self._streak = np.where(np.isnan(z), self._streak, going_on + side)
        else:
            self._streak[z == z] = 0
            return z.copy()
        clip = (side != 0) & (np.abs(self._streak) <= self._run)
        self.counts += clip
        return np.where(clip, side * self._limit, z)

    def reset(self, series: int) -> None:
        """Forget the streak of one series."""
        self._streak[series] = 0

    def snapshot(self) -> dict[str, NDArray[np.generic]]:
        """Copies of the state arrays."""
        return {"streak": self._streak.copy(), "counts": self.counts.copy()}

    def restore(self, snapshot: Mapping[str, NDArray[np.generic]]) -> None:
        """Continue from a snapshot of the same size. ValueError otherwise."""
        if snapshot["streak"].shape != self._streak.shape:
            raise ValueError(f"snapshot does not fit {len(self._streak)} series")
        self._streak[...], self.counts[...] = snapshot["streak"], snapshot["counts"]
