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
from streams.node.detector import Found, Increases, Origin
from streams.suspicions import Claim, Location

RETRANSMITTED = "host.tcp.retransmitted_segments_total"
OUT_OF_ORDER = "host.tcp.out_of_order_segments_total"
SENT, RECEIVED = "host.tcp.sent_segments_total", "host.tcp.received_segments_total"
_COUNTERS = (RETRANSMITTED, OUT_OF_ORDER, SENT, RECEIVED)

# Ten times the rate at which Pingmesh alarms; healthy networks lose 1e-5 to 1e-4 (Guo et al., SIGCOMM 2015,
# section 4.3).
LOSS = 0.01

# In the window. Chosen: of fewer a ratio is chance; Poisson counts of 20 are right to a quarter.
LEAST_LOST = 20.0

# Chosen: ten samples, and three of them until it opens; a burst of incast is shorter.
WINDOW_SECONDS = 10.0
_DEBOUNCE = Debounce(hold=30.0)
_LOSES: Key = (0, "")


class TcpLoss:
    """Raises nodes that lose a hundredth of the TCP segments both to and from them.

    Where one direction alone loses, the other end of a connection shows as much: W retransmits what X misses.
    What a node retransmits of what it sent, and receives out of order of what it received, are both high only
    where its own link or stack loses. Sums decay over ``WINDOW_SECONDS``.
    """

    counters: Mapping[Owner, tuple[str, ...]] = {"host": _COUNTERS}

    def __init__(self, nodes: int) -> None:
        self._sums = np.zeros((nodes, len(_COUNTERS)))
        self._conditions = ConditionBank(nodes)

    def update(self, batch: Batch, increases: Increases) -> Found:
        """Add the increases of the batch to the windows; return the nodes that lose segments."""
        host = increases["host"]
        risen = np.nan_to_num(host.of_all(_COUNTERS)[:, :, 0])
        seconds = np.nan_to_num(host.seconds_of(SENT), nan=np.inf)
        self._sums[batch.rows] = self._sums[batch.rows] * np.exp(-seconds / WINDOW_SECONDS) + risen
        sums = self._sums[batch.rows]
        loss = _both_ways(sums)
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
        self._sums[node] = source._sums[origin.row]
        self._conditions.carry(node, source._conditions, origin.row)


def tcp_loss(shape: Shape, nodes: int, config: NodeConfig) -> TcpLoss | None:
    """Return the detector; None where the schema lacks the counters."""
    known = SAMPLE_SCHEMAS[shape.schema].host.names
    return TcpLoss(nodes) if set(_COUNTERS) <= set(known) else None


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
