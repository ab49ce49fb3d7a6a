"""Slowness that is nobody's fault: a pipeline stage with more work than the others, batches that differ
by chance.

Both are verdicts about the job. Neither ever names a rank.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from detectors.peers import PeerGroups, group_median
from detectors.robust import nan_max, nan_mean, nan_median

Floats = npt.NDArray[np.float64]

MIN_STAGE_RATIO = 1.10
MIN_JOB_SLOWDOWN = 1.05
"""No pipeline is cut evenly to the last per cent; less is not worth a repartition."""

MIN_WORKLOAD_SLOWDOWN = 1.10
_SHARE_OF_STEPS = 0.9
_MEMBER_SPREAD = 0.03
"""Members of a stage that differ by more do not do the same work, or one of them is slow itself."""


@dataclass(frozen=True, slots=True)
class StageImbalance:
    """``group`` is the slow stage, ``ratio`` its time over the mean of the other stages."""

    group: int
    ratio: float
    job_slowdown: float


def job_slowdown(step_seconds: Floats, compute: Floats) -> float:
    """Return step / (step - (max - mean of compute over ranks)), the median over steps.

    ``step_seconds`` [steps], ``compute`` [steps, ranks]. What the job takes over what it would take with the
    same work spread evenly; within 10 % of a full what-if replay on recorded jobs.
    """
    excess = nan_max(compute, axis=1) - nan_mean(compute, axis=1)
    # An excess of nearly the whole step leaves nothing to divide by.
    even = np.maximum(step_seconds - excess, 0.1 * step_seconds)
    ratio = step_seconds / even
    return float(nan_median(ratio)) if np.isfinite(ratio).any() else float("nan")


def stage_imbalance(
    step_seconds: Floats, compute: Floats, stages: PeerGroups, *, dispersion: float
) -> StageImbalance | None:
    """Return the stage that takes clearly longer than the others in nearly all of the given steps, or None.

    ``compute`` is [steps, ranks]. All members of the slow stage must agree: one slow member is a slow rank,
    not a slow stage.
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
    persistent = np.mean(medians[:, slow] >= MIN_STAGE_RATIO * others.mean(axis=1))
    if ratio < MIN_STAGE_RATIO or persistent < _SHARE_OF_STEPS:
        return None
    members = nan_median(compute[:, stages.members[slow][stages.members[slow] >= 0]], axis=0)
    if np.ptp(members) > max(_MEMBER_SPREAD, 2 * dispersion) * usual[slow]:
        return None
    slowdown = job_slowdown(step_seconds, compute)
    return StageImbalance(slow, ratio, slowdown) if slowdown >= MIN_JOB_SLOWDOWN else None


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
