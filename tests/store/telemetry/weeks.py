"""Paces of a small fleet over weeks, in which some GPUs are slow."""

import random
import time

from detectors.fleet.chronic import Machine, Pace

DAY = 86_400.0

# Midnight eight days ago.
BEGAN = (time.time() // DAY - 8) * DAY


def weeks(cluster="prod-a", *, start=BEGAN, machines=32, days=8, slow=None, late=0, seed=0) -> list[Pace]:
    """A pace every four hours of each GPU, in jobs of two days; ``slow``: GPU -> log ratio by which it is
    slower than usual from the day ``late`` on.
    """
    rng = random.Random(seed)
    usual = [rng.gauss(0, 0.003) for _ in range(machines)]
    return [
        Pace(
            machine=Machine(cluster, f"n{m // 8}", m % 8),
            job=f"j{day // 2}",
            rank=m,
            at=start + DAY * day + 3600 * hour + 60,
            log_ratio=usual[m] + rng.gauss(0, 0.001) + (0.0 if day < late else (slow or {}).get(m, 0.0)),
            spread=0.003,
        )
        for m in range(machines)
        for day in range(days)
        for hour in range(0, 24, 4)
    ]
