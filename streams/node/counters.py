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
    """How much ``metrics`` of n nodes rose since each was last read.

    ``delta`` [n, metrics, instances] is NaN where a counter was not read now or never before, and where it
    went back: what happened around a reset is unknown and must not look like a spike. ``now`` [n] and
    ``since`` [n, metrics, instances] are the event times between which it rose.
    """

    metrics: tuple[str, ...]
    delta: FloatArray
    now: FloatArray
    since: FloatArray

    def of_all(self, metrics: tuple[str, ...]) -> FloatArray:
        """Return the increases of some counters, [n, counters, instances]."""
        first = self.metrics.index(metrics[0]) if metrics else 0
        if self.metrics[first : first + len(metrics)] == metrics:
            # Neighbours in the bank: a view.
            return self.delta[:, first : first + len(metrics)]
        return np.asarray(self.delta[:, [self.metrics.index(metric) for metric in metrics]])

    def of(self, metric: str) -> FloatArray:
        """Return the increase of one counter, [n, instances]."""
        return np.asarray(self.delta[:, self.metrics.index(metric)])

    def seconds_of(self, metric: str) -> FloatArray:
        """Return the seconds since one counter was last read, [n, instances]; NaN: never."""
        return np.asarray(self.now[:, None] - self.since[:, self.metrics.index(metric)])

    def rate(self, metric: str) -> FloatArray:
        """Return the increase of one counter per second, [n, instances]."""
        return self.of(metric) / self.seconds_of(metric)


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
        # A copy: the times are written below.
        before, since = self._value[nodes], np.array(self._ts[nodes])
        read = plausible(values)
        # Where either was not read this wraps around, and is not used.
        difference = values - before
        known = read & (before != MISSING_INT) & (difference >= 0)
        delta = np.where(known, difference, np.nan)
        kept = before if there.all() else np.where(there[:, None], before, MISSING_INT)
        self._value[nodes] = np.where(read, values, kept)
        self._ts[nodes] = np.where(read, ts[:, None, None], since)
        return Increase(self._metrics, delta, ts, since)

    def forget(self, node: int) -> None:
        """Start one node anew: its next sample has no increases."""
        # Without a value before nothing is usable, so that the times may stay.
        self._value[node] = MISSING_INT


def plausible(values: Array) -> Mask:
    """Return where a counter was read: neither missing nor a sentinel of "not supported"."""
    return np.asarray((values > -_IMPLAUSIBLE) & (values < _IMPLAUSIBLE))
