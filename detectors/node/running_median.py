"""What is usual for a gauge: the median of its recent means, over many lanes, each at its own time."""

import numpy as np
import numpy.typing as npt

from detectors.robust import nan_median

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.intp]
Rows = slice | Ints
"""Rows of a bank: a slice where they are neighbours, which copies nothing; else indexes."""


class RunningMedian:
    """Per lane and channel the median of the last ``slots`` means of ``every`` seconds, NaN before ``least``.

    Means of several seconds and not samples are kept, because what is sampled once a second beats with a
    step of a few seconds. A NaN is left out of its mean; a lane that gets no values keeps its median.

    >>> usual = RunningMedian(1, 1, every=10.0, slots=8, least=2)
    >>> for second in range(31):
    ...     usual.update(np.array([0]), np.array([float(second)]), np.array([[500.0 + second % 2]]))
    >>> float(usual.value[0, 0])
    500.5
    """

    def __init__(
        self, lanes: int, channels: int, *, every: float = 10.0, slots: int = 32, least: int = 3
    ) -> None:
        if every <= 0 or not 1 <= least <= slots:
            raise ValueError(f"need every > 0 and 1 <= least <= slots, got {every}, {least} and {slots}")
        self._every, self._least = every, least
        self.value: Floats = np.full((lanes, channels), np.nan)
        self._ring = np.full((lanes, channels, slots), np.nan)
        self._sum, self._count = np.zeros((lanes, channels)), np.zeros((lanes, channels))
        self._began = np.full(lanes, np.nan)
        self._slot = np.zeros(lanes, np.intp)

    def update(self, lanes: Rows, ts: Floats, x: Floats) -> None:
        """Take ``x`` [n, channels] of the distinct ``lanes`` [n] at their event times ``ts`` [n], seconds."""
        began = self._began[lanes]
        due = ts - began >= self._every
        if due.any():
            self._close(np.arange(len(self._began))[lanes][due])
        self._began[lanes] = np.where(due | np.isnan(began), ts, began)
        read = np.isfinite(x)
        self._sum[lanes] += np.where(read, x, 0.0)
        self._count[lanes] += read

    def reset(self, lanes: Rows) -> None:
        """Forget everything of some lanes."""
        self.value[lanes], self._ring[lanes], self._began[lanes] = np.nan, np.nan, np.nan
        self._sum[lanes], self._count[lanes], self._slot[lanes] = 0.0, 0.0, 0

    def _close(self, lanes: Ints) -> None:
        count = self._count[lanes]
        mean = np.where(count > 0, self._sum[lanes] / np.maximum(count, 1.0), np.nan)
        self._ring[lanes, :, self._slot[lanes]] = mean
        self._slot[lanes] = (self._slot[lanes] + 1) % self._ring.shape[2]
        self._sum[lanes], self._count[lanes] = 0.0, 0.0
        self.value[lanes] = nan_median(self._ring[lanes], axis=2, least=self._least)
