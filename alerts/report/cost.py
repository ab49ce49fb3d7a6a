"""What a slow or hung synchronous job loses per hour, in GPU-hours, and what doing something about it costs.

The hours that a finding has lost so far are summed in ``alerts.cases.cost.gpu_hours_lost``.
"""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionCosts:
    """Seconds of the whole job that the next steps of the ladder take.

    ``rebalance``: moving work away from the slow rank. A restart takes ``restart``, the wait ``queue`` for a
    spare, and on the average half a ``checkpoint_interval`` of work done again.
    """

    rebalance_seconds: float = 60.0
    restart_seconds: float = 300.0
    checkpoint_interval_seconds: float = 1800.0
    queue_seconds: float = 0.0


def lost_per_hour(gpus: int, job_slowdown: float) -> float:
    """Return the GPU-hours lost per hour by a synchronous job: N(1 − 1/r); a hang has r = inf and loses N.

    ``job_slowdown`` is the job's ratio to its healthy pace, not the subject's. 4,096 GPUs at 1.31 lose 969.3.
    """
    if gpus <= 0 or math.isnan(job_slowdown) or job_slowdown <= 1.0:
        return 0.0
    return gpus * (1.0 - 1.0 / job_slowdown)


def restart_cost(gpus: int, costs: ActionCosts) -> float:
    """Return the GPU-hours of a restart from the last checkpoint: N(u₀ + Δ/2 + q)."""
    seconds = costs.restart_seconds + costs.checkpoint_interval_seconds / 2 + costs.queue_seconds
    return gpus * seconds / 3600.0


def rebalance_cost(gpus: int, costs: ActionCosts) -> float:
    """Return the GPU-hours it takes to give the slow rank less work."""
    return gpus * costs.rebalance_seconds / 3600.0


def should_act(lost: float, expected: float, action_cost: float) -> bool:
    """Ski rental: act once waiting has cost as much as acting would, or is expected to.

    The first bounds the regret to twice the optimum whatever happens; the second does not wait for a loss
    that the law of durations foresees.
    """
    return max(lost, expected) >= action_cost
