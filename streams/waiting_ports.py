"""Ports that cannot send as fast as they are asked to, told by how long data waits in them.

In a collective all ports move less when one is slow, so bytes tell nothing. What is ready to be sent and is
not counts as waiting, and per byte it rises on the slow port alone. Where the network is congested, or the
job asks for more, several ports wait; then nobody is named.
"""

import numpy as np

from slowrank.telemetry import Evidence, Suspicion
from streams.arrays import FloatArray, Mask
from streams.batch import Batch
from streams.conditions import ConditionBank, Key, Timing
from streams.counters import Increase
from streams.hardware import Found, at
from streams.hardware_rules import Verdict
from streams.node_jobs import CALM, LEARN_SECONDS, RECENT_SECONDS, USUAL_SECONDS, NodeJobs
from streams.suspicions import Claim, Place

WAIT, SENT = "nic.port.xmit_wait_ticks_total", "nic.port.tx_bytes_total"

APART = 10.0
"""So many times what is usual for the port and what any other port of the node waits now."""

LEAST_TICKS, LEAST_BYTES = 1000.0, 1e7
"""A second; below, a port hardly waits, or hardly sends."""

_WAITS = Verdict("link.nic_slow", "nic", "warning", 2.0)
_WAITS_ON = Verdict("link.nic_slow", "nic", "warning", 3.0, alone=True)
_RULES = ((_WAITS, Timing(hold=10.0)), (_WAITS_ON, Timing(hold=30.0)))
"""Flows that collide make a port wait for a while; what lasts half a minute is told by itself."""


class WaitingPorts:
    """The waiting of all ports of a page of nodes; learnt anew with every job."""

    def __init__(self, nodes: int, ports: int) -> None:
        # Decayed sums [ticks, bytes] and the seconds learnt from: their ratios need no start value.
        self._recent = np.zeros((2, nodes, ports))
        self._usual = np.zeros((2, nodes, ports))
        self._learnt = np.zeros((nodes, ports))
        self._jobs = NodeJobs(nodes)
        self._conditions = ConditionBank(nodes)

    def update(self, batch: Batch, ports: Increase) -> Found:
        """Take a batch and what the counters of its ports rose by; tell which ports wait alone."""
        for node in self._jobs.changed(batch):
            self.restart(node)
        recent, usual = self._learn(batch, ports)
        if not (recent.waits > APART * usual.waits).any() and not self._conditions.busy:
            return
        ratio = self._times(batch, recent, usual)
        slow = (ratio >= APART) & batch.in_job[:, None] & ~_narrow(batch)[:, None]
        active = {
            (k, (rule, batch.nic_ids[k][i]))
            for k, i in np.argwhere(slow).tolist()
            for rule in range(len(_RULES))
        }
        for k, keys in self._conditions.due(batch.index, active):
            for key in sorted(keys):
                times = float(ratio[k, batch.nic_ids[k].index(key[1])])
                for s in self._observe(batch, k, key, times, holds=(k, key) in active):
                    yield k, s

    def restart(self, node: int) -> None:
        """Learn a node anew."""
        self._recent[:, node] = self._usual[:, node] = 0.0
        self._learnt[node] = 0.0

    def forget(self, node: int) -> None:
        """Drop everything of a node."""
        self.restart(node)
        self._jobs.forget(node)
        self._conditions.forget(node)

    def carry(self, node: int, source: "WaitingPorts", row: int) -> None:
        """Take over a node that was ``row`` of another bank, and what was said of it; its ports are learnt
        anew.
        """
        self._jobs.carry(node, source._jobs, row)
        self._conditions.carry(node, source._conditions, row)

    def _learn(self, batch: Batch, ports: Increase) -> "tuple[_PerByte, _PerByte]":
        """Add what the counters rose by; return how long data waits now, and how long is usual."""
        rows, seconds = batch.rows, ports.seconds_of(SENT)
        risen = np.stack([ports.of(WAIT), ports.of(SENT)])
        read = np.isfinite(risen[0] + risen[1])
        seconds, risen = np.where(read, seconds, 0.0), np.where(read, risen, 0.0)
        sums = self._recent[:, rows] = self._recent[:, rows] * np.exp(-seconds / RECENT_SECONDS) + risen
        recent, usual = _PerByte(sums), _PerByte(self._usual[:, rows])
        calm = recent.known & ((self._learnt[rows] < LEARN_SECONDS) | (recent.waits <= CALM * usual.waits))
        # Linear: samples are far closer together than this time constant, and after a longer gap nothing is
        # left.
        fading = 1.0 - calm * seconds / USUAL_SECONDS
        self._usual[:, rows] = self._usual[:, rows] * np.maximum(fading, 0.0) + calm * risen
        self._learnt[rows] += calm * seconds
        return recent, usual

    def _times(self, batch: Batch, recent: "_PerByte", usual: "_PerByte") -> FloatArray:
        """Return how many times as long as usual, and as on any other port, data waits; 0: cannot be told."""
        known = recent.known & (self._learnt[batch.rows] >= LEARN_SECONDS)
        judged = known & (known.sum(axis=1, keepdims=True) > 1)
        # A steady rate comes to ``RECENT_SECONDS`` times itself in a decayed sum.
        least = LEAST_TICKS * RECENT_SECONDS / np.maximum(recent.sent, 1.0)
        against = np.maximum(np.maximum(usual.waits, _most_of_others(recent.waits)), least)
        return np.where(judged, recent.waits / against, 0.0)

    def _observe(self, batch: Batch, k: int, key: Key, times: float, *, holds: bool) -> list[Suspicion]:
        ts, (verdict, timing) = float(batch.ts[k]), _RULES[key[0]]
        make = at(lambda: _claim(verdict, times, batch.place(k), key[1]), ts)
        return self._conditions.observe(int(batch.index[k]), key, holds, ts, timing=timing, make=make)


