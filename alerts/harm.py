"""Whether a job is measurably hurt, and by a machine."""

# A job is measurably hurt from the first on, and until it is back below the second (chosen: 5 %, with 2 % of
# hysteresis): with one limit, a job near it would page again and again.
IMPACT, RELIEF = 1.05, 1.03


def hurts(slowdown: float | None, before: bool) -> bool:
    """Return whether what is so much slower than healthy hurts, given whether it did ``before``."""
    return slowdown is not None and slowdown >= (RELIEF if before else IMPACT)


def harm(job: float | None, own: float | None) -> float | None:
    """Return by how much a machine slows its job: by no more than the machine itself is slower, if known."""
    return job if job is None or own is None else min(job, own)
