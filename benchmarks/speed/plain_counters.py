"""Counters of one node, device by device: the oracle of ``streams.node.counters.CounterBank``."""

from dataclasses import dataclass

import numpy as np

from slowrank.telemetry.schema import MISSING_INT
from streams.columns import Array, FloatArray, Mask
from streams.node.counters import plausible


@dataclass(frozen=True, slots=True)
class Rise:
    """``delta`` and ``seconds`` [counters, instances] since each counter was last read, NaN where that is not
    known; ``reset`` marks a counter that went back."""

    delta: FloatArray
    seconds: FloatArray
    reset: Mask


class Counters:
    """Remembers the last reading of every counter of every instance of one node."""

    def __init__(self) -> None:
        self._ids: tuple[str, ...] = ()
        self._value = np.empty((0, 0), np.int64)
        self._ts = np.empty((0, 0))

    def update(self, ts: float, ids: tuple[str, ...], values: Array) -> Rise:
        """Take the readings [counters, instances] of one sample, in the order of ``ids``."""
        if ids != self._ids or len(values) != len(self._value):
            self._align(ids, len(values))
        read = plausible(values)
        known = read & (self._value != MISSING_INT)
        difference = np.where(known, values - self._value, 0)
        reset = difference < 0
        usable = known & ~reset
        delta = np.where(usable, difference.astype(np.float64), np.nan)
        seconds = np.where(usable, ts - self._ts, np.nan)
        self._value = np.where(read, values, self._value)
        self._ts = np.where(read, ts, self._ts)
        return Rise(delta, seconds, reset)

    def _align(self, ids: tuple[str, ...], counters: int) -> None:
        value = np.full((counters, len(ids)), MISSING_INT, np.int64)
        ts = np.full((counters, len(ids)), np.nan)
        if len(self._value) == counters:
            before = {name: i for i, name in enumerate(self._ids)}
            kept = [(i, before[name]) for i, name in enumerate(ids) if name in before]
            for i, j in kept:
                value[:, i], ts[:, i] = self._value[:, j], self._ts[:, j]
        self._ids, self._value, self._ts = ids, value, ts
