"""Tail probability of a value given the past of its series, estimated from the largest past values.

Unlike scores in sigmas, probabilities are comparable across metrics with different tails, and are defined for
series whose MAD is zero.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class TailConfig:
    """Memory and prior of a Pareto tail.

    memory: samples kept; refresh: samples between two fits; least: samples before the first score.
    quantile: where the tail begins.
    prior_index, prior_weight: prior of the tail index, and the number of exceedances it counts as. 0.25 is a
        Student-t with four degrees of freedom.
    """

    memory: int = 4096
    refresh: int = 16
    least: int = 100
    quantile: float = 0.98
    prior_index: float = 0.25
    prior_weight: float = 20.0


class Tail:
    """Score samples f >= 0 by -log10 of the probability that a healthy sample is at least as large.

    Above the 0.98 quantile u of the past the law is Pareto, P(f > y) = 0.02·(y/u)^(-1/xi), with xi by Hill
    (Ann. Statist. 3, 1975), shrunk towards a prior while exceedances are few. u is not below the root mean
    square of *all* the past, so that a metric that is constant most of the time does not score for bursts
    that it has had before. Causal: a sample is scored before it is learned.

    >>> tail = Tail()
    >>> surprise = [tail.update(abs(math.sin(t))) for t in range(200)]
    >>> max(surprise), round(tail.update(3.0), 1)
    (0.0, 3.9)
    """

    def __init__(self, config: TailConfig | None = None) -> None:
        self._config = config or TailConfig()
        self._past = np.zeros(self._config.memory)
        # samples seen, sum of squares, u, xi
        self._state = np.array([0.0, 0.0, math.inf, self._config.prior_index])

    def update(self, f: float) -> float:
        """Score one sample, then learn it; 0 below the tail."""
        seen, squares, threshold, index = map(float, self._state)
        past = int(seen)
        if past >= self._config.least and (past - self._config.least) % self._config.refresh == 0:
            threshold, index = self._fit(past, squares)
        self._past[past % len(self._past)] = f
        self._state[:] = seen + 1.0, squares + f * f, threshold, index
        if f <= threshold:
            return 0.0
        return math.log10(f / threshold) / index - math.log10(1.0 - self._config.quantile)

    def _fit(self, past: int, squares: float) -> tuple[float, float]:
        config = self._config
        held = np.sort(self._past[: min(past, config.memory)])
        # A constant metric has no scale; a small positive number keeps the ratio finite.
        floor = max(math.sqrt(squares / past), 1e-12)
        threshold = max(float(held[int(config.quantile * len(held))]), floor)
        excess = held[np.searchsorted(held, threshold, side="right") :]
        total = float(np.log(excess / threshold).sum()) + config.prior_weight * config.prior_index
        return threshold, total / (len(excess) + config.prior_weight)
