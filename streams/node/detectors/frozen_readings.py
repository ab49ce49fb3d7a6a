"""Derived columns: GPUs, and whole exporters, whose readings repeat to the last bit."""

from collections.abc import Mapping

import numpy as np

from slowrank.telemetry.schema import Owner
from streams.columns import FloatArray, Mask
from streams.node.batch import Batch, Shape
from streams.node.config import NodeConfig
from streams.node.detector import Increases, Origin
from streams.node.rules.state_rules import FROZEN, STUCK

ENERGY = "gpu.energy_millijoules_total"
SWITCHES = "host.context_switches_total"


class FrozenReadings:
    """Adds ``FROZEN`` to the GPU columns and ``STUCK`` to the host columns.

    A GPU is frozen when its energy counter, which once moved, stands still and power and temperature repeat:
    a working GPU always uses energy, so its driver returns stale values. When all GPUs of a node are frozen
    and the host's context switches stand still too, the exporter repeats itself: then it is stuck, and no GPU
    counts as frozen.
    """

    counters: Mapping[Owner, tuple[str, ...]] = {"gpu": (ENERGY,), "host": (SWITCHES,)}

    def __init__(self, shape: Shape, nodes: int, config: NodeConfig) -> None:
        self._before = np.full((2, nodes, shape.gpus), np.nan, np.float32)
        self._moved = np.zeros((nodes, shape.gpus), np.bool_)

    def update(self, batch: Batch, increases: Increases) -> tuple[()]:
        """Add the columns [n, gpus] and [n, 1]."""
        frozen, there = self._repeated(batch, increases["gpu"].of(ENERGY)), batch.gpu.there
        all_frozen = there.any(axis=1) & (frozen | ~there).all(axis=1)
        stuck = all_frozen & (increases["host"].of(SWITCHES)[:, 0] == 0)
        batch.gpu.columns[FROZEN] = frozen & ~stuck[:, None]
        batch.host.columns[STUCK] = stuck[:, None]
        return ()

    def restart(self, node: int) -> None:
        """Compare with no earlier sample."""
        self._before[:, node], self._moved[node] = np.nan, False

    def forget(self, node: int) -> None:
        """Nothing outlives a restart."""

    def carry(self, node: int, source: "FrozenReadings", origin: Origin) -> None:
        """State by slot starts anew."""

    def _repeated(self, batch: Batch, energy: FloatArray) -> Mask:
        power, celsius = batch.gpu["gpu.power_watts"], batch.gpu["gpu.temp_celsius"]
        before_power, before_celsius = self._before[:, batch.rows]
        # A counter that never moved may not be implemented.
        moved = self._moved[batch.rows] | (energy > 0)
        same = moved & (energy == 0) & (power == before_power) & (celsius == before_celsius)
        self._moved[batch.rows] = moved
        self._before[0, batch.rows], self._before[1, batch.rows] = power, celsius
        return np.asarray(same)
