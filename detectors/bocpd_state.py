"""Tables and arrays shared by the kernels of the BOCPD bank: the telescoped likelihood and the ring of runs.

With beta' the updated beta, the Student-t predictive telescopes over a run of n samples to

    log p(run) = A_n - alpha_n·log(beta_n),
    A_n = lgamma(alpha_n) - lgamma(alpha_0) + ½·log(kappa_0/kappa_n) - (n/2)·log(2π) + alpha_0·log(beta_0)

so a hypothesis needs only (mu, beta, W) and one log and one exp per sample; W is log H + log Z at its birth. For
float32 both large terms are centred: beta is divided by what it is expected to be, `expected_n`, and the expected
log density per sample is added back, which leaves log weights near zero for healthy input.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from detectors.bocpd import BocpdConfig

Float = NDArray[np.floating]
Int32 = NDArray[np.int32]

EMPTY = -1e30
"""Log weight of a slot without a run: finite, so that differences of two empty slots stay numbers."""

REBASE_EVERY = 32
"""Samples between two subtractions of log Z from all weights; keeps them small enough for float32."""

EXPECTED_LOSS = 0.5 * (1.0 + math.log(2.0 * math.pi))
"""Minus the expected log density of a standard normal sample."""


@dataclass(frozen=True, slots=True)
class Tables:
    """Constants of the recursion by run age.

    gain, spread: factors of the mu and beta update, by age before the sample (0..cap).
    shrink, power, offset: 1/expected_n, alpha_n and the additive constant, by age after the sample (1..cap; entry 0
        is unused), so that log weight = W + offset[n] - power[n]·log(beta·shrink[n]).
    reversed_*: the same for the ring, by slot: [2·slots]; slice [slots-1-head : 2·slots-1-head] is in slot order.
    """

    gain: Float
    spread: Float
    shrink: Float
    power: Float
    offset: Float
    reversed_gain: Float
    reversed_spread: Float
    reversed_shrink: Float
    reversed_power: Float
    reversed_offset: Float
    log_hazard: float
    cap: int
    forget: float
    capped_step: float
    mu0: float
    beta0: float


@lru_cache(maxsize=16)
def tables_of(config: BocpdConfig, dtype: type[np.floating] = np.float32) -> Tables:
    """Tables of one configuration, computed once in float64 and rounded to `dtype`."""
    n = np.arange(config.cap + 1, dtype=np.float64)
    kappa, alpha = config.kappa0 + n, config.alpha0 + n / 2
    lgamma = np.array([math.lgamma(a) for a in alpha])
    expected = config.beta0 + n / 2
    log_stay = math.log1p(-config.hazard)
    evidence = (
        lgamma
        - lgamma[0]
        + 0.5 * np.log(config.kappa0 / kappa)
        - 0.5 * n * math.log(2 * math.pi)
        + config.alpha0 * math.log(config.beta0)
    )
    offset = (n - 1) * log_stay + evidence + n * EXPECTED_LOSS - alpha * np.log(expected)
    gain, spread = 1 / (kappa + 1), kappa / (2 * (kappa + 1))
    before = slice(0, config.slots)
    after = slice(1, config.slots + 1)
    return Tables(
        gain=gain.astype(dtype),
        spread=spread.astype(dtype),
        shrink=(1 / expected).astype(dtype),
        power=alpha.astype(dtype),
        offset=offset.astype(dtype),
        reversed_gain=_by_slot(gain[before], dtype),
        reversed_spread=_by_slot(spread[before], dtype),
        reversed_shrink=_by_slot(1 / expected[after], dtype),
        reversed_power=_by_slot(alpha[after], dtype),
        reversed_offset=_by_slot(offset[after], dtype),
        log_hazard=math.log(config.hazard),
        cap=config.cap,
        forget=float(alpha[-1] / (alpha[-1] + 0.5)),
        capped_step=_capped_step(config, log_stay),
        mu0=config.mu0,
        beta0=config.beta0,
    )


def _capped_step(config: BocpdConfig, log_stay: float) -> float:
    """What W gains per sample at the cap, apart from -½·log(beta·shrink): keeps the weight exact with one log."""
    kappa, alpha = config.kappa0 + config.cap, config.alpha0 + config.cap / 2
    density = math.lgamma(alpha + 0.5) - math.lgamma(alpha) - 0.5 * math.log(2 * math.pi * (kappa + 1) / kappa)
    log_forget = math.log(alpha / (alpha + 0.5))
    expected = config.beta0 + config.cap / 2
    return log_stay + density + EXPECTED_LOSS - 0.5 * math.log(expected) + (alpha + 0.5) * log_forget


def _by_slot(values: NDArray[np.float64], dtype: type[np.floating]) -> Float:
    return np.concatenate((values[::-1], values[::-1])).astype(dtype)


@dataclass(slots=True)
class RingState:
    """All runs of a bank. Layout [block, slot, lane]; lanes are series, so no sum runs across a vector register.

    Runs are kept by start time: the run born at the newest sample sits at `head`, the one before it a slot below.
    A lane whose series had no sample while others of its block did is rolled by one slot, so that the age of a slot
    is the same in every lane of a block.
    """

    mu: Float
    beta: Float
    weight: Float
    old_mu: Float
    old_beta: Float
    old_weight: Float
    old_age: Int32
    birth: Float
    regime_age: Int32
    probability: Float
    head: Int32
    steps: Int32

    @classmethod
    def empty(
        cls, blocks: int, lanes: int, config: BocpdConfig, dtype: type[np.floating] = np.float32
    ) -> RingState:
        """State before the first sample: no runs, the next birth certain."""
        ring, row = (blocks, config.slots, lanes), (blocks, lanes)
        return cls(
            mu=np.full(ring, config.mu0, dtype),
            beta=np.full(ring, config.beta0, dtype),
            weight=np.full(ring, EMPTY, dtype),
            old_mu=np.full(row, config.mu0, dtype),
            old_beta=np.full(row, config.beta0, dtype),
            old_weight=np.full(row, EMPTY, dtype),
            old_age=np.zeros(row, np.int32),
            birth=np.zeros(row, dtype),
            regime_age=np.zeros(row, np.int32),
            probability=np.zeros(row, dtype),
            head=np.full(blocks, -1, np.int32),
            steps=np.zeros(blocks, np.int32),
        )

    def arrays(self) -> dict[str, Float | Int32]:
        """The arrays themselves, by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}
