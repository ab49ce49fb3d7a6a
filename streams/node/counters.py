"""Increases of counters between the samples of a node, by instance, in event time; resets are detected."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from slowrank.telemetry.schema import MISSING_INT
from streams.columns import Array, FloatArray, Mask, Rows

# dcgm-exporter writes 9223372036854775794 for "not supported"; no real counter comes near.
_IMPLAUSIBLE = 2**62


@dataclass(frozen=True, slots=True)
class Increase:
    """``delta`` and ``seconds`` [..., counters, instances] since each counter was last read.

    Both are NaN where it was not read now or never before. ``reset`` marks a counter that went back; its
    ``delta`` is NaN: what happened around a reset is unknown and must not look like a spike.
    """

    delta: FloatArray
    seconds: FloatArray
    reset: Mask
    metrics: tuple[str, ...] = ()

    def of_all(self, metrics: tuple[str, ...]) -> FloatArray:
        """Return the increases of some counters, [nodes, counters, instances]."""
        first = self.metrics.index(metrics[0]) if metrics else 0
        if self.metrics[first : first + len(metrics)] == metrics:
            # Neighbours in the bank: a view.
            return self.delta[:, first : first + len(metrics)]
        return np.asarray(self.delta[:, [self.metrics.index(metric) for metric in metrics]])

    def of(self, metric: str) -> FloatArray:
        """Return the increase of one counter, [nodes, instances]."""
        return np.asarray(self.delta[:, self.metrics.index(metric)])

    def seconds_of(self, metric: str) -> FloatArray:
        """Return the seconds in which one counter increased so, [nodes, instances]."""
        return np.asarray(self.seconds[:, self.metrics.index(metric)])

    def rate(self, metric: str) -> FloatArray:
        """Return the increase of one counter per second, [nodes, instances]."""
        i = self.metrics.index(metric)
        return np.asarray(self.delta[:, i] / self.seconds[:, i])


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
        read = plausible(values)
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


class CounterBank:
    """The last reading of the counters of many nodes: [nodes, counters, instances], each at its own time."""

    def __init__(self, nodes: int, metrics: tuple[str, ...], instances: int) -> None:
        self._metrics = metrics
        self._value = np.full((nodes, len(metrics), instances), MISSING_INT, np.int64)
        self._ts = np.full(self._value.shape, np.nan)

    def update(self, nodes: Rows, ts: FloatArray, columns: Mapping[str, Array], there: Mask) -> Increase:
        """Take the columns [n, instances] of some nodes at their event times ``ts`` [n].

        An instance that is not ``there`` [n, instances] starts anew when it comes back.
        """
        values = np.stack([columns[name] for name in self._metrics], axis=1)
        before, since = self._value[nodes], self._ts[nodes]
        read = plausible(values)
        usable = read & (before != MISSING_INT)
        # Where either was not read this wraps around, and is not usable.
        difference = values - before
        reset = usable & (difference < 0)
        usable &= ~reset
        now = ts[:, None, None]
        delta = np.where(usable, difference, np.nan)
        seconds = np.where(usable, now - since, np.nan)
        kept = before if there.all() else np.where(there[:, None], before, MISSING_INT)
        self._value[nodes], self._ts[nodes] = np.where(read, values, kept), np.where(read, now, since)
        return Increase(delta, seconds, reset, self._metrics)

    def forget(self, node: int) -> None:
        """Start one node anew: its next sample has no increases."""
        # Without a value before nothing is usable, so that the times may stay.
        self._value[node] = MISSING_INT


def plausible(values: Array) -> Mask:
    """Return where a counter was read: neither missing nor a sentinel of "not supported"."""
    return np.asarray((values > -_IMPLAUSIBLE) & (values < _IMPLAUSIBLE))
