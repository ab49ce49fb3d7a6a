"""Winsorising of isolated spikes, which otherwise cause nearly all false change points."""

from __future__ import annotations

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

    def __call__(
        self, z: NDArray[np.float64], lanes: slice | NDArray[np.int64] = slice(None)
    ) -> NDArray[np.float64]:
        """Return a winsorised copy of z [lanes]; series that are not among the `lanes` keep their streak."""
        side = (z > self._limit).astype(np.int64) - (z < -self._limit)
        before = self._streak[lanes]
        if not side.any():
            self._streak[lanes] = np.where(z == z, 0, before)
            return z.copy()
        going_on = np.where(before * side > 0, before, 0)
        streak = self._streak[lanes] = np.where(np.isnan(z), before, going_on + side)
        clip = (side != 0) & (np.abs(streak) <= self._run)
        self.counts[lanes] += clip
        return np.where(clip, side * self._limit, z)

    def reset(self, series: int | NDArray[np.int64]) -> None:
        """Forget the streak of one series, or several."""
        self._streak[series] = 0
