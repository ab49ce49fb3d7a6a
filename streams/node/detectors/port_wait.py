"""Ports that send slower than data is queued, by the time that data waits in them."""

from collections.abc import Mapping

import numpy as np

from detectors.node.port_wait import APART, PortWaitBank
from slowrank.telemetry import Evidence, Suspicion
from slowrank.telemetry.schema import Owner
from streams.columns import Mask
from streams.debounce import ConditionBank, Key, Timing
from streams.node.batch import Batch, Shape
from streams.node.config import NodeConfig
from streams.node.detector import Found, Increases, Origin
from streams.node.rules.rule_engine import at
from streams.node.rules.rule_tables import Indication
from streams.suspicions import Claim, Place

WAIT, SENT = "nic.port.xmit_wait_ticks_total", "nic.port.tx_bytes_total"

_WAITS = Indication("link.nic_slow", "nic", "warning", 2.0)
_WAITS_ON = Indication("link.nic_slow", "nic", "warning", 3.0, alone=True)
_RULES = ((_WAITS, Timing(hold=10.0)), (_WAITS_ON, Timing(hold=30.0)))
"""A wait of half a minute opens a finding alone. Chosen: colliding flows make a port wait too, but only for
the collectives of a step or two, ten times shorter."""


class PortWait:
    """Raises ports whose data waits at least ten times as long as usual there and in the node's others.

    Only nodes in a job are tested, and none with a down-trained PCIe link, which makes a port wait too. The
    usual wait is learned anew with every job.
    """

    counters: Mapping[Owner, tuple[str, ...]] = {"nic": (WAIT, SENT)}

    def __init__(self, shape: Shape, nodes: int, config: NodeConfig) -> None:
        self._bank = PortWaitBank(nodes, shape.nics)
        self._conditions = ConditionBank(nodes)

    def update(self, batch: Batch, increases: Increases) -> Found:
        """Learn the waits of the batch; yield the ports that wait alone."""
        for k in batch.left_jobs:
            self.restart(int(batch.index[k]))
        ports = increases["nic"]
        risen = np.stack([ports.of(WAIT), ports.of(SENT)])
        waits = self._bank.update(batch.rows, risen, ports.seconds_of(SENT))
        if not waits.any_long and not self._conditions.busy:
            return
        ratios = waits.ratios()
        slow = (ratios >= APART) & batch.in_job[:, None] & ~_narrow(batch)[:, None]
        active = {
            (k, (rule, batch.nic.ids[k][i]))
            for k, i in np.argwhere(slow).tolist()
            for rule in range(len(_RULES))
        }
        for k, keys in self._conditions.due(batch.index, active):
            for key in sorted(keys):
                ratio = float(ratios[k, batch.nic.ids[k].index(key[1])])
                for s in self._observe(batch, k, key, ratio, holds=(k, key) in active):
                    yield k, s

    def restart(self, node: int) -> None:
        """Learn the usual waits anew."""
        self._bank.reset(node)

    def forget(self, node: int) -> None:
        """Drop the conditions of a node."""
        self._conditions.forget(node)

    def carry(self, node: int, source: "PortWait", origin: Origin) -> None:
        """Take over the conditions; usual waits are learned anew."""
        self._conditions.carry(node, source._conditions, origin.row)

    def _observe(self, batch: Batch, k: int, key: Key, ratio: float, *, holds: bool) -> list[Suspicion]:
        ts, (indication, timing) = float(batch.ts[k]), _RULES[key[0]]
        make = at(lambda: _claim(indication, ratio, batch.place(k), key[1]), ts)
        return self._conditions.observe(int(batch.index[k]), key, holds, ts, timing=timing, make=make)


def _narrow(batch: Batch) -> Mask:
    """Return the nodes with a down-trained PCIe link of a GPU, [n]."""
    width, widest = batch.gpu["gpu.pcie.link_width"], batch.gpu["gpu.pcie.link_width_max"]
    return np.asarray(((width > 0) & (width < widest)).any(axis=1))


def _claim(indication: Indication, ratio: float, place: Place, port: str) -> Claim:
    return Claim(
        detector="port.wait" if indication is _WAITS else "port.wait_on",
        catalogue_id="waiting_ports",
        family=indication.family,
        kind=indication.kind,
        subject=place.nic(port),
        weight=indication.weight,
        score=max(1.0, min(10.0, ratio / APART)),
        overwhelming=indication.overwhelming,
        evidence=(
            Evidence(
                metric=WAIT,
                unit="1",
                detector="port.wait",
                value=round(ratio, 3),
                note="times as long a wait for each byte as usual here and on the node's other ports",
            ),
        ),
        severity=indication.severity,
        note="data waits in this port alone",
    )
