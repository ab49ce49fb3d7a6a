"""Derived column: the share of a node's GPUs whose clocks heat holds down."""

from collections.abc import Mapping

import numpy as np

from slowrank.telemetry.schema import Owner
from streams.node.batch import Batch, Shape
from streams.node.config import NodeConfig
from streams.node.detector import Increases, Origin
from streams.node.rules.state_rules import HOT_SHARE, HW_THERMAL, IDLE, SW_THERMAL

# Chosen: two hot GPUs may have one cause each.
FEWEST = 3


class HotGpus:
    """Adds ``HOT_SHARE`` of the node to the host columns; 0 where fewer than three GPUs are hot."""

    counters: Mapping[Owner, tuple[str, ...]] = {}

    def __init__(self, shape: Shape, nodes: int, config: NodeConfig) -> None: ...

    def update(self, batch: Batch, increases: Increases) -> tuple[()]:
        """Add the column [n, 1]."""
        reasons = batch.gpu["gpu.throttle_reasons"]
        # Missing reasons are negative.
        bits = np.where(reasons > 0, reasons, 0).astype(np.int64)
        hot = ((bits & (SW_THERMAL | HW_THERMAL) != 0) & (bits & IDLE == 0)).sum(axis=1)
        present = np.maximum(batch.gpu.there.sum(axis=1), 1)
        batch.host.columns[HOT_SHARE] = np.where(hot >= FEWEST, hot / present, 0.0)[:, None]
        return ()

    def restart(self, node: int) -> None:
        """No state."""

    def forget(self, node: int) -> None:
        """No state."""

    def carry(self, node: int, source: "HotGpus", origin: Origin) -> None:
        """No state."""
