"""Tables and arrays shared by the kernels of the BOCPD bank: the telescoped likelihood and the ring of runs.

With beta' the updated beta, the Student-t predictive telescopes over a run of n samples to

    log p(run) = A_n - alpha_n·log(beta_n),
    A_n = lgamma(alpha_n) - lgamma(alpha_0) + ½·log(kappa_0/kappa_n) - (n/2)·log(2π) + alpha_0·log(beta_0)

so a hypothesis needs only (mu, beta, W) and one log and one exp per sample; W is log H + log Z at its
birth. For float32 both large terms are centred: beta is divided by what it is expected to be, `expected_n`,
and the expected log density per sample is added back, which leaves log weights near zero for healthy input.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from detectors.changepoint.bocpd import BocpdConfig

Float = NDArray[np.floating]
Int32 = NDArray[np.int32]

# Log weight of a slot without a run: finite, so that differences of two empty slots stay numbers.
EMPTY = -1e30

# Samples between two subtractions of log Z from all weights; keeps them small enough for float32.
REBASE_EVERY = 32

# Minus the expected log density of a standard normal sample.
EXPECTED_LOSS = 0.5 * (1.0 + math.log(2.0 * math.pi))


@dataclass(frozen=True, slots=True)
class Tables:
    """Constants of the recursion by run age.

    by_age: [5, cap + 1], rows gain, spread (factors of the mu and beta update, by age before the sample)
        and shrink, power, offset (1/expected_n, alpha_n and the additive constant, by age after it), so that
        log weight = W + offset[n] - power[n]·log(beta·shrink[n]).
    by_slot: [5, 2·slots], the same for the ring, reversed and doubled: columns slots-1-head …
        2·slots-2-head are in slot order.
    """

    by_age: Float
    by_slot: Float
    log_hazard: float
    cap: int
    forget: float
    capped_step: float
    mu0: float
    beta0: float


@lru_cache(maxsize=16)
def tables_of(config: BocpdConfig, dtype: str = "float32") -> Tables:
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
    # n - 1: the first sample of a run is its birth, whose hazard W holds.
    offset = (n - 1) * log_stay + evidence + n * EXPECTED_LOSS - alpha * np.log(expected)
    by_age = np.stack((1 / (kappa + 1), kappa / (2 * (kappa + 1)), 1 / expected, alpha, offset))
    ring = np.concatenate((by_age[:2, : config.slots], by_age[2:, 1 : config.slots + 1]))[:, ::-1]
    return Tables(
        by_age=by_age.astype(dtype),
        by_slot=np.concatenate((ring, ring), axis=1).astype(dtype),
        log_hazard=math.log(config.hazard),
        cap=config.cap,
        forget=float(alpha[-1] / (alpha[-1] + 0.5)),
        capped_step=_capped_step(config, log_stay),
        mu0=config.mu0,
        beta0=config.beta0,
    )


def _capped_step(config: BocpdConfig, log_stay: float) -> float:
    """What W gains per sample at the cap, apart from -½·log(beta·shrink): keeps the weight exact with one
    log."""
    kappa, alpha = config.kappa0 + config.cap, config.alpha0 + config.cap / 2
    density = (
        math.lgamma(alpha + 0.5) - math.lgamma(alpha) - 0.5 * math.log(2 * math.pi * (kappa + 1) / kappa)
    )
    log_forget = math.log(alpha / (alpha + 0.5))
    expected = config.beta0 + config.cap / 2
    # The kernels take their log of a beta that has shrunk, which is half a log_forget less: hence alpha + ½.
    return log_stay + density + EXPECTED_LOSS - 0.5 * math.log(expected) + (alpha + 0.5) * log_forget


def runs_statistics(
    samples: NDArray[np.float64], config: BocpdConfig
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(mu, beta) of several runs at once: see `run_statistics`, samples [runs, n]."""
    n = samples.shape[1]
    mean = samples.mean(axis=1)
    squares = ((samples - mean[:, None]) ** 2).sum(axis=1)
    kappa = config.kappa0 + n
    mu = (config.kappa0 * config.mu0 + n * mean) / kappa
    beta = config.beta0 + 0.5 * (squares + config.kappa0 * n * (mean - config.mu0) ** 2 / kappa)
    cap_alpha, alpha = config.alpha0 + config.cap / 2, config.alpha0 + n / 2
    return mu, beta * min(1.0, cap_alpha / alpha)


@dataclass(frozen=True, slots=True)
class RingState:
    """All runs of a bank. Lanes are series, so no sum runs across a vector register.

    ring: [block, 3, slot, lane], mu, beta and W of the runs by start time: the run born at the newest
        sample sits at `head`, the one before it a slot below. A lane whose series had no sample while
        others of its block did is rolled by one slot, so that the age of a slot is the same in every lane
        of a block.
    rows: [block, 5, lane], mu, beta and W of the absorbing slot, W of the next birth, probability of a new
    run. ages: [block, 2, lane], age of the absorbing slot's run (0: none) and of the accepted regime, in
    samples. clock: [block, 2], head and the number of samples.
    """

    ring: Float
    rows: Float
    ages: Int32
    clock: Int32

    @classmethod
    def empty(
        cls, blocks: int, lanes: int, config: BocpdConfig, dtype: type[np.floating] = np.float32
    ) -> RingState:
        """State before the first sample: no runs, the next birth certain."""
        run = np.array([config.mu0, config.beta0, EMPTY], dtype)
        row = np.array([*run, 0.0, 0.0], dtype)
        return cls(
            ring=np.tile(run[:, None, None], (blocks, 1, config.slots, lanes)),
            rows=np.tile(row[:, None], (blocks, 1, lanes)),
            ages=np.zeros((blocks, 2, lanes), np.int32),
            clock=np.tile(np.array([-1, 0], np.int32), (blocks, 1)),
        )

    @property
    def probability(self) -> Float:
        """[block, lane]."""
        return self.rows[:, 4]

    @property
    def regime_age(self) -> Int32:
        """[block, lane]."""
        return self.ages[:, 1]

    def arrays(self) -> dict[str, Float | Int32]:
        """The arrays themselves, by name."""
        return {"ring": self.ring, "rows": self.rows, "ages": self.ages, "clock": self.clock}
