"""Format figures for the tables: shares with 95 % intervals, seconds with "never" for infinity."""

import math
from collections.abc import Mapping, Sequence
from functools import partial

from benchmarks.quality.scoring.metrics import Estimate, quantile, resampled

median = partial(quantile, share_of_all=0.5)
p95 = partial(quantile, share_of_all=0.95)


def interval(e: Estimate) -> str:
    """Return a share with its interval."""
    return "-" if math.isnan(e.value) else f"{e.value:.3f} [{e.low:.3f}, {e.high:.3f}]"


def delays(by_seed: Mapping[int, Sequence[float]]) -> str:
    """Return median and 95th percentile of delays in seconds, each with its interval."""
    return ", ".join(_delay(resampled(by_seed, statistic)) for statistic in (median, p95))


def _delay(e: Estimate) -> str:
    return "-" if math.isnan(e.value) else f"{_seconds(e.value)} [{_seconds(e.low)}, {_seconds(e.high)}]"


def _seconds(value: float) -> str:
    return "never" if math.isinf(value) else f"{value:.1f}"