class _PerByte:
    """How long data waits per byte, from decayed sums [ticks, bytes] of ports; 0: too little was sent."""

    def __init__(self, sums: FloatArray) -> None:
        self.sent = sums[1]
        self.known: Mask = self.sent >= LEAST_BYTES * RECENT_SECONDS
        self.waits: FloatArray = self.known * sums[0] / np.maximum(self.sent, 1.0)


def _most_of_others(x: FloatArray) -> FloatArray:
    """Return for each port the greatest value [n, ports] among the others of its node.

    >>> _most_of_others(np.array([[1.0, 5.0, 3.0]])).tolist()
    [[5.0, 3.0, 5.0]]
    """
    if x.shape[1] < 2:
        return np.zeros_like(x)
    second, first = np.partition(x, -2, axis=1)[:, -2:].T[:, :, None]
    return np.asarray(np.where(x == first, second, first))


def _narrow(batch: Batch) -> Mask:
    """Return on which nodes a GPU's PCIe link is down-trained, [n]: a port behind one waits because of it."""
    width, widest = batch.gpu["gpu.pcie.link_width"], batch.gpu["gpu.pcie.link_width_max"]
    return np.asarray(((width > 0) & (width < widest)).any(axis=1))


def _claim(verdict: Verdict, times: float, place: Place, port: str) -> Claim:
    return Claim(
        detector="port.wait" if verdict is _WAITS else "port.wait_on",
        family=verdict.family,
        kind=verdict.kind,
        subject=place.nic(port),
        weight=verdict.weight,
        score=max(1.0, min(10.0, times / APART)),
        overwhelming=verdict.overwhelming,
        evidence=(
            Evidence(
                metric=WAIT,
                unit="1",
                detector="port.wait",
                value=round(times, 3),
                note="times as long a wait for each byte as usual here and on the node's other ports",
            ),
        ),
        severity=verdict.severity,
        note="data waits in this port alone",
    )
