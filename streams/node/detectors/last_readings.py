"""What is read seldom is as last read: the width and the generation of GPUs' PCIe links.

Exporters read some values in every fifth sample, and not of all GPUs in the same one. Rules ask whether a
state lasts, and compare GPUs of a node, which takes a reading of each in every sample.
"""

from collections.abc import Mapping

import numpy as np

from slowrank.telemetry.schema import Owner
from streams.node.batch import Batch, Shape
from streams.node.config import NodeConfig
from streams.node.detector import Increases, Origin

SELDOM = ("gpu.pcie.link_gen", "gpu.pcie.link_width", "gpu.pcie.link_width_max")

# Chosen: four samples of collectors that read every 15 s; of what is not read any more nothing is known.
KEPT_SECONDS = 60.0


class LastReadings:
    """Fills the columns ``SELDOM`` of GPUs, [n, gpus], where a sample lacks them."""

    counters: Mapping[Owner, tuple[str, ...]] = {}

    def __init__(self, shape: Shape, nodes: int, config: NodeConfig) -> None:
        self._value = np.zeros((len(SELDOM), nodes, shape.gpus))
        self._at = np.full((len(SELDOM), nodes, shape.gpus), -np.inf)

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
        return ()

    def restart(self, node: int) -> None:
        """Links are trained anew by a reboot."""
        self._at[:, node] = -np.inf

    def forget(self, node: int) -> None:
        """Nothing outlives a restart."""

    def carry(self, node: int, source: "LastReadings", origin: Origin) -> None:
        """State by slot starts anew."""
