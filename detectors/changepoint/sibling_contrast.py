"""Contrast of one series with like series of the same node: did it move alone, or with its siblings?"""

import math
from dataclasses import dataclass

import numpy as np

from detectors.changepoint.standardise import Floats, baseline, median_error

# Least samples on the two sides. Chosen: a third of a baseline, and the least run that BOCPD accepts.
MIN_BEFORE, MIN_AFTER = 20, 3


@dataclass(frozen=True, slots=True)
class Contrast:
    """Change of the distance to the siblings at a time: ``shift``, and ``sigmas``, its standard errors."""

    shift: float
    sigmas: float


def contrast(before: Floats, after: Floats, *, floor: float) -> Contrast | None:
    """Compare the distance d of a series to its siblings before [n] and after [m] a time (NaN: not read).

    d_t = y_t − median over the siblings of y_t, all in transformed units (`Scale`). Load, waiting and the
    beat between steps and samples move all devices of a node together and are correlated in time, which a
    change-point test on one raw series takes for changes; they cancel in d. With medians and s the sigma of
    the stretch before (1.4826·MAD, grown for its lag-1 autocorrelation, not below ``floor``; `baseline`),

        shift  = med(after) − med(before)
        sigmas = shift / (s · √(π/2n + π/2m))

    the denominator being the standard error of a difference of two medians of normal samples. Returns None
    with fewer than 20 samples before or 3 after.

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
