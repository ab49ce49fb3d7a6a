"""Nodes that lose TCP segments in both directions, by what they retransmit and receive out of order."""

from collections.abc import Mapping

import numpy as np

from slowrank.telemetry import Evidence
from slowrank.telemetry.schema import SAMPLE_SCHEMAS, Owner
from streams.columns import FloatArray
from streams.debounce import ConditionBank, Debounce, Key
from streams.node.batch import Batch, Shape
from streams.node.conditions import observe
from streams.node.config import NodeConfig
from streams.node.counters import Increase
from streams.node.detector import Found, Increases, Origin
from streams.suspicions import Claim, Location

RETRANSMITTED = "host.tcp.retransmitted_segments_total"
OUT_OF_ORDER = "host.tcp.out_of_order_segments_total"
SENT, RECEIVED = "host.tcp.sent_segments_total", "host.tcp.received_segments_total"
_COUNTERS = (RETRANSMITTED, OUT_OF_ORDER, SENT, RECEIVED)

# Ten times the rate at which Pingmesh alarms; healthy networks lose 1e-5 to 1e-4 (Guo et al., SIGCOMM 2015,
# section 4.3).
LOSS = 0.01

# In the window. Of fewer a ratio is chance: where a third of ``LOSS`` is lost, 4 segments in so many that 12
# would be ``LOSS``, Poisson counts reach 12 in one window of a thousand, each direction by itself.
LEAST_LOST = 12.0

# Chosen: ten samples, and three of them until it opens; a burst of incast is shorter.
WINDOW_SECONDS = 10.0
_DEBOUNCE = Debounce(hold=30.0)
_LOSES: Key = (0, "")


class TcpLoss:
    """Raises nodes that lose a hundredth of the TCP segments both to and from them.

    Where one direction alone loses, the other end of a connection shows as much: W retransmits what X misses.
    What a node retransmits of what it sent, and receives out of order of what it received, are both high
    where its own link or stack loses, and where much of its traffic goes to and comes from one node that
    does: then both are raised, that node with the larger share. Sums decay over ``WINDOW_SECONDS``. In a
    block whose schema lacks the counters nothing is raised, and what was is cleared.
    """

    def __init__(self, shape: Shape, nodes: int, config: NodeConfig) -> None:
        known = set(_COUNTERS) <= set(SAMPLE_SCHEMAS[shape.schema].host.names)
        self.counters: Mapping[Owner, tuple[str, ...]] = {"host": _COUNTERS} if known else {}
        self._sums = np.zeros((nodes, len(_COUNTERS)))
        self._conditions = ConditionBank(nodes)

    def update(self, batch: Batch, increases: Increases) -> Found:
        """Add the increases of the batch to the windows; return the nodes that lose segments."""
        if self.counters:
            self._add(batch, increases["host"])
        loss = _both_ways(self._sums[batch.rows])
        active = {(int(k), _LOSES) for k in np.flatnonzero(loss >= LOSS)}

        def claim(k: int, _key: Key) -> Claim:
            return _claim(batch.location(k), float(loss[k]))

        return observe(self._conditions, batch, active, debounce=lambda _: _DEBOUNCE, claim=claim)

    def restart(self, node: int) -> None:
        """Empty the window."""
        self._sums[node] = 0.0

    def forget(self, node: int) -> None:
        """Drop the condition of a node."""
        self._conditions.forget(node)

    def carry(self, node: int, source: "TcpLoss", origin: Origin) -> None:
        """Take over window and condition."""
        self._sums[node] = source._sums[origin.row] if self.counters else 0.0
        self._conditions.carry(node, source._conditions, origin.row)

    def _add(self, batch: Batch, host: Increase) -> None:
        risen = np.nan_to_num(host.of_all(_COUNTERS)[:, :, 0])
        seconds = np.nan_to_num(host.seconds_of(SENT), nan=np.inf)
        # Of a longer time the last window counts, as if it was like the rest.
        risen *= np.minimum(WINDOW_SECONDS / seconds, 1.0)
        self._sums[batch.rows] = self._sums[batch.rows] * np.exp(-seconds / WINDOW_SECONDS) + risen


def _both_ways(sums: FloatArray) -> FloatArray:
    """Return the smaller of both shares of lost segments, [n]; 0 where too few were lost to say."""
    lost, passed = sums[:, :2], sums[:, 2:]
    share = np.where(lost >= LEAST_LOST, lost / np.maximum(passed, 1.0), 0.0)
    return np.asarray(share.min(axis=1))


def _claim(location: Location, loss: float) -> Claim:
    return Claim(
        detector="tcp.loss",
        catalogue_id="tcp_loss",
        family="nic",
        kind="link.tcp_loss",
        subject=location.whole_node(),
        weight=3.0,
        overwhelming=True,
        evidence=(
            Evidence(
                metric=RETRANSMITTED,
                unit="1",
                detector="tcp.loss",
                value=round(loss, 4),
                note="of the segments sent; at least as many of those received were out of order",
            ),
        ),
        severity="warning",
        note="TCP segments to and from this node are lost",
    )
