"""Departures from peers that are new and last: how a unit differs from the others, against its own past.

With x [t, u, f] the readings of units at one kind of work, by minute, and c = x - median over the units, a
unit's departure is c less the median of its own earlier c: what it always was (a pipeline stage, the node of
rank 0) is none, and neither is what all do at once. Its lasting departure L over a window is the smallest of
the window in amount, 0 where the sign changes. It is measured by what is usual in this very job,

    score = L / max(floor, 5 σ, 1.5 · max |L| of all units in all windows of the past),

with σ = 1.4826 · median |departure| of all units and minutes of the past: noise, pauses and slow wandering
that were seen before set the scale, and no model is fitted.

Comparing the machines of one job and asking for a departure that lasts is Minder's way (Deng et al., "Minder:
Faulty Machine Detection for Large-scale Distributed Model Training", NSDI 2025, section 4.4: four minutes).
"""

import numpy as np
import numpy.typing as npt

from detectors.robust import nan_median

Floats = npt.NDArray[np.float64]

# Minutes of a window. Minder: without continuity precision fell from 0.90 to 0.76.
WINDOW = 4

# Minutes that a unit must have been read in before. Chosen: two windows.
LEAST_PAST = 2 * WINDOW

# Chosen: in four minutes in a row, hardly ever by chance; the worst of the past covers what is not Gaussian.
_SIGMAS, _PAST_WORST = 5.0, 1.5


def departures(past: Floats, recent: Floats, floors: Floats) -> Floats:
    """Return the score [units, features] of each lasting departure in ``recent`` [WINDOW, units, features],
    signed, 1 at the threshold.

    ``past`` [t, units, features] are the contrasts of before, NaN where not read; ``floors`` [features] the
    least departures that matter, in the unit of the contrasts. NaN where a unit was read too seldom.

    >>> past = np.zeros((8, 3, 1))
    >>> recent = np.zeros((4, 3, 1))
    >>> recent[:, 1] = [[0.3], [0.2], [0.4], [0.3]]
    >>> departures(past, recent, np.array([0.1])).ravel().tolist()
    [0.0, 2.0, 0.0]
    """
    usual = nan_median(past, least=LEAST_PAST)
    before = past - usual
    # As many values as there are, in one column a feature.
    sigma = 1.4826 * nan_median(np.abs(before).reshape(-1, past.shape[-1]))
    worst = np.zeros(past.shape[-1])
    for first in range(len(past) - WINDOW + 1):
        lasted = np.abs(_lasting(before[first : first + WINDOW]))
        worst = np.fmax(worst, np.fmax.reduce(lasted, axis=0, initial=0.0))
    scale = np.fmax(floors, np.fmax(_SIGMAS * sigma, _PAST_WORST * worst))
    score: Floats = _lasting(recent - usual) / scale
    return score


def _lasting(d: Floats) -> Floats:
    """Return the smallest of ``d`` [window, ...] in amount, 0 where the sign changes; NaN where not all is
    read."""
    low, high = np.min(d, axis=0), np.max(d, axis=0)
    lasting: Floats = np.where(low > 0, low, np.where(high < 0, high, np.where(np.isnan(low), np.nan, 0.0)))
    return lasting
