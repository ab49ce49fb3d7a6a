"""Derived column: the median duration of a read through NVML on a node."""

from collections.abc import Mapping

import numpy as np

from slowrank.telemetry.schema import Owner
from streams.node.batch import Batch, Shape
from streams.node.config import NodeConfig
from streams.node.detector import Increases, Origin
from streams.node.rules.state_rules import READ_SECONDS, SLOW_READ_SECONDS


class ReadTimes:
    """Adds ``READ_SECONDS`` of the node to the host columns.

    It is the median of the node's GPUs, 0 while at most one of them is slow.
    """

    counters: Mapping[Owner, tuple[str, ...]] = {}

    def __init__(self, shape: Shape, nodes: int, config: NodeConfig) -> None: ...

    def update(self, batch: Batch, increases: Increases) -> tuple[()]:
        """Add the column [n, 1]."""
        seconds = batch.gpu[READ_SECONDS]
        median = np.zeros((len(seconds), 1))
        for k in np.flatnonzero((seconds > SLOW_READ_SECONDS).sum(axis=1) > 1).tolist():
            median[k] = np.median(seconds[k][np.isfinite(seconds[k])])
        batch.host.columns[READ_SECONDS] = median
        return ()

    def restart(self, node: int) -> None:
        """No state."""

    def forget(self, node: int) -> None:
        """No state."""

    def carry(self, node: int, source: "ReadTimes", origin: Origin) -> None:
        """No state."""
