"""From readings to z: per-metric transforms, the recent past of every series, and robust causal baselines."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Transform = Literal["identity", "log", "log1p", "sqrt"]

MAD_TO_SIGMA = 1.4826
ANSCOMBE = 0.375


@dataclass(frozen=True, slots=True)
class Scale:
    """How one series is read: its variance-stabilising transform and the smallest sigma to believe in.

    floor is in transformed units: 0.005 with "log" is half a per cent. Without a floor the scale of a quiet
    or quantised series collapses to zero and every flicker becomes a change.
    """

    transform: Transform = "identity"
    floor: float = 1.0

    def __post_init__(self) -> None:
        if self.transform not in ("identity", "log", "log1p", "sqrt"):
            raise ValueError(f"unknown transform {self.transform!r}: use identity, log, log1p or sqrt")
        if not self.floor > 0.0:
            raise ValueError(f"the floor on sigma must be positive, got {self.floor}")

    def raw(self, y: float) -> float:
        """The reading whose transform is y."""
        if self.transform == "identity":
            return y
        if self.transform == "log":
            return math.exp(y)
        return math.expm1(y) if self.transform == "log1p" else max(y, 0.0) ** 2 - ANSCOMBE


class Transformer:
    """Applies each series' transform; readings outside its domain, like NaN and infinities, become NaN."""

    def __init__(self, scales: Sequence[Scale]) -> None:
        kinds = [scale.transform for scale in scales]
        self._columns = {
            kind: np.array([i for i, k in enumerate(kinds) if k == kind], np.intp)
            for kind in dict.fromkeys(kinds)
            if kind != "identity"
        }

    def __call__(self, x: Floats) -> Floats:
        """Transformed copy of x [series]."""
        y = np.where(np.isfinite(x), x, np.nan)
        for kind, columns in self._columns.items():
            v = y[columns]
            if kind == "log":
                y[columns] = np.log(np.where(v > 0.0, v, np.nan))
            elif kind == "log1p":
                y[columns] = np.log1p(np.where(v >= 0.0, v, np.nan))
            else:
                y[columns] = np.sqrt(np.where(v >= 0.0, v, np.nan) + ANSCOMBE)
        return y


class History:
    """The last `rows` rows of transformed readings and their event times."""

    def __init__(self, rows: int, series: int) -> None:
        self._times = np.full(rows, np.nan)
        self._values = np.full((rows, series), np.nan, np.float32)
        self._count = np.zeros(1, np.int64)

    def append(self, t: float, y: Floats) -> None:
        """Add one row, y [series]; the oldest row goes."""
        row = int(self._count[0]) % len(self._times)
        self._times[row], self._values[row] = t, y
        self._count[0] += 1

    def last(self, series: int, count: int) -> tuple[Floats, Floats]:
        """Times and values of the last `count` readings of one series, oldest first; fewer when there are
        fewer."""
        order = (int(self._count[0]) + np.arange(len(self._times))) % len(self._times)
        values = self._values[order, series].astype(np.float64)
        read = np.flatnonzero(values == values)[-count:]
        return self._times[order][read], values[read]

    def rows(self, series: Sequence[int]) -> tuple[Floats, Floats]:
        """Times [n] and values [n, len(series)] of all rows held, oldest first; NaN: not read."""
        held = min(int(self._count[0]), len(self._times))
        order = (int(self._count[0]) - held + np.arange(held)) % len(self._times)
        return self._times[order], self._values[order][:, list(series)].astype(np.float64)

    def snapshot(self) -> dict[str, NDArray[np.generic]]:
        """Copies of the state arrays."""
        return {"times": self._times.copy(), "values": self._values.copy(), "count": self._count.copy()}

    def restore(self, snapshot: Mapping[str, NDArray[np.generic]]) -> None:
        """Continue from a snapshot of the same shape. ValueError otherwise."""
        if snapshot["values"].shape != self._values.shape:
            raise ValueError(f"snapshot does not fit this history of shape {self._values.shape}")
        self._times[...], self._values[...] = snapshot["times"], snapshot["values"]
        self._count[...] = snapshot["count"]


def baseline(values: Floats, floor: float) -> tuple[float, float]:
    """(level, sigma) of a stretch of readings: median and 1.4826·MAD, not below the floor.

    Positive lag-1 correlation rho leaves n(1-rho)/(1+rho) independent samples, so sigma grows by
    sqrt((1+rho)/(1-rho)), with rho one standard error below its estimate.
    """
    level = float(np.median(values))
    sigma = MAD_TO_SIGMA * float(np.median(np.abs(values - level)))
    limit = 4.0 * max(sigma, floor)
    rho = _lag_one(np.clip(values - level, -limit, limit)) - 1.0 / math.sqrt(len(values))
    rho = min(max(rho, 0.0), 0.9)
    return level, max(sigma * math.sqrt((1.0 + rho) / (1.0 - rho)), floor)


def median_error(n: int) -> float:
    """Standard error of the median of n normal samples, in sigmas."""
    return math.sqrt(math.pi / 2 / n)


def _lag_one(d: Floats) -> float:
    power = float(d @ d)
    return float(d[1:] @ d[:-1]) / power if power > 0.0 else 0.0
