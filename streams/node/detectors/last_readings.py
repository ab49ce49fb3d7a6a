"""What is read seldom is as last read: the width and the generation of GPUs' PCIe links.

Exporters read some values in every fifth sample, and not of all GPUs in the same one. Rules ask whether a
state lasts, and compare GPUs of a node, which takes a reading of each in every sample. Many collectors send
the width of a link and not its maximum: the widest that was read of it takes that place.
"""

from collections.abc import Mapping

import numpy as np

from slowrank.telemetry.schema import Owner
from streams.node.batch import Batch, Shape
from streams.node.config import NodeConfig
from streams.node.detector import Increases, Origin

WIDTH, WIDEST = "gpu.pcie.link_width", "gpu.pcie.link_width_max"
SELDOM = ("gpu.pcie.link_gen", WIDTH, WIDEST)

# Chosen: four samples of collectors that read every 15 s; of what is not read any more nothing is known.
KEPT_SECONDS = 60.0


class LastReadings:
    """Fills the columns ``SELDOM`` of GPUs, [n, gpus], where a sample lacks them.

    A maximum that is not known is the widest link read of that GPU since the node was started.
    """

    counters: Mapping[Owner, tuple[str, ...]] = {}

    def __init__(self, shape: Shape, nodes: int, config: NodeConfig) -> None:
        self._value = np.zeros((len(SELDOM), nodes, shape.gpus))
        self._at = np.full((len(SELDOM), nodes, shape.gpus), -np.inf)
        self._widest = np.zeros((nodes, shape.gpus))

    def update(self, batch: Batch, increases: Increases) -> tuple[()]:
        """Fill the columns with what was read up to a minute ago."""
        for of, name in enumerate(SELDOM):
            column = batch.gpu[name]
            read = column > 0
            at = np.where(read, batch.ts[:, None], self._at[of, batch.rows])
            value = np.where(read, column, self._value[of, batch.rows])
            self._at[of, batch.rows], self._value[of, batch.rows] = at, value
            known = ~read & batch.gpu.there & (batch.ts[:, None] - at <= KEPT_SECONDS)
            batch.gpu.columns[name] = np.where(known, value, column)
        widest = self._widest[batch.rows] = np.fmax(self._widest[batch.rows], batch.gpu[WIDTH])
        stated = batch.gpu[WIDEST]
        batch.gpu.columns[WIDEST] = np.where((stated > 0) | (widest <= 0), stated, widest)
        return ()

    def restart(self, node: int) -> None:
        """Links are trained anew by a reboot."""
        self._at[:, node], self._widest[node] = -np.inf, 0.0

    def forget(self, node: int) -> None:
        """Nothing outlives a restart."""

    def carry(self, node: int, source: "LastReadings", origin: Origin) -> None:
        """State by slot starts anew."""
