"""The figures of a slow rank, for good or on and off, and how much it slows its whole job."""

import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from detectors.changepoint.llr_cusum import Onset
from detectors.job.imbalance import MIN_JOB_SLOWDOWN, slowdown
from detectors.job.waits.stalls import Stalling
from detectors.peers.intermittence import CERTAIN, SUSPECT, Intermittence
from detectors.peers.node_effects import alike
from detectors.peers.places.place_mates import PlaceMates
from detectors.peers.ratios import Ratios
from detectors.robust import nan_max, nan_median
from detectors.straggler.alternatives.confirmation import SMALL_EFFECT, small_effect
from detectors.straggler.alternatives.position import comes_with_its_place, goes_with_role, is_position
from detectors.straggler.alternatives.waiting import waits_least
from detectors.straggler.candidate import LOOK_BEFORE, SLOW_SIGMAS, Candidate, deviations, over_peers
from detectors.straggler.core import SlowRank
from detectors.straggler.evidence.timing_channel import TimingChannel
from detectors.straggler.onset_time import date_onset

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]

# Chosen, of a small slowdown: in tuning draws of up to 64 ranks the job lost none of five false ones, and at
# least 0.33 of each of four true ones.
_HARM = 0.3

# Chosen: the longest blocks of steps that a small slowdown is held against (``usual_noise``), and twice that.
_LONG, _LASTS = 50, 100

# Chosen: what a slow rank's mates wait for within their compute stays below it, and among fewer ranks it
# delays steps where it is more than noise.
_LEAST_LONG, _MANY = float(np.log1p(0.025)), 64

# Chosen: steps of the recent effect.
_LATELY = 20

# Two standard errors (97.7 % one-sided) of a median, which has 1.25 of a mean's where steps are independent.
_SURE = 2.0 * 1.25

# Chosen: most of a machine, of so many ranks at least, slow for so many steps. Of 32 hosts that wander by
# 0.6 % (sd) for 10 to 300 steps none was named in 600 steps.
_MACHINE, _AT_ONCE = 4, 10

# Chosen: saving in the background slows a machine by less than a seventh, for some steps.
_PASSING, _PASSES, _NOW = float(np.log1p(0.15)), 9, 3

# Chosen: others who are slower by so many times may be what a rank waits for within its compute.
_MUCH_MORE = 2.0

# Chosen, of the rank's own slowdown: ranks of its machine that may be slow with it (``alternatives``).
_AS_SLOW = 0.5

# Chosen, of its rise: less than the second over its peers is more than noise of what is usual of it, and with
# less than the first it is but as slow as they are.
_OVER_PEERS, _CLEARLY_LESS = 0.5, 0.9

# Chosen, of a rank's excursions: steps in which it still is slow by what is usual of it now.
_STILL_SEEN = 0.5

# Chosen: steps seen before the onset, for the job's speed at that time to be known.
_MIN_BEFORE = 10


def slow_rank(ratios: Ratios, channel: TimingChannel, found: Candidate, over: Bools) -> SlowRank:
    """Return the figures of a confirmed candidate; ``over`` [ranks] marks who else is slow."""
    as_slow = (found.effect >= _AS_SLOW * found.size) & (found.effect < _MUCH_MORE * found.size)
    slow = alike(over & as_slow, ratios.nodes, found.rank)
    return SlowRank(
        rank=found.rank,
        timing=found.timing,
        lasting=found.lasting,
        onset=found.onset.at,
        onset_lo=found.onset.lo,
        onset_hi=found.onset.hi,
        steps=found.steps,
        score=float(channel.scores()[found.rank]),
        alone=channel.alone(found.rank),
        ratio=1.0 + _excess(ratios, found),
        job_ratio=job_ratio(ratios, found, slow, over, job_pace=float(channel.job_pace[found.rank])),
        peers=int(ratios.comparison.groups.peers[found.rank]),
        waits_least=waits_least(ratios, found),
    )


def _excess(ratios: Ratios, found: Candidate) -> float:
    """Return how much longer the rank takes than its peers: less than it rose by, if it was quicker than they
    are, unless it is but as slow as they."""
    over = float(np.expm1(over_peers(ratios, found))) if found.timing == "compute" else found.excess
    return over if _OVER_PEERS * found.excess <= over < _CLEARLY_LESS * found.excess else found.excess


