"""The band of a job's step times: of each bin quantiles over its ranks, and which rank was the slowest."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from store.dashboard.steps import BinValues

QUANTILES = (0.05, 0.5, 0.95)


@dataclass(frozen=True, slots=True)
class BandBin:
    """One bin of ``source``: its quantiles and its maximum in seconds; the lowest of the slowest ranks."""

    source: BinValues
    ranks: int
    quantiles: tuple[float, float, float]
    max: float
    slowest: int


def band(found: Sequence[BinValues]) -> list[BandBin]:
    """Return the bins that have values; quantiles are interpolated, as by PostgreSQL's percentile_cont."""
    return [made for one in found if (made := _bin(one)) is not None]


def _bin(one: BinValues) -> BandBin | None:
    values = np.frombuffer(one.values, dtype=">f8").astype(np.float64)
    known = ~np.isnan(values)
    if not known.any():
        return None
    values, ranks = values[known], np.frombuffer(one.ranks, dtype=">i4")[known]
    p05, median, p95 = np.quantile(values, QUANTILES).tolist()
    slowest = int(ranks[values == values.max()].min())
    return BandBin(one, len(np.unique(ranks)), (p05, median, p95), float(values.max()), slowest)
