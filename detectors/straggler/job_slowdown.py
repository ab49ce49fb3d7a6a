"""How much a slow rank slows its whole job."""

import numpy as np
import numpy.typing as npt

from detectors.peers.ratios import Ratios
from detectors.robust import nan_max, nan_median
from detectors.straggler.candidate import LOOK_BEFORE, Candidate

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

_MIN_BEFORE = 10
"""Chosen: steps seen before the onset, for the job's speed at that time to be known."""

_LEAST_LEFT = 0.1
"""Share of a step that is left at least when an excess is taken out: nearly the whole step leaves nothing to
divide by."""


def job_pace_before(ratios: Ratios, found: Candidate) -> float:
    """Return the seconds a step took per second of the peers' compute before the onset; NaN if not seen.

    Kept from when the rank is found slow: in a long slowdown the healthy time leaves the history.
    """
    end = len(ratios.history.last("step", ratios.settled)) - found.steps
    if found.lasting or end < _MIN_BEFORE:
        return float("nan")
    return _job_pace(ratios, found.rank, slice(max(end - LOOK_BEFORE, 0), end))


def job_ratio(ratios: Ratios, found: Candidate, over: Bools, *, job_pace: float) -> float:
    """Return what the job takes over what it would take without the rank's excess.

    Synchronous ranks: median over steps of step / (step - lost), where lost is the rank's time less that of
    the slowest other rank, which the step would then end with. Asynchronous ranks: the job's rate is the sum
    of theirs. ``over`` [ranks] marks who else is slow. Where the ``job_pace`` before the onset is known, no
    more than the job has slowed down against that.
    """
    if ratios.asynchronous:
        rates = np.exp(found.effect[over])
        return float(ratios.ranks / (ratios.ranks - over.sum() + np.sum(1 / np.maximum(rates, 1.0))))
    steps = found.steps
    step = nan_median(ratios.history.last("step", steps), axis=1)
    seconds = ratios.history.last(found.timing, steps)
    mates = ratios.mates(found.rank) & ~over
    others = mates if mates.any() and not found.lasting else ~over
    lost = np.maximum(seconds[:, found.rank] - nan_max(np.where(others, seconds, np.nan), axis=1), 0.0)
    ratio = float(nan_median(step / np.maximum(step - lost, _LEAST_LEFT * step)))
    if np.isnan(ratio):
        return 1.0
    slowed = _job_pace(ratios, found.rank, slice(-steps, None)) / job_pace
    return ratio if np.isnan(slowed) else float(np.clip(slowed, 1.0, ratio))


def _job_pace(ratios: Ratios, rank: int, when: slice) -> float:
    """Return step seconds per second of the peers' compute: the job's speed, whatever its work is then."""
    peers = ratios.mates(rank)
    if not peers.any():
        peers = np.arange(ratios.ranks) != rank
    step, compute = (ratios.history.last(s, ratios.settled)[when] for s in ("step", "compute"))
    seconds = float(nan_median(nan_median(step, axis=1)))
    work = float(nan_median(nan_median(compute[:, peers], axis=1)))
    return seconds / work if seconds > 0 and work > 0 else float("nan")