def intermittent_rank(
    ratios: Ratios, channel: TimingChannel, rank: int, places: PlaceMates
) -> SlowRank | None:
    """Return the figures of a rank that was clearly slow several times and did not stay so; None if it was
    slow by little, with its role, or with those at its place on other machines.
    """
    found = channel.intermittence.of(rank)
    steps = min(found.age + 1, ratios.history.capacity, ratios.settled)
    if channel.noise is None or not steps:
        return None
    x = deviations(ratios, channel, "compute", steps)
    slow = x[:, rank] > SLOW_SIGMAS * channel.noise.sigma[rank]
    # What is usual of a rank whose work lingered may be known better by now, and leave a single hiccup.
    if np.count_nonzero(slow) < _STILL_SEEN * found.count:
        return None
    effect = nan_median(x[slow])
    if not effect[rank] >= np.log1p(ratios.config.min_effect_uneven):
        return None
    shared = goes_with_role if ratios.roles_known else is_position
    if shared(ratios, rank, effect) or comes_with_its_place(ratios, rank, x, slow, places):
        return None
    ratio = float(np.exp(effect[rank]))
    if found.single and not _single_steps_matter(ratios, x[:, rank], float(effect[rank]), found):
        return None
    dated = date_onset(ratios, rank, Onset(0, 0, min(3, steps - 1)), steps=steps)
    return SlowRank(
        rank=rank,
        timing="compute",
        lasting=False,
        onset=dated.at,
        onset_lo=dated.lo,
        onset_hi=dated.hi,
        steps=steps,
        score=found.count / SUSPECT,
        alone=found.count >= CERTAIN,
        ratio=ratio,
        # The job waits for it in the slow steps only.
        job_ratio=1.0 + found.share * (ratio - 1.0),
        peers=int(ratios.comparison.groups.peers[rank]),
        waits_least=None,
        excursions=found.count,
    )


def stalling_rank(ratios: Ratios, found: Stalling, rank: int) -> SlowRank:
    """Return the figures of a rank that stalls again and again; where ranks do not wait for each other, their
    job is not slower for it."""
    return SlowRank(
        rank=rank,
        timing="data" if found.loading else "compute",
        lasting=False,
        onset=found.onset,
        onset_lo=found.onset,
        onset_hi=found.onset + found.seconds,
        steps=found.steps,
        score=found.count / SUSPECT,
        alone=True,
        ratio=1.0 + found.share,
        job_ratio=1.0 if ratios.asynchronous else 1.0 + found.share,
        peers=ratios.ranks - 1,
        waits_least=None if ratios.asynchronous else True,
        excursions=found.count,
        stalled=found.seconds,
    )


def _single_steps_matter(ratios: Ratios, x: Floats, effect: float, found: Intermittence) -> bool:
    """Return whether single far steps of a rank, ``x`` [steps] with them, are its own and cost its job as
    much as is reported, or hurts where it always had them: uneven work goes far off by itself, and so does a
    rank that is slow for good."""
    on_and_off = float(nan_median(x)) < _AS_SLOW * effect
    least = ratios.config.min_effect if found.calm else MIN_JOB_SLOWDOWN - 1.0
    return ratios.kind.kind != "variable" and on_and_off and found.share * float(np.expm1(effect)) >= least


def matters(ratios: Ratios, found: Candidate, over: Bools) -> bool:
    """Return whether a slowdown costs its job a part of it, where it is small.

    Healthy ranks wander by as much for tens of steps, and what delays no step need not be reported unless it
    lasts; in uneven work a rank delays few steps, and its slowdown is reported when it lasts for longer. That
    of most of a machine at once needs neither. One that grows is as large as it is lately.
    """
    x = found.x[-_LATELY:]
    lately = replace(found, x=x, effect=nan_median(x) - _SURE * found.sigma / math.sqrt(len(x)))
    return _is_large(ratios, found, over) or _is_large(ratios, lately, over)


