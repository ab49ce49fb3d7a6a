"""Statistics over seeds with their uncertainty: shares, F1, quantiles, rates, calibration."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

T = TypeVar("T")

DRAWS = 1_000


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure with its 95 % bootstrap interval over seeds; NaN where there was nothing to count."""

    value: float
    low: float
    high: float


def bootstrap(
    counts: Floats, statistic: Callable[[Floats], Floats], *, draws: int = DRAWS, seed: int = 0
) -> Estimate:
    """Return a statistic of summed counts [seeds, kinds], resampling whole seeds.

    ``statistic`` takes sums [..., kinds] and returns [...]. Seeds are drawn and not events, because the
    events of one seed are not independent.
    """
    rng = np.random.default_rng(seed)
    picks = rng.integers(0, len(counts), (draws, len(counts)))
    with np.errstate(invalid="ignore", divide="ignore"):
        value = float(statistic(counts.sum(axis=0)))
        spread = statistic(counts[picks].sum(axis=1))
    spread = spread[np.isfinite(spread)]
    if not len(spread) or math.isnan(value):
        return Estimate(value, math.nan, math.nan)
    low, high = np.percentile(spread, [2.5, 97.5])
    return Estimate(value, float(low), float(high))


def pooled(by_seed: Mapping[int, Sequence[T]]) -> list[T]:
    """Return the items of all seeds, in order of the seeds."""
    return [item for seed in sorted(by_seed) for item in by_seed[seed]]


def resampled(
    by_seed: Mapping[int, Sequence[T]],
    statistic: Callable[[Sequence[T]], float],
    *,
    draws: int = DRAWS,
    seed: int = 0,
) -> Estimate:
    """Return a statistic of the items of all seeds, resampling whole seeds as ``bootstrap`` does.

    The bounds are values that occurred, including infinity for events that were never found.
    """
    some = [by_seed[key] for key in sorted(by_seed)]
    value = statistic(pooled(by_seed))
    if math.isnan(value):
        return Estimate(value, math.nan, math.nan)
    picks = np.random.default_rng(seed).integers(0, len(some), (draws, len(some)))
    spread = [statistic([item for pick in row for item in some[pick]]) for row in picks.tolist()]
    spread = [drawn for drawn in spread if not math.isnan(drawn)]
    return Estimate(value, quantile(spread, 0.025), quantile(spread, 0.975))


def precision(sums: Floats) -> Floats:
    """Return true over all alarms, from sums (..., [true, false, missed])."""
    return np.asarray(sums[..., 0] / (sums[..., 0] + sums[..., 1]))


def recall(sums: Floats) -> Floats:
    """Return found over all events, from sums (..., [true, false, missed])."""
    return np.asarray(sums[..., 0] / (sums[..., 0] + sums[..., 2]))


def f1(sums: Floats) -> Floats:
    """Return the harmonic mean of precision and recall, from sums (..., [true, false, missed])."""
    return np.asarray(2 * sums[..., 0] / (2 * sums[..., 0] + sums[..., 1] + sums[..., 2]))


def share(sums: Floats) -> Floats:
    """Return the first over the second, from sums (..., [part, whole])."""
    return np.asarray(sums[..., 0] / sums[..., 1])


def upper_rate(count: int, exposure: float) -> float:
    """Return the one-sided 95 % upper bound of a Poisson rate; with no event, the rule of three's 3/n.

    Solves P(X <= count | mean) = 0.05 for the mean. Raises ``ValueError`` for an exposure that is not
    positive.
    """
    if exposure <= 0:
        raise ValueError(f"a rate needs an exposure above 0, got {exposure}")
    low, high = float(count), 10.0 + 3.0 * count
    for _ in range(80):
        mean = (low + high) / 2
        low, high = (mean, high) if _poisson_cdf(count, mean) > 0.05 else (low, mean)
    return high / exposure


def quantile(delays: Sequence[float], share_of_all: float) -> float:
    """Return a quantile of delays, infinite for events never found; NaN for no delays."""
    if not delays:
        return math.nan
    rank = min(len(delays) - 1, math.ceil(share_of_all * len(delays)) - 1)
    return sorted(delays)[max(rank, 0)]


@dataclass(frozen=True, slots=True)
class Calibration:
    """Expected calibration error, Brier score, and reliability bins (mean confidence, share right, n)."""

    error: float
    brier: float
    bins: tuple[tuple[float, float, int], ...]


def calibration(confidences: Sequence[float], right: Sequence[bool], *, bins: int = 10) -> Calibration:
    """Return how well confidences in [0, 1] agree with the share that was right, in bins of equal width."""
    p, hit = np.asarray(confidences, np.float64), np.asarray(right, np.float64)
    if not len(p):
        return Calibration(math.nan, math.nan, ())
    place = np.minimum((p * bins).astype(int), bins - 1)
    table = [
        (float(p[m].mean()), float(hit[m].mean()), int(m.sum()))
        for b in range(bins)
        if (m := place == b).any()
    ]
    error = sum(n * abs(mean - rate) for mean, rate, n in table) / len(p)
    return Calibration(float(error), float(np.mean((p - hit) ** 2)), tuple(table))


def calibration_error(pairs: Sequence[tuple[float, bool]]) -> float:
    """Return the expected calibration error of (confidence, was it right) pairs; NaN for none."""
    return calibration([p for p, _ in pairs], [right for _, right in pairs]).error


def _poisson_cdf(count: int, mean: float) -> float:
    return math.fsum(
        math.exp(k * math.log(mean) - mean - math.lgamma(k + 1)) if mean > 0 else float(k == 0)
        for k in range(count + 1)
    )
