"""Standardisation of samples: transforms per metric, the recent past of every series, robust baselines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from detectors.robust import median

Floats = NDArray[np.float64]
AnyFloat = TypeVar("AnyFloat", np.float32, np.float64)
Transform = Literal["identity", "log", "log1p", "sqrt"]

# 1 / Φ⁻¹(¾): half of all normal samples lie within 0.6745 sigma.
MAD_TO_SIGMA = 1.4826
# 3/8: √(x + 3/8) of a Poisson count has nearly the same variance at every rate (Anscombe, 1948).
ANSCOMBE = 0.375


@dataclass(frozen=True, slots=True)
class Scale:
    """The variance-stabilising transform of one series and the smallest credible sigma.

    floor is in transformed units: 0.005 with "log" is half a per cent. Without a floor the sigma of a
    constant or quantised series is zero, and its least step a change.
    """

    transform: Transform = "identity"
    floor: float = 1.0

    def __post_init__(self) -> None:
        if self.transform not in ("identity", "log", "log1p", "sqrt"):
            raise ValueError(f"unknown transform {self.transform!r}: use identity, log, log1p or sqrt")
        if not self.floor > 0.0:
            raise ValueError(f"the floor on sigma must be positive, got {self.floor}")

    def raw(self, y: float) -> float:
        """Return the value whose transform is y."""
        if self.transform == "identity":
            return y
        if self.transform == "log":
            return math.exp(y)
        return math.expm1(y) if self.transform == "log1p" else max(y, 0.0) ** 2 - ANSCOMBE


class Transformer:
    """Apply the transform of each series to values [..., series]; those outside its domain become NaN."""

    def __init__(self, scales: Sequence[Scale]) -> None:
        kinds = [scale.transform for scale in scales]
        self._columns = {
            kind: np.array([i for i, k in enumerate(kinds) if k == kind], np.intp)
            for kind in dict.fromkeys(kinds)
            if kind != "identity"
        }

    def __call__(self, x: Floats) -> Floats:
        """Transformed copy of x [..., series]."""
        y = np.where(np.isfinite(x), x, np.nan)
        for kind, columns in self._columns.items():
            # Contiguous, so that the result of a value never depends on how many come with it.
            v = np.ascontiguousarray(y[..., columns])
            if kind == "log":
                y[..., columns] = np.log(np.where(v > 0.0, v, np.nan))
            elif kind == "log1p":
                y[..., columns] = np.log1p(np.where(v >= 0.0, v, np.nan))
            else:
                y[..., columns] = np.sqrt(np.where(v >= 0.0, v, np.nan) + ANSCOMBE)
        return y


class History:
    """The last `rows` rows of transformed values of each group and their event times.

    Series are numbered group after group, `series` to each.
    """

    def __init__(self, rows: int, series: int, groups: int = 1) -> None:
        self._times = np.full((groups, rows), np.nan)
        self._values = np.full((groups, rows, series), np.nan, np.float32)
        self._count = np.zeros(groups, np.int64)

    def append(self, t: ArrayLike, y: Floats, groups: slice | NDArray[np.int64] = slice(None)) -> None:
        """Add one row to each of the groups, t [groups] and y [groups, series], in place of their oldest."""
        which = np.arange(len(self._count))[groups]
        row = self._count[which] % self._times.shape[1]
        self._times[which, row], self._values[which, row] = t, y
        self._count[which] += 1

    def last(self, series: int, count: int) -> tuple[Floats, Floats]:
        """Times and values of the last `count` readings of one series, oldest first; fewer when there are
        fewer."""
        group, column = divmod(series, self._values.shape[2])
        times = self._in_order(group, self._times[group])
        values = self._in_order(group, self._values[group, :, column]).astype(np.float64)
        read = values == values
        if not read.all():
            times, values = times[read], values[read]
        return times[-count:], values[-count:]

    def stretches(self, series: NDArray[np.int64], count: int) -> Floats:
        """The last `count` rows of several series, [len(series), count], oldest first; NaN: not read."""
        group, column = np.divmod(series, self._values.shape[2])
        row = (self._count[group][:, None] - np.arange(count, 0, -1)) % self._times.shape[1]
        return np.take_along_axis(self._values[group, :, column], row, axis=1).astype(np.float64)

    def times(self, series: NDArray[np.int64]) -> Floats:
        """Event times of all rows of the groups of several series, [len(series), rows], oldest first; NaN:
        no row yet."""
        group = series // self._values.shape[2]
        rows = self._times.shape[1]
        times: Floats = self._times[group[:, None], (self._count[group][:, None] + np.arange(rows)) % rows]
        return times

    def unordered(self, series: NDArray[np.int64]) -> tuple[Floats, NDArray[np.float32]]:
        """Times [n, rows] and values [m, n, rows] of all rows of series [m, n], each n of one group, in no
        order; NaN: not read, and no row yet. Ten times as fast as in order."""
        group, column = np.divmod(series, self._values.shape[2])
        return self._times[group[0]], self._values[group, :, column]

    def rows(self, series: Sequence[int]) -> tuple[Floats, Floats]:
        """Times [n] and values [n, len(series)] of all rows held of series of one group, oldest first; NaN:
        not read."""
        group = series[0] // self._values.shape[2]
        held = min(int(self._count[group]), self._times.shape[1])
        values = self._values[group][:, [i % self._values.shape[2] for i in series]]
        times = self._in_order(group, self._times[group])
        return times[-held:], self._in_order(group, values)[-held:].astype(np.float64)

    def _in_order(self, group: int, rows: NDArray[AnyFloat]) -> NDArray[AnyFloat]:
        oldest = self._count[group] % len(rows)
        return np.concatenate((rows[oldest:], rows[:oldest]))


def baseline(values: Floats, floor: float) -> tuple[float, float]:
    """(level, sigma) of a stretch of readings: median and 1.4826·MAD, not below the floor.

    Positive lag-1 correlation rho leaves n(1-rho)/(1+rho) independent samples, so sigma grows by
    sqrt((1+rho)/(1-rho)), with rho one standard error below its estimate.
    """
    (level,), (sigma,) = baselines(values[None], np.array([floor]))
    return float(level), float(sigma)


def baselines(values: Floats, floor: Floats) -> tuple[Floats, Floats]:
    """Do as `baseline` for several series at once: values [series, n] and floor [series]."""
    level = median(values, axis=1)
    distance = values - level[:, None]
    sigma = MAD_TO_SIGMA * median(np.abs(distance), axis=1)
    # Unlimited, the products of a few spikes would decide the correlation; 4 sigma as in `Winsoriser`.
    limit = 4.0 * np.maximum(sigma, floor)[:, None]
    # Minimum and maximum: on one short row `np.clip` takes as long as everything else here.
    clipped = np.minimum(np.maximum(distance, -limit), limit)
    rho = np.minimum(np.maximum(_lag_one(clipped) - 1.0 / math.sqrt(values.shape[1]), 0.0), 0.9)
    return level, np.maximum(sigma * np.sqrt((1.0 + rho) / (1.0 - rho)), floor)


def median_error(n: int) -> float:
    """Standard error of the median of n normal samples, in sigmas."""
    return math.sqrt(math.pi / 2 / n)


def _lag_one(d: Floats) -> Floats:
    power = (d * d).sum(axis=1)
    rho: Floats = (d[:, 1:] * d[:, :-1]).sum(axis=1) / np.where(power > 0.0, power, 1.0)
    return rho