def _is_large(ratios: Ratios, found: Candidate, over: Bools) -> bool:
    if found.size >= (SMALL_EFFECT if found.steps >= _LASTS else small_effect(ratios)):
        return True
    with_it = alike(found.effect >= _AS_SLOW * found.size, ratios.nodes, found.rank)
    if ratios.kind.kind == "fixed" and found.size >= math.log1p(ratios.config.min_effect):
        # Where many have the same work, the slowest healthy one of each step hides it.
        hidden = ratios.ranks >= _MANY
        if hidden and found.steps >= _LONG and found.size >= _LEAST_LONG:
            return True
        # Healthy ranks of a machine seldom wander together.
        sure = (hidden and found.steps >= _LASTS) or (with_it.sum() >= _MACHINE and found.steps >= _AT_ONCE)
        if sure and not (found.effect[over] >= _MUCH_MORE * found.size).any():
            return True
    # The ranks of a slow machine cross the threshold one by one.
    over = over | with_it
    alone = np.arange(ratios.ranks) == found.rank
    return job_ratio(ratios, found, alone, over, job_pace=math.nan) >= 1.0 + _HARM * found.excess


def may_pass(ratios: Ratios, found: Candidate) -> bool:
    """Return whether a slowdown in compute is small and has lasted for a few steps, or for some more and
    seems over: so do those of a machine that saves in the background after a checkpoint, or of a rank that is
    profiled. What begins while all is learnt would be learnt too, and does not wait."""
    largest = max(found.size, found.recent)
    if found.timing != "compute" or found.lasting or largest >= _PASSING:
        return False
    is_over = float(nan_median(found.x[-_NOW:, found.rank])) < _AS_SLOW * found.size
    known = ratios.settled - found.steps >= ratios.config.learn
    return known and found.steps < (2 * _PASSES if is_over else _PASSES)


def job_pace_before(ratios: Ratios, found: Candidate) -> float:
    """Return the seconds a step took per second of the peers' compute before the onset; NaN if not seen.

    Kept from when the rank is found slow: in a long slowdown the healthy time leaves the history.
    """
    end = len(ratios.history.last("step", ratios.settled)) - found.steps
    if found.lasting or end < _MIN_BEFORE:
        return float("nan")
    return _job_pace(ratios, found.rank, slice(max(end - LOOK_BEFORE, 0), end))


def job_ratio(ratios: Ratios, found: Candidate, slow: Bools, over: Bools, *, job_pace: float) -> float:
    """Return what the job takes over what it would take without the excess of the ``slow`` [ranks].

    Synchronous ranks: median over steps of step / (step - lost), where lost is the time of the slowest of
    them less that of the slowest other rank, which the step would then end with. Asynchronous ranks: the
    job's rate is the sum of theirs. ``over`` [ranks] marks who else is slow. Where the ``job_pace`` before
    the onset is known, no more than the job has slowed down against that.
    """
    if ratios.asynchronous:
        rates = np.exp(found.effect[over])
        return float(ratios.ranks / (ratios.ranks - over.sum() + np.sum(1 / np.maximum(rates, 1.0))))
    steps = found.steps
    step = nan_median(ratios.history.last("step", steps), axis=1)
    seconds = ratios.history.last(found.timing, steps)
    mates = ratios.comparison.mates(found.rank) & ~over
    others = mates if mates.any() and not found.lasting else ~over
    own, rest = (nan_max(np.where(some, seconds, np.nan), axis=1) for some in (slow, others))
    lost = np.maximum(own - rest, 0.0)
    ratio = float(nan_median(slowdown(step, lost)))
    if np.isnan(ratio):
        return 1.0
    slowed = _job_pace(ratios, found.rank, slice(-steps, None)) / job_pace
    return ratio if np.isnan(slowed) else float(np.clip(slowed, 1.0, ratio))


def _job_pace(ratios: Ratios, rank: int, when: slice) -> float:
    """Return step seconds per second of the peers' compute: the job's speed, whatever its work is then."""
    peers = ratios.comparison.mates(rank) & ~ratios.comparison.left_out
    if not peers.any():
        peers = np.arange(ratios.ranks) != rank
    step, compute = (ratios.history.last(s, ratios.settled)[when] for s in ("step", "compute"))
    seconds = float(nan_median(nan_median(step, axis=1)))
    work = float(nan_median(nan_median(compute[:, peers], axis=1)))
    return seconds / work if seconds > 0 and work > 0 else float("nan")
