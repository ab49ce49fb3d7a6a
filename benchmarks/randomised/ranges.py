"""Seeds of the two disjoint sets of draws, and the distributions that magnitudes are drawn from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

# Seeds that may be looked into, to improve detectors.
TUNING = range(0, 1_000_000)

# Seeds that are scored once per release, and whose jobs are never looked into.
REPORT = range(1_000_000, 1_010_000)

SETS = {"tuning": TUNING, "report": REPORT}

Choice = TypeVar("Choice")


def log_uniform(rng: np.random.Generator, low: float, high: float) -> float:
    """Draw a magnitude whose order is not known: uniform in its logarithm."""
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))


def chance(rng: np.random.Generator, probability: float) -> bool:
    """Return True with ``probability``."""
    return bool(rng.random() < probability)


def pick(
    rng: np.random.Generator, options: Sequence[Choice], weights: Sequence[float] | None = None
) -> Choice:
    """Draw one of ``options``; ``weights`` need not sum to one."""
    share = None if weights is None else np.asarray(weights) / np.sum(weights)
    return options[int(rng.choice(len(options), p=share))]
