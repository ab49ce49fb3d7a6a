"""What a slow or hung synchronous job loses, in GPU-hours, and when waiting has cost as much as acting."""

import math


def lost_per_hour(gpus: int, job_slowdown: float) -> float:
    """Return the GPU-hours lost per hour by a synchronous job: N(1 − 1/r); a hang has r = inf and loses N.

    ``job_slowdown`` is the job's ratio to its healthy pace, not the subject's. 4,096 GPUs at 1.31 lose 969.3.
    """
    if gpus <= 0 or math.isnan(job_slowdown) or job_slowdown <= 1.0:
        return 0.0
    return gpus * (1.0 - 1.0 / job_slowdown)


def restart_cost(
    gpus: int, *, restart_seconds: float, checkpoint_interval_seconds: float, queue_seconds: float = 0.0
) -> float:
    """Return the GPU-hours of a restart from the last checkpoint: N(u₀ + Δ/2 + q)."""
    return gpus * (restart_seconds + checkpoint_interval_seconds / 2 + queue_seconds) / 3600.0


def should_act(lost_so_far: float, action_cost: float) -> bool:
    """Ski rental: act once waiting has cost as much as acting would; never worse than twice the optimum."""
    return lost_so_far >= action_cost
