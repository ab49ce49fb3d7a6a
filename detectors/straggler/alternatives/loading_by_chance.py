"""Whether independent waits for data, as those of the others are, explain that a rank seems to load slowly.

Waits have long tails, and differ from step to step far more than compute does: of many ranks, over hours, the
largest excess of some steps in a row is a healthy rank's. Evidence of normal noise (``llr_cusum``) overstates
what such steps show. With x the excess of a rank's loading over its peers' in a step, as a share of the work,
less what is usual of it, over how far the others are apart in the step where that is more than usual, n the
steps since its onset, and N the excesses of the other ranks, of those that usually load half as long or more,
in these and in the k steps before them:

    z_t = inverse normal of the share of the N below x_t       (normal scores, van der Waerden 1952);
          beyond the largest m of them, with z_m its score, sqrt(z_m^2 + 2 a ln(x_t / m)), a = 2,
    T   = (mean z_t - max(mean z before, 0)) / (max(1 / sqrt(n), s) * sqrt(1 + n / k)),

where s is the sd of the others' means over as many steps, limited to 3 robust sigmas: what correlates their
steps, or differs between them for good, is in it. What always was so has no steps before (T = mean z_t /
max(1 / sqrt(n), s)). Under independent waits of any one distribution T is about
a standard normal. A rank loads slowly if T exceeds the normal quantile of 1e-6 over the number of ranks, and
no more than one in twenty of the others, without those found slow, has as large a mean.

The tail beyond what was seen is a Pareto's, heavier than recorded waits are: three steps far beyond it are
enough.
"""

import math
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from detectors.peers.ratios import Ratios
from detectors.robust import nan_mean, nan_median
from detectors.straggler.candidate import Candidate, series_of
from detectors.straggler.evidence.timing_channel import P_SUSPICION

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.intp]

# Steps before the onset. Chosen: as many as a baseline looks back on (``StragglerConfig.baseline``).
_STEPS = 100

# Chosen: a rank of a large job is ranked among as many others, and a step of 8,192 ranks stays cheap.
_MOST_OTHERS = 256

# Chosen: the index of a tail of infinite variance; measured waits have lighter ones.
_TAIL_INDEX = 2.0

# Chosen, of the rank's excess: ranks of its machine that load as long may be slow with it.
_HALF = 0.5

# Chosen: one in twenty others may be worse, for it may be slow as well and not found yet.
_WORSE = 0.05

# Chosen: fewer ranks tell little of the waits of others.
_SEVERAL = 3

# Chosen: of fewer means a spread is hardly known.
_FEW = 8

_NORMAL = NormalDist()
_SHARES = np.linspace(0.0, 1.0, 2049)[1:-1]
_SCORES = np.array([_NORMAL.inv_cdf(share) for share in _SHARES.tolist()])


def is_by_chance(ratios: Ratios, found: Candidate, over: Bools) -> bool:
    """Return whether the rank's waits since its onset are no longer than independent ones of others may be.

    ``over`` [ranks] marks the ranks that are slow or suspected: no rank is held against them.
    """
    machine = ratios.nodes.index == ratios.nodes.index[found.rank]
    with_it = machine & (found.effect >= _HALF * found.size)
    others = _alike(ratios, found, np.flatnonzero(~(over | with_it)))
    if not others.size:
        return False
    others = others[:: math.ceil(others.size / _MOST_OTHERS)]
    floor = ratios.config.floor
    x = _excess(ratios, found)
    x /= _scale(x[:, others], floor)[:, None]
    pool = np.sort(x[:, others][np.isfinite(x[:, others])])
    if not pool.size:
        return False
    steps = found.steps
    own, scores = _scores(x[:, found.rank], pool, floor), _scores(x[:, others], pool, floor)
    mean, noise = float(nan_mean(own[-steps:])), max(1.0 / math.sqrt(steps), _noise(scores, steps))
    worse = np.mean(nan_mean(scores[-steps:]) >= mean)
    if not found.lasting:
        # What is usual of the rank is known from as many steps, and may be less than it was.
        before = own[:-steps][np.isfinite(own[:-steps])]
        mean -= max(float(np.mean(before)), 0.0) if before.size else 0.0
        noise *= math.sqrt(1.0 + steps / max(before.size, 1))
    least = -_NORMAL.inv_cdf(P_SUSPICION / ratios.ranks)
    return bool(worse > _WORSE or mean < least * noise)


def _alike(ratios: Ratios, found: Candidate, others: Ints) -> Ints:
    """Return those of the ``others`` who usually load as long as the rank, where there are several: ranks
    that others load for wait for nothing."""
    if found.lasting:
        return others
    usual = nan_median(ratios.history.last("data", found.steps + _STEPS)[: -found.steps])
    alike = others[usual[others] >= _HALF * usual[found.rank]]
    return alike if alike.size >= _SEVERAL else others


def _scale(others: Floats, floor: float) -> Floats:
    """Return by how much more the others are apart in a step than they usually are, at least 1, [steps]."""
    apart = np.nan_to_num(nan_median(np.abs(others), axis=1))
    usual = max(float(np.median(apart)), floor)
    return np.maximum(apart / usual, 1.0)


def _excess(ratios: Ratios, found: Candidate) -> Floats:
    """Return excesses over what is usual since the onset, and before it, [steps, ranks]."""
    held = ratios.history.last(series_of(found.timing), found.steps + _STEPS)
    if found.lasting:
        return held
    usual = nan_median(held[-found.steps :] - found.x)
    return held - np.nan_to_num(usual)


def _scores(x: Floats, pool: Floats, floor: float) -> Floats:
    """Return the normal scores of ``x`` among the ``pool``, which is in order; NaN where not read."""
    below = np.searchsorted(pool, x, side="left") + np.searchsorted(pool, x, side="right")
    scores = np.interp((0.5 * below + 0.5) / (pool.size + 1.0), _SHARES, _SCORES)
    largest = max(float(pool[-1]), floor)
    beyond = np.log(np.maximum(np.nan_to_num(x), largest) / largest)
    extended = np.sqrt(scores**2 + 2.0 * _TAIL_INDEX * beyond)
    return np.where(np.isnan(x), np.nan, np.where(beyond > 0, extended, scores))


def _noise(scores: Floats, length: int) -> float:
    """Return the sd about 0 of the mean scores of the others over as many steps, limited."""
    blocks = len(scores) // length
    means = nan_mean(scores[-blocks * length :].reshape(blocks, length, -1), axis=1)
    apart = np.abs(means[np.isfinite(means)])
    if apart.size < _FEW:
        return 0.0
    limited = np.minimum(apart, 3.0 * 1.4826 * np.median(apart))
    return math.sqrt(float(np.mean(limited**2)))
