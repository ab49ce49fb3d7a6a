"""Derived columns: the best past state of each port, and whether the node's other ports are up."""

from collections.abc import Mapping

import numpy as np

from slowrank.telemetry.schema import Owner
from streams.node.batch import Batch, Shape
from streams.node.config import NodeConfig
from streams.node.detector import Increases, Origin
from streams.node.rules.state_rules import BEST_SPEED, IN_JOB, OTHERS_UP, WAS_UP


class PortHistory:
    """Adds to the NIC columns the past and the company of each port.

    They are whether it was ever up, its best speed (bit/s, NaN: never read), whether another port of the node
    is up, and whether the node is in a job.
    """

    counters: Mapping[Owner, tuple[str, ...]] = {}

    def __init__(self, shape: Shape, nodes: int, config: NodeConfig) -> None:
        self._was_up = np.zeros((nodes, shape.nics), np.bool_)
        self._best_speed = np.full((nodes, shape.nics), np.nan)

    def update(self, batch: Batch, increases: Increases) -> tuple[()]:
        """Add the columns [n, ports], the last one [n, 1]."""
        up = batch.nic["nic.port.up"] > 0
        speed = np.where(up, batch.nic["nic.port.speed_bits_per_second"], np.nan)
        was_up = self._was_up[batch.rows] = self._was_up[batch.rows] | up
        best = self._best_speed[batch.rows] = np.fmax(self._best_speed[batch.rows], speed)
        others_up = up.sum(axis=1, keepdims=True) > up
        derived = {WAS_UP: was_up, BEST_SPEED: best, OTHERS_UP: others_up, IN_JOB: batch.in_job[:, None]}
        batch.nic.columns.update(derived)
        return ()

    def restart(self, node: int) -> None:
        """Expect nothing of the ports until they are read again."""
        self._was_up[node], self._best_speed[node] = False, np.nan

    def forget(self, node: int) -> None:
        """Nothing outlives a restart."""

    def carry(self, node: int, source: "PortHistory", origin: Origin) -> None:
        """State by slot starts anew."""
