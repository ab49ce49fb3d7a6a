"""Increases of counters between the samples of one node: per instance, in event time, with resets seen."""

from dataclasses import dataclass

import numpy as np

from slowrank.telemetry.schema import MISSING_INT
from streams.arrays import Array, FloatArray

# dcgm-exporter writes 9223372036854775794 for "not supported"; no real counter comes near.
_IMPLAUSIBLE = 2**62


@dataclass(frozen=True, slots=True)
class Increase:
    """``delta`` and ``seconds`` [counters, instances] since each counter was last read.

    Both are NaN where it was not read now or never before. ``reset`` marks a counter that went back; its
    ``delta`` is NaN: what happened around a reset is unknown and must not look like a spike.
    """

    delta: FloatArray
    seconds: FloatArray
    reset: "np.typing.NDArray[np.bool_]"


class Counters:
    """Remembers the last reading of every counter of every instance."""

    def __init__(self) -> None:
        self._ids: tuple[str, ...] = ()
        self._value = np.empty((0, 0), np.int64)
        self._ts = np.empty((0, 0))

    def update(self, ts: float, ids: tuple[str, ...], values: Array) -> Increase:
        """Take the readings [counters, instances] of one sample, in the order of ``ids``."""
        if ids != self._ids or len(values) != len(self._value):
            self._align(ids, len(values))
        read = (values != MISSING_INT) & (np.abs(values) < _IMPLAUSIBLE)
        known = read & (self._value != MISSING_INT)
        difference = np.where(known, values - self._value, 0)
        reset = difference < 0
        usable = known & ~reset
        delta = np.where(usable, difference.astype(np.float64), np.nan)
        seconds = np.where(usable, ts - self._ts, np.nan)
        self._value = np.where(read, values, self._value)
        self._ts = np.where(read, ts, self._ts)
        return Increase(delta, seconds, reset)

    def forget(self) -> None:
        """Start anew: the next sample has no increases."""
        self._ids = ()
        self._align((), 0)

    def _align(self, ids: tuple[str, ...], counters: int) -> None:
        value = np.full((counters, len(ids)), MISSING_INT, np.int64)
        ts = np.full((counters, len(ids)), np.nan)
        if len(self._value) == counters:
            before = {name: i for i, name in enumerate(self._ids)}
            kept = [(i, before[name]) for i, name in enumerate(ids) if name in before]
            for i, j in kept:
                value[:, i], ts[:, i] = self._value[:, j], self._ts[:, j]
        self._ids, self._value, self._ts = ids, value, ts
