"""Whether one of several like series moved by itself, or with the others.

Load, waiting and the beat between steps and samples move all devices of a node together, correlated from
sample to sample; a change-point test on one raw series takes that for news. The distance to the siblings
does not see it.
"""

import math
from dataclasses import dataclass

import numpy as np

from detectors.changepoint.standardise import Floats, baseline, median_error

MIN_BEFORE, MIN_AFTER = 20, 3


@dataclass(frozen=True, slots=True)
class Contrast:
    """The distance to the siblings, after a time against before: ``shift``, in standard errors ``sigmas``."""

    shift: float
    sigmas: float


def contrast(before: Floats, after: Floats, *, floor: float) -> Contrast | None:
    """Compare the medians of two stretches of the distance (NaN: not read); None when either is too short.

    The noise is that of the stretch before, grown for its autocorrelation, and not below ``floor``.

    >>> wobble = np.tile([0.0, 1.0, -1.0, 0.5, -0.5], 12)
    >>> c = contrast(wobble, wobble[:10] - 8.0, floor=0.1)
    >>> c.shift, round(c.sigmas)
    (-8.0, -25)
    """
    before, after = before[before == before], after[after == after]
    if len(before) < MIN_BEFORE or len(after) < MIN_AFTER:
        return None
    level, sigma = baseline(before, floor)
    shift = float(np.median(after)) - level
    error = sigma * math.hypot(median_error(len(before)), median_error(len(after)))
    return Contrast(shift, shift / error)
