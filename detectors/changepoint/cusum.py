"""Two-sided CUSUM over many series, for creeping and moderate shifts that BOCPD takes long to see."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray


class CusumBank:
    """Accumulate deviations of standardised samples in both directions; alarm above a threshold.

        up    ← max(0, up + z − slack)
        down  ← max(0, down − z − slack)            alarm while max(up, down) > threshold

    z in sigmas. `slack` is half the smallest shift worth detecting. A shift of d sigmas is found after about
    threshold / (d − slack) samples. Independent standard normal samples alarm, with the defaults, about once
    in 70,000: each side has, with b = threshold + 1.166 and k = slack, a mean time between alarms of
    (exp(2kb) − 2kb − 1) / 2k² (Siegmund's approximation). A slow ramp, which moves a BOCPD run little at a
    time, adds up here. `age`, the samples since the larger sum last stood at zero, estimates the onset. NaN
    means "not read" and leaves a series as it was; an alarm stands until `reset`.

    Source: Page (1954), Continuous inspection schemes, Biometrika 41; Siegmund (1985), Sequential Analysis.

    >>> bank = CusumBank(1)
    >>> [bool(bank.update([1.5])[0]) for _ in range(12)].index(True), bank.age(0)
    (10, 12)
    """

    def __init__(self, series: int, *, slack: float = 0.5, threshold: float = 10.0) -> None:
        if slack < 0 or threshold <= 0:
            raise ValueError(f"need slack >= 0 and threshold > 0, got {slack} and {threshold}")
        self._slack, self._threshold = slack, threshold
        self._sums = np.zeros((2, series))
        self._ages = np.zeros((2, series), np.int64)

    def update(self, z: ArrayLike, lanes: slice | NDArray[np.int64] = slice(None)) -> NDArray[np.bool_]:
        """Feed one sample to each of the `lanes` (default: all series), z [lanes]; return which are in
        alarm."""
        values = np.asarray(z, np.float64)
        sums, ages = self._sums[:, lanes], self._ages[:, lanes]
        if values.shape != sums.shape[1:]:
            raise ValueError(f"expected {sums.shape[1:]}, got shape {values.shape}")
        moved = np.maximum(sums + np.stack((values, -values)) - self._slack, 0.0)
        read = values == values
        ages = self._ages[:, lanes] = np.where(read, np.where(moved > 0.0, ages + 1, 0), ages)
        sums = self._sums[:, lanes] = np.where(read, moved, sums)
        return np.asarray(sums.max(axis=0) > self._threshold)

    def age(self, series: int) -> int:
        """Samples since the larger of the two sums last stood at zero."""
        return int(self._ages[self._sums[:, series].argmax(), series])

    def reset(self, series: int | NDArray[np.int64]) -> None:
        """Set the sums of one series, or several, to zero."""
        self._sums[:, series] = 0.0
        self._ages[:, series] = 0
