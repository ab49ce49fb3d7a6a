"""Ports in which data waits longer per byte than usual, and than in the other ports of the node."""

import numpy as np
import numpy.typing as npt

from detectors.node.recent_usual import (
    CALM,
    LEARN_SECONDS,
    RECENT_SECONDS,
    USUAL_SECONDS,
    RecentAndUsual,
    Rows,
)

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

# Ratio at which a port is slow, to its own usual wait and to the other ports now. Chosen: several ports of a
# congested network wait up to a few times as long; a port at half its speed waits far more than ten times.
APART = 10.0

# Per second. Below, a port hardly waits, or hardly sends: 1,000 ticks are no load on any adapter, and 10 MB
# is 1 in 5,000 of a 400 Gb/s port. Chosen.
LEAST_TICKS, LEAST_BYTES = 1000.0, 1e7


class PortWaitBank:
    """How many times longer than usual data waits in each port of many nodes, port against port.

    In a collective all ports move less when one is slow, so byte rates do not show which. Adapters count the
    ticks in which data was ready and could not be sent (InfiniBand ``PortXmitWait``); ticks per byte rise on
    the slow port alone. Congestion and heavier load raise several ports together and name none.

    With ticks w and bytes b of one port, decayed sums (``RecentAndUsual``: 5 s recent, 300 s usual) give

        wait  = Σ w / Σ b                                           [ticks per byte]
        ratio = recent wait / max(usual wait of the port,
                                  greatest recent wait of the node's other ports,
                                  1,000 ticks/s at the present byte rate)

    A port counts from 10 MB/s on. Only calm samples are learned: recent wait at most 3 times the usual, or
    fewer than 60 s learned. At least two ports of the node must count, else there is nothing to compare with.
    """

    def __init__(self, nodes: int, ports: int) -> None:
        self._sums = RecentAndUsual(nodes, ports)
        self._learned = np.zeros((nodes, ports))

    def update(self, nodes: Rows, risen: Floats, seconds: Floats) -> "PortWaits":
        """Process ``risen`` [2, n, ports]: ticks and bytes in ``seconds`` [n, ports]; NaN = not read."""
        read = np.isfinite(risen[0] + risen[1])
        seconds, risen = np.where(read, seconds, 0.0), np.where(read, risen, 0.0)
        recent, usual = map(_PerByte, self._sums.add(nodes, risen, seconds))
        learned = self._learned[nodes]
        calm = recent.known & ((learned < LEARN_SECONDS) | (recent.waits <= CALM * usual.waits))
        # Linear: samples are far closer together than this time constant, and after a longer gap nothing is
        # left.
        self._sums.learn(nodes, calm * risen, np.maximum(1.0 - calm * seconds / USUAL_SECONDS, 0.0))
        self._learned[nodes] += calm * seconds
        return PortWaits(recent, usual, recent.known & (self._learned[nodes] >= LEARN_SECONDS))

    def reset(self, node: int) -> None:
        """Learn a node anew."""
        self._sums.reset(node)
        self._learned[node] = 0.0


class PortWaits:
    """The waits of the ports of a batch: recent, usual, and which of them are ``known`` [n, ports]."""

    def __init__(self, recent: "_PerByte", usual: "_PerByte", known: Bools) -> None:
        self._recent, self._usual, self._known = recent, usual, known

    @property
    def any_long(self) -> bool:
        """Whether any port may reach ``APART``: a cheap test for the usual case."""
        return bool((self._recent.waits > APART * self._usual.waits).any())

    def ratios(self) -> Floats:
        """Return the ratios [n, ports]; 0 where a wait is not known or has no other port to compare with."""
        judged = self._known & (self._known.sum(axis=1, keepdims=True) > 1)
        # A steady rate comes to ``RECENT_SECONDS`` times itself in a decayed sum.
        least = LEAST_TICKS * RECENT_SECONDS / np.maximum(self._recent.sent, 1.0)
        others = _most_of_others(self._recent.waits)
        against = np.maximum(np.maximum(self._usual.waits, others), least)
        return np.where(judged, self._recent.waits / against, 0.0)


class _PerByte:
    """Ticks of waiting per byte, from decayed sums [ticks, bytes] of ports; 0 where too little was sent."""

    def __init__(self, sums: Floats) -> None:
        self.sent = sums[1]
        self.known: Bools = self.sent >= LEAST_BYTES * RECENT_SECONDS
        self.waits: Floats = self.known * sums[0] / np.maximum(self.sent, 1.0)


def _most_of_others(x: Floats) -> Floats:
    """Return for each port the greatest value [n, ports] among the others of its node.

    >>> _most_of_others(np.array([[1.0, 5.0, 3.0]])).tolist()
    [[5.0, 3.0, 5.0]]
    """
    if x.shape[1] < 2:
        return np.zeros_like(x)
    second, first = np.partition(x, -2, axis=1)[:, -2:].T[:, :, None]
    return np.asarray(np.where(x == first, second, first))
