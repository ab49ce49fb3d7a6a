"""Profile of a metric by time of day, which load, temperature and traffic follow."""

from __future__ import annotations

import math

import numpy as np

from detectors.robust import nan_median

DAY_SECONDS = 86_400

# A single day does not separate the time of day from the events of that day.
MIN_DAYS = 2


class DailyProfile:
    """Mean of every half hour of the last seven days; `update` is the distance to their median.

    NaN until the half hour has been seen on two earlier days.

    >>> profile = DailyProfile()
    >>> [profile.update(day * 86400.0, 5.0 + day) for day in range(4)]
    [nan, nan, 1.5, 2.0]
    """

    def __init__(self, bins: int = 48, days: int = 7) -> None:
        self._means = np.full((bins, days), np.nan)
        # Day and bin being filled (-1: none yet), sum and count of its samples.
        self._open = np.array([-1.0, -1.0, 0.0, 0.0])

    def update(self, t: float, x: float) -> float:
        """Return the distance of x at event time t from the median of its half hour, then learn x."""
        day, seconds = divmod(t, DAY_SECONDS)
        slot = float(int(seconds * len(self._means) / DAY_SECONDS))
        if (day, slot) != (self._open[0], self._open[1]):
            self._close()
            self._open[:] = day, slot, 0.0, 0.0
        self._open[2:] += x, 1.0
        past = self._means[int(slot)]
        if np.count_nonzero(past == past) < MIN_DAYS:
            return math.nan
        return abs(x - float(nan_median(past)))

    def _close(self) -> None:
        day, slot, total, count = self._open.tolist()
        if count:
            self._means[int(slot), int(day) % self._means.shape[1]] = total / count
