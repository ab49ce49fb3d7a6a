"""Whether a series is flat: the slope of Sen with its interval. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

# Of the normal distribution, for 95 %.
_Z = 1.96


class Trend(NamedTuple):
    """The median value, and the slope a unit of time with its interval of 95 %."""

    level: float
    slope: float
    low: float
    high: float

    def rises(self, during: float, least: float) -> bool:
        """Return whether the interval lies above 0 and the rise ``during`` a time is ``least`` or more."""
        return self.low > 0.0 and self.slope * during >= least


def trend(times: Sequence[float], values: Sequence[float]) -> Trend:
    """Return the median of the slopes between all pairs of values, with the interval of Kendall's test.

    Robust against outliers and the saw teeth of what is removed in chunks (P. K. Sen, J. Am. Stat. Assoc. 63,
    1968; the interval as in Hollander and Wolfe, Nonparametric Statistical Methods, section 9.3).
    Raises ``ValueError`` for fewer than four values.

    >>> trend([0, 1, 2, 3, 4, 5], [5.0, 7.0, 9.0, 11.0, 13.0, 15.0])
    Trend(level=10.0, slope=2.0, low=2.0, high=2.0)
    """
    n = len(values)
    if n < 4:
        raise ValueError(f"a slope needs at least four values, got {n}")
    x, y = np.asarray(times, float), np.asarray(values, float)
    first, second = np.triu_indices(n, 1)
    slopes = np.sort((y[second] - y[first]) / (x[second] - x[first]))
    reach = _Z * math.sqrt(n * (n - 1) * (2 * n + 5) / 18)
    low = max(0, math.floor((len(slopes) - reach) / 2))
    high = min(len(slopes) - 1, math.ceil((len(slopes) + reach) / 2))
    return Trend(float(np.median(y)), float(np.median(slopes)), float(slopes[low]), float(slopes[high]))
