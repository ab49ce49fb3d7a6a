"""Ports that send slower than data is queued, by the time that data waits in them."""

from collections.abc import Mapping

import numpy as np

from detectors.node.port_wait import APART, PortWaitBank
from slowrank.telemetry import Evidence
from slowrank.telemetry.schema import Owner
from streams.columns import Mask
from streams.debounce import ConditionBank, Debounce, Key
from streams.node.batch import Batch, Shape
from streams.node.conditions import observe
from streams.node.config import NodeConfig
from streams.node.detector import Found, Increases, Origin
from streams.node.rules.counter_rules import Symptom
from streams.suspicions import Claim, Location

WAIT, SENT = "nic.port.xmit_wait_ticks_total", "nic.port.tx_bytes_total"

_WAITS = Symptom("link.nic_slow", "nic", "warning", 2.0)
_WAITS_ON = Symptom("link.nic_slow", "nic", "warning", 3.0, alone=True)

# A wait of half a minute opens a finding alone. Chosen: colliding flows make a port wait too, but only for
# the collectives of a step or two, ten times shorter.
_RULES = ((_WAITS, Debounce(hold=10.0)), (_WAITS_ON, Debounce(hold=30.0)))


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
        """Learn the waits of the batch; return the ports that wait alone."""
        for k in batch.left_jobs:
            self.restart(int(batch.index[k]))
        ports = increases["nic"]
        risen = np.stack([ports.of(WAIT), ports.of(SENT)])
        waits = self._bank.update(batch.rows, risen, ports.seconds_of(SENT))
        if not waits.any_long and not self._conditions.busy:
            return ()
        ratios = waits.ratios()
        slow = (ratios >= APART) & batch.in_job[:, None] & ~_narrow(batch)[:, None]
        active = {
            (k, (rule, batch.nic.ids[k][i]))
            for k, i in np.argwhere(slow).tolist()
            for rule in range(len(_RULES))
        }

        def claim(k: int, key: Key) -> Claim:
            ratio = float(ratios[k, batch.nic.ids[k].index(key[1])])
            return _claim(_RULES[key[0]][0], ratio, batch.location(k), key[1])

        return observe(self._conditions, batch, active, debounce=lambda key: _RULES[key[0]][1], claim=claim)

    def restart(self, node: int) -> None:
        """Learn the usual waits anew."""
        self._bank.reset(node)

    def forget(self, node: int) -> None:
        """Drop the conditions of a node."""
        self._conditions.forget(node)

    def carry(self, node: int, source: "PortWait", origin: Origin) -> None:
        """Take over the conditions; usual waits are learned anew."""
        self._conditions.carry(node, source._conditions, origin.row)


def _narrow(batch: Batch) -> Mask:
    """Return the nodes with a down-trained PCIe link of a GPU, [n]."""
    width, widest = batch.gpu["gpu.pcie.link_width"], batch.gpu["gpu.pcie.link_width_max"]
    return np.asarray(((width > 0) & (width < widest)).any(axis=1))


def _claim(symptom: Symptom, ratio: float, location: Location, port: str) -> Claim:
    return Claim(
        detector="port.wait" if symptom is _WAITS else "port.wait_on",
        catalogue_id="waiting_ports",
        family=symptom.family,
        kind=symptom.kind,
        subject=location.nic(port),
        weight=symptom.weight,
        score=max(1.0, min(10.0, ratio / APART)),
        overwhelming=symptom.overwhelming,
        evidence=(
            Evidence(
                metric=WAIT,
                unit="1",
                detector="port.wait",
                value=round(ratio, 3),
                note="times as long a wait for each byte as usual here and on the node's other ports",
            ),
        ),
        severity=symptom.severity,
        note="data waits in this port alone",
    )
