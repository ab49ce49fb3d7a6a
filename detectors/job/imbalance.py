"""Uneven work: a pipeline stage with more of it than the others, batches that differ by chance.

Both are findings about the job and never name a rank. Arrays are [steps, ranks] in seconds.

*Job slowdown*: median over steps of t / (t - (max_r c - mean_r c)), with step time t and compute c of rank r:
the job's time over its time with the same work spread evenly. Within 10 % of a full what-if replay on
recorded jobs (What-if analysis, OSDI'25).

*Stage*: with m_g the median compute of stage g in a step, the largest stage is reported where its
m_g / mean of the others is at least 1.10 in the median and in 90 % of the steps, all its members agree within
3 % (or twice the dispersion), and the job slowdown is at least 1.05. Once found it lasts while it reaches
half of each excess, and while its members differ by at most twice as much.

*Workload*: the lasting part of each rank's log ratio (its median) is taken out of its compute; reported where
the job slowdown that remains is at least 1.10 and no rank is the slowest in over half of the steps.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from detectors.peers.peers import PeerGroups, group_median
from detectors.robust import nan_max, nan_mean, nan_median

Floats = npt.NDArray[np.float64]

# Chosen: no pipeline is cut evenly to the last per cent; less is not worth a repartition.
MIN_STAGE_RATIO = 1.10
MIN_JOB_SLOWDOWN = 1.05

# Chosen: less is not worth another packing.
MIN_WORKLOAD_SLOWDOWN = 1.10

# Chosen: more work shows in nearly every step, collections and checkpoints in a few.
_SHARE_OF_STEPS = 0.9

# Of each bound, what is enough for a stage that has been found to last. Chosen: one at a bound neither comes
# and goes, nor lasts for long when its work is even again.
_LASTS = 0.5

# Chosen: members of a stage that differ by more do not do the same work, or one of them is slow itself.
_MEMBER_SPREAD = 0.03


@dataclass(frozen=True, slots=True)
class StageImbalance:
    """``group`` is the slow stage, ``ratio`` its time over the mean of the other stages."""

    group: int
    ratio: float
    job_slowdown: float


def slowdown(step: Floats | float, lost: Floats | float) -> Floats:
    """Return step / (step - lost), seconds: how many times as long a step takes for what it loses.

    >>> slowdown(1.2, 0.2).round(3).tolist(), slowdown(1.0, 1.0).tolist()
    (1.2, 10.0)
    """
    # A loss of nearly the whole step leaves nothing to divide by.
    return np.asarray(step / np.maximum(np.subtract(step, lost), 0.1 * step))


def job_slowdown(step_seconds: Floats, compute: Floats) -> float:
    """Return step / (step - (max - mean of compute over ranks)), the median over steps.

    ``step_seconds`` [steps], ``compute`` [steps, ranks]. What the job takes over what it would take with the
    same work spread evenly; within 10 % of a full what-if replay on recorded jobs.
    """
    excess = nan_max(compute, axis=1) - nan_mean(compute, axis=1)
    ratio = slowdown(step_seconds, excess)
    return float(nan_median(ratio)) if np.isfinite(ratio).any() else float("nan")


def stage_imbalance(
    step_seconds: Floats, compute: Floats, stages: PeerGroups, *, dispersion: float, found: int | None = None
) -> StageImbalance | None:
    """Return the stage that takes clearly longer than the others in nearly all of the given steps, or None.

    ``compute`` is [steps, ranks]. All members of the slow stage must agree: one slow member is a slow rank,
    not a slow stage. ``found``: the stage that was reported before, None if none was.
    """
    if stages.members.shape[0] < 2:
        return None
    medians = group_median(compute, stages)
    if not np.isfinite(medians).all():
        medians = medians[np.isfinite(medians).all(axis=1)]
    if not len(medians):
        return None
    usual = np.median(medians, axis=0)
    slow = int(usual.argmax())
    others = np.delete(medians, slow, axis=1)
    ratio = float(np.median(medians[:, slow] / others.mean(axis=1)))
    share = _LASTS if slow == found else 1.0
    least_ratio = 1.0 + share * (MIN_STAGE_RATIO - 1.0)
    persistent = np.mean(medians[:, slow] >= least_ratio * others.mean(axis=1))
    if ratio < least_ratio or persistent < _SHARE_OF_STEPS:
        return None
    members = nan_median(compute[:, stages.members[slow][stages.members[slow] >= 0]], axis=0)
    if share * np.ptp(members) > max(_MEMBER_SPREAD, 2 * dispersion) * usual[slow]:
        return None
    slowdown = job_slowdown(step_seconds, compute)
    least_slowdown = 1.0 + share * (MIN_JOB_SLOWDOWN - 1.0)
    return StageImbalance(slow, ratio, slowdown) if slowdown >= least_slowdown else None


def stage_ratio(compute: Floats, stages: PeerGroups, group: int) -> Floats:
    """Return the time of one stage over the mean of the other stages, [steps]; NaN where one was not read."""
    medians = group_median(compute, stages)
    ratio: Floats = medians[:, group] / np.delete(medians, group, axis=1).mean(axis=1)
    return ratio


def workload_imbalance(step_seconds: Floats, compute: Floats, log_ratio: Floats) -> float | None:
    """Return the job's slowdown when the ranks' unequal work, and no rank in particular, causes it; else
    None.

    ``log_ratio`` [steps, ranks] is the ratio to same-role peers. The rank's own lasting share is taken out
    first, so that one slow rank does not count as unequal work.
    """
    lasting = nan_median(log_ratio, axis=0)
    slowdown = job_slowdown(step_seconds, compute / np.exp(lasting))
    slowest = np.argmax(np.nan_to_num(log_ratio - lasting, nan=-np.inf), axis=1)
    most = np.bincount(slowest).max() / len(slowest)
    # One rank that is the slowest in most steps is a slow rank, whatever the work is.
    if slowdown < MIN_WORKLOAD_SLOWDOWN or most > 0.5:
        return None
    return slowdown
