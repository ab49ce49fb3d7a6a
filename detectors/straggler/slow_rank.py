"""The figures of a slow rank, for good or on and off."""

import numpy as np
import numpy.typing as npt

from detectors.peers.ratios import Ratios
from detectors.robust import nan_median
from detectors.straggler.candidate import Candidate
from detectors.straggler.core import SlowRank
from detectors.straggler.gates import goes_with_role, waits_least
from detectors.straggler.intermittence import CERTAIN, SUSPECT
from detectors.straggler.job_slowdown import job_ratio
from detectors.straggler.llr_cusum import Onset
from detectors.straggler.onset_time import date_onset
from detectors.straggler.timing_channel import TimingChannel

Bools = npt.NDArray[np.bool_]

_SLOW_SIGMAS = 3.0
"""From here on a step counts as slow, of a rank that is slow on and off: one in 740 healthy ones does."""


def slow_rank(ratios: Ratios, channel: TimingChannel, found: Candidate, over: Bools) -> SlowRank:
    """Return the figures of a confirmed candidate; ``over`` [ranks] marks who else is slow."""
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
        ratio=1.0 + found.excess,
        job_ratio=job_ratio(ratios, found, over, job_pace=float(channel.job_pace[found.rank])),
        peers=int(ratios.groups.peers[found.rank]),
        waits_least=waits_least(ratios, found),
    )


def intermittent_rank(ratios: Ratios, channel: TimingChannel, rank: int) -> SlowRank | None:
    """Return the figures of a rank that was clearly slow several times and did not stay so; None if it was
    slow by little, or with its role.
    """
    found = channel.intermittence.of(rank)
    steps = min(found.age + 1, ratios.history.capacity, ratios.settled)
    if channel.noise is None or not steps:
        return None
    x = ratios.history.last("x", steps) - channel.noise.center
    slow = x[:, rank] > _SLOW_SIGMAS * channel.noise.sigma[rank]
    effect = nan_median(x[slow])
    if not effect[rank] >= np.log1p(ratios.config.min_effect_uneven):
        return None
    if ratios.roles_known and goes_with_role(ratios, rank, effect):
        return None
    ratio = float(np.exp(effect[rank]))
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
        peers=int(ratios.groups.peers[rank]),
        waits_least=None,
        excursions=found.count,
    )
