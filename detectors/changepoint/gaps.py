"""Stretches in which a series was not read, in rows and in event time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from detectors.changepoint.bank import Groups
from detectors.changepoint.standardise import Floats


class Gaps:
    """Detect when a series has a value again after over `rows` rows, or `seconds` of event time, without one.

    Rows alone would miss the gap of a node that sends none. `start` and `end` [series] are the times of the
    samples before and after the last such gap, NaN before the first.

    >>> gaps = Gaps(1, rows=2, seconds=600.0)
    >>> rows = [(0.0, True), (1.0, False), (900.0, True)]
    >>> [bool(gaps.update(np.array([t]), np.array([read]), slice(None))[0]) for t, read in rows]
    [False, False, True]
    """

    def __init__(self, series: int, *, rows: int, seconds: float) -> None:
        self._rows, self._seconds = rows, seconds
        self._last_seen, self.start, self.end = np.full((3, series), np.nan)
        self._missing = np.zeros(series, np.int64)

    def update(self, t: Floats, read: NDArray[np.bool_], lanes: Groups) -> NDArray[np.bool_]:
        """Feed the times and whether there was a reading, [lanes]; return which end a gap now."""
        missing, last_seen = self._missing[lanes], self._last_seen[lanes]
        gap = read & ((missing > self._rows) | (t - last_seen > self._seconds))
        if gap.any():
            which = np.arange(len(self._missing))[lanes][gap]
            self.start[which], self.end[which] = last_seen[gap], t[gap]
        self._missing[lanes] = np.where(read, 0, missing + 1)
        self._last_seen[lanes] = np.where(read, t, last_seen)
        return np.asarray(gap)
