"""Congestion notifications (CNPs) that the ports of a node answer, beside what is usual for the node.

They say that the network is full somewhere, not where: no node is to blame for those it is sent. They are
learnt node by node, as the flows of a job share its ports.
"""

import numpy as np

from streams.arrays import FloatArray
from streams.batch import Batch
from streams.counters import Increase
from streams.hardware_states import CNP_RATIO
from streams.node_jobs import CALM, LEARN_SECONDS, RECENT_SECONDS, USUAL_SECONDS, NodeJobs

CNP = "nic.port.cnp_handled_total"

LEAST_PER_SECOND = 10.0
"""A port. Fewer are not told apart: a busy network without congestion sends some, and from none to a few is
no multiple."""


class Notifications:
    """The notifications of a page of nodes; learnt anew with every job."""

    def __init__(self, nodes: int) -> None:
        # Decayed sums [notifications a port, seconds] by node: their ratio is a rate and needs no start
        # value.
        self._recent = np.zeros((2, nodes))
        self._usual = np.zeros((2, nodes))
        self._jobs = NodeJobs(nodes)

    def update(self, batch: Batch, ports: Increase) -> dict[str, FloatArray]:
        """Take a batch and what the counters of its ports rose by; return ``CNP_RATIO`` [n, 1].

        It is how many times the usual number come now; 0: cannot be told.
        """
        for node in self._jobs.changed(batch):
            self.restart(node)
        rows, now = batch.rows, _a_port(ports)
        fading = np.exp(-now[1] / RECENT_SECONDS)
        recent = self._recent[:, rows] = self._recent[:, rows] * fading + now
        usual = self._usual[:, rows]
        learnt = usual[1] >= LEARN_SECONDS
        ratio = _rate(recent) / np.maximum(_rate(usual), LEAST_PER_SECOND)
        calm = ~learnt | (ratio <= CALM)
        learn = np.where(calm, now, 0.0)
        self._usual[:, rows] = usual * np.exp(-learn[1] / USUAL_SECONDS) + learn
        told = learnt & batch.in_job & (now[1] > 0.0)
        return {CNP_RATIO: np.where(told, ratio, 0.0)[:, None]}

    def restart(self, node: int) -> None:
        """Learn a node anew."""
        self._recent[:, node] = self._usual[:, node] = 0.0

    def forget(self, node: int) -> None:
        """Drop everything of a node."""
        self.restart(node)
        self._jobs.forget(node)

    def carry(self, node: int, source: "Notifications", row: int) -> None:
        """Take over a node that was ``row`` of another bank: what is usual for it is learnt anew."""
        self._jobs.carry(node, source._jobs, row)


def _a_port(ports: Increase) -> FloatArray:
    """Return [notifications, seconds] of the mean port of each node, 0 where none was read."""
    risen = np.stack([ports.of(CNP), ports.seconds_of(CNP)])
    read = np.isfinite(risen[0])
    held = np.where(read, risen, 0.0).sum(axis=2)
    return np.asarray(held / np.maximum(read.sum(axis=1), 1))


def _rate(sums: FloatArray) -> FloatArray:
    return np.asarray(sums[0] / np.maximum(sums[1], 1e-9))
