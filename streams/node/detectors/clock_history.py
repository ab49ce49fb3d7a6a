"""Derived column: GPUs whose SM clock has been below that of their node's other GPUs ever since.

A clock that falls is a change of level (``level_changes``). One that was locked before the first sample does
not change: only the siblings, which are of the same model, show what it should be.
"""

from collections.abc import Mapping

import numpy as np

from slowrank.telemetry.schema import Owner
from streams.columns import FloatArray, Mask
from streams.node.batch import Batch, Shape
from streams.node.config import NodeConfig
from streams.node.detector import Increases, Origin
from streams.node.rules.state_rules import ALWAYS_LOW, LOADED

CLOCK = "gpu.clock.sm_hz"

# Chosen, of the siblings' median: four of the 15 MHz in which clocks are read. No evidence by itself, as GPUs
# at their power limit may differ by as much.
LOW = 0.96

# Chosen: the median of fewer is one GPU's clock.
SIBLINGS = 3


class ClockHistory:
    """Adds ``ALWAYS_LOW`` to the GPU columns: loaded, low, and never seen at full clock under load."""

    counters: Mapping[Owner, tuple[str, ...]] = {}

    def __init__(self, shape: Shape, nodes: int, config: NodeConfig) -> None:
        self._was_full = np.zeros((nodes, shape.gpus), np.bool_)

    def update(self, batch: Batch, increases: Increases) -> tuple[()]:
        """Add the column [n, gpus]."""
        loaded = batch.gpu["gpu.utilization_ratio"] > LOADED
        clock = np.where(loaded, batch.gpu[CLOCK], np.nan)
        low = _low(clock)
        was_full = self._was_full[batch.rows] | ((clock > 0) & ~low)
        self._was_full[batch.rows] = was_full
        batch.gpu.columns[ALWAYS_LOW] = low & ~was_full
        return ()

    def restart(self, node: int) -> None:
        """Compare with no clock before a reboot."""
        self._was_full[node] = False

    def forget(self, node: int) -> None:
        """Nothing outlives a restart."""

    def carry(self, node: int, source: "ClockHistory", origin: Origin) -> None:
        """State by slot starts anew."""


def _low(clock: FloatArray) -> Mask:
    """Return which clocks [n, gpus] are below the median of at least three others; NaN: not read."""
    low = np.asarray(clock < LOW * np.fmax.reduce(clock, axis=1, initial=0.0)[:, None])
    for k, i in np.argwhere(low).tolist():
        others = np.delete(clock[k], i)
        others = others[np.isfinite(others)]
        low[k, i] = others.size >= SIBLINGS and clock[k, i] < LOW * np.median(others)
    return low
