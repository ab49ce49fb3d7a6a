"""A node detector as a contributor would write it: one file, and one line in ``NODE_DETECTORS``."""

from collections.abc import Mapping
from functools import partial

import numpy as np

from slowrank.telemetry.schema import Owner
from streams.debounce import ConditionBank, Debounce
from streams.node.batch import Batch, Shape
from streams.node.conditions import at
from streams.node.config import NodeConfig
from streams.node.detector import Found, Increases, Origin
from streams.suspicions import Claim, Location

PACKETS = "nic.port.rx_packets_total"
HOLD = Debounce(hold=5.0)


class ToyDetector:
    """Raises nodes that receive more than a million packets a second."""

    counters: Mapping[Owner, tuple[str, ...]] = {"nic": (PACKETS,)}

    def __init__(self, shape: Shape, nodes: int, config: NodeConfig) -> None:
        self._conditions = ConditionBank(nodes)

    def update(self, batch: Batch, increases: Increases) -> Found:
        rate = np.nansum(increases["nic"].rate(PACKETS), axis=1)
        active = {(int(k), (0, "")) for k in np.flatnonzero(rate > 1e6)}
        for k, keys in self._conditions.due(batch.index, active):
            for key in sorted(keys):
                make = at(partial(toy_claim, batch.location(k)), float(batch.ts[k]))
                holds = (k, key) in active
                node, ts = int(batch.index[k]), float(batch.ts[k])
                for s in self._conditions.observe(node, key, holds, ts, debounce=HOLD, make=make):
                    yield k, s

    def restart(self, node: int) -> None:
        pass

    def forget(self, node: int) -> None:
        self._conditions.forget(node)

    def carry(self, node: int, source: "ToyDetector", origin: Origin) -> None:
        self._conditions.carry(node, source._conditions, origin.row)


def toy_claim(location: Location) -> Claim:
    return Claim(
        detector="toy",
        catalogue_id="counters",
        family="nic",
        kind="link.nic_errors",
        subject=location.whole_node(),
        weight=3.0,
        overwhelming=True,
        severity="warning",
        note="a packet storm",
    )
