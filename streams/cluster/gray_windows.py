"""Minute means of the nodes of a cluster, gathered by minute and compared with each other."""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from detectors.peers.peers import peer_scores
from detectors.robust import nan_median
from slowrank.telemetry import MinuteMeans, Subject
from streams.columns import FloatArray
from streams.gray_features import LARGEST, WINDOW_SECONDS, due, means_of

# Least nodes of a minute that is compared (chosen: with fewer, one node moves the median).
MIN_NODES = 8

# A minute so far ahead of event time is dropped (chosen: it bounds what wrong clocks keep in memory).
_EARLIEST_SECONDS = 3600.0

# Smallest scatter between nodes, as a share of the usual reading and in the metric's own unit: a metric that
# reads the same everywhere has none to divide by (chosen: less than 1 % is no sign).
_RELATIVE_FLOOR, _ABSOLUTE_FLOOR = 0.01, 1e-3


@dataclass(frozen=True, slots=True)
class Window:
    """One minute of a cluster: robust z [nodes, features] of each node against all of them, by name."""

    start: float
    cluster: str
    nodes: tuple[Subject, ...]
    z: FloatArray


class Windows:
    """Gathers the minutes of nodes, in any order and with any repeats.

    A window holds the nodes whose minute has come when it is due; later ones are counted in ``ignored`` and
    change nothing.
    """

    def __init__(self) -> None:
        self._open: dict[tuple[float, str], dict[str, MinuteMeans]] = {}
        self._now = -math.inf
        self.ignored: Counter[str] = Counter()

    def add(self, minute: MinuteMeans) -> None:
        """Take a node's minute; of two the one of more samples counts."""
        start = minute.start
        if start % WINDOW_SECONDS:
            self.ignored["malformed"] += 1
        elif due(start) <= self._now:
            self.ignored["late"] += 1
        elif start > self._now + _EARLIEST_SECONDS and math.isfinite(self._now):
            self.ignored["early"] += 1
        else:
            nodes = self._open.setdefault((start, minute.cluster), {})
            known = nodes.get(minute.node)
            if known is None or minute.samples > known.samples:
                nodes[minute.node] = minute

    def due(self, event_time: float) -> Iterator[Window]:
        """Yield in order the windows that are due by ``event_time`` and have enough nodes."""
        self._now = max(self._now, event_time)
        for start, cluster in sorted(key for key in self._open if due(key[0]) <= self._now):
            nodes = self._open.pop((start, cluster))
            if len(nodes) >= MIN_NODES:
                minutes = [nodes[name] for name in sorted(nodes)]
                means = np.array([means_of(row) for row in minutes])
                z = _peer_z(np.where(np.abs(means) <= LARGEST, means, np.nan))
                yield Window(start, cluster, tuple(row.subject for row in minutes), z)


def _peer_z(means: FloatArray) -> FloatArray:
    """Return the robust z of ``means`` [nodes, features] feature by feature."""
    usual = np.abs(nan_median(means))
    floors = np.nan_to_num(np.maximum(_RELATIVE_FLOOR * usual, _ABSOLUTE_FLOOR), nan=1.0)
    readings = means.T
    return np.asarray(peer_scores(readings, floors=floors).z(readings).T, np.float64)
