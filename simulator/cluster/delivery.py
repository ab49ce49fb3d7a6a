"""Delivery of records from the exporters, with delays, duplicates and losses."""

from collections.abc import Iterable, Iterator

import numpy as np

from simulator.cluster.layout import ClusterSpec
from simulator.faults.fault import Fault
from simulator.faults.hardware import nodes_of
from slowrank.telemetry import Record

Sent = tuple[float, Record]


class Delivery:
    """Delay and duplicate the records of nodes while a fault of delivery is on; times are since the start.

    Each record of any node is lost with probability ``lost_share`` of the cluster.
    """

    def __init__(self, spec: ClusterSpec, faults: Iterable[Fault], rng: np.random.Generator) -> None:
        self._lost_share = spec.lost_share
        self._rng = rng
        self._spec = spec
        self._faults: list[tuple[Fault, set[str]]] = []
        self._reached: set[str] = set()
        self._under_way: list[Sent] = []
        for fault in faults:
            self.add(fault)

    def add(self, fault: Fault) -> None:
        """Add a fault, unless it is not one of delivery."""
        if fault.kind in ("late_batch", "duplicate_batch"):
            nodes = {self._spec.node_name(node) for node in nodes_of(self._spec, fault)}
            self._faults.append((fault, nodes))
            self._reached |= nodes

    def arrivals(self, sent: list[Sent], until: float) -> Iterator[Record]:
        """Yield the records that arrive before ``until``, in order, from ``sent`` and from earlier calls."""
        if self._lost_share:
            arrived = self._rng.random(len(sent)) >= self._lost_share
            sent = [pair for pair, here in zip(sent, arrived, strict=True) if here]
        if self._faults:
            sent = self._under_way + [copy for pair in sent for copy in self._copies(*pair)]
            self._under_way = [pair for pair in sent if pair[0] >= until]
            sent = [pair for pair in sent if pair[0] < until]
        yield from (record for _, record in sorted(sent, key=lambda pair: pair[0]))

    def _copies(self, t: float, record: Record) -> Iterator[Sent]:
        if record.node not in self._reached:
            yield t, record
            return
        late = again = 0.0
        for fault, nodes in self._faults:
            if record.node in nodes and fault.severity(t):
                if fault.kind == "late_batch":
                    # Records gather in a spool, which is sent every `magnitude` seconds.
                    late = max(late, fault.magnitude - (t - fault.onset) % fault.magnitude)
                else:
                    again = max(again, fault.magnitude)
        yield t + late, record
        if again:
            yield t + late + again, record
