"""Derived column: congestion notifications (CNPs) of a node, relative to their usual rate.

Congestion is somewhere in the network; the nodes that handle its notifications are not at fault. The usual
rate is learned by node and job, because it depends on the flows that share the node's ports.
"""

from collections.abc import Mapping

import numpy as np

from detectors.node.cnp_rate import CnpRateBank
from slowrank.telemetry.schema import Owner
from streams.columns import FloatArray
from streams.node.batch import Batch, Shape
from streams.node.config import NodeConfig
from streams.node.counters import Increase
from streams.node.detector import Increases, Origin
from streams.node.rules.state_rules import CNP_RATIO

CNP = "nic.port.cnp_handled_total"


class CnpRate:
    """Adds ``CNP_RATIO`` to the host columns; 0 where there is no job or the usual rate is not known."""

    counters: Mapping[Owner, tuple[str, ...]] = {"nic": (CNP,)}

    def __init__(self, shape: Shape, nodes: int, config: NodeConfig) -> None:
        self._bank = CnpRateBank(nodes)

    def update(self, batch: Batch, increases: Increases) -> tuple[()]:
        """Add the column [n, 1]."""
        for k in batch.left_jobs:
            self.restart(int(batch.index[k]))
        ratio = self._bank.update(batch.rows, _mean_port(increases["nic"]))
        batch.host.columns[CNP_RATIO] = np.where(batch.in_job, ratio, 0.0)[:, None]
        return ()

    def restart(self, node: int) -> None:
        """Learn the usual rate anew."""
        self._bank.reset(node)

    def forget(self, node: int) -> None:
        """Nothing outlives a restart."""

    def carry(self, node: int, source: "CnpRate", origin: Origin) -> None:
        """The usual rate is learned anew with other devices."""


def _mean_port(ports: Increase) -> FloatArray:
    """Return [notifications, seconds] of the mean port of each node, 0 where none was read."""
    risen = np.stack([ports.of(CNP), ports.seconds_of(CNP)])
    read = np.isfinite(risen[0])
    total = np.where(read, risen, 0.0).sum(axis=2)
    return np.asarray(total / np.maximum(read.sum(axis=1), 1))
