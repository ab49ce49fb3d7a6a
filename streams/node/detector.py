"""The interface of a node detector: samples of many nodes in, suspicions out."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, Self, runtime_checkable

from slowrank.telemetry import Suspicion
from slowrank.telemetry.schema import Owner
from streams.node.batch import Batch, Shape
from streams.node.config import NodeConfig
from streams.node.counters import Increase

Increases = Mapping[Owner, Increase]
"""What the counters rose by since the previous sample of each node."""

Found = Iterable[tuple[int, Suspicion]]
"""Suspicions, each with the index of its sample in the batch."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a node was before it moved to another block: its ``row`` there, and the slot that each of its
    present GPUs had there (None: a new GPU)."""

    row: int
    gpus: Sequence[int | None]


class NodeDetector(Protocol):
    """A detector over the nodes of one block; its state is arrays or dicts by row.

    Detectors run in the order of ``registry.NODE_DETECTORS``. They are pure: no clock, no I/O, no exception
    on a record that passed the codec. What is found for a node follows from that node's samples alone,
    however the samples of many nodes are cut into batches.
    """

    @property
    def counters(self) -> Mapping[Owner, tuple[str, ...]]:
        """Counter columns whose increases ``update`` needs, all in the block's schema; constant."""
        ...

    def update(self, batch: Batch, increases: Increases) -> Found:
        """Process at most one sample of each node, in ascending order of rows; return what was found.

        A detector may add derived columns to the batch for those that run after it.
        """
        ...

    def restart(self, node: int) -> None:
        """Handle a reboot: readings before it no longer count, faults of the hardware still do."""
        ...

    def forget(self, node: int) -> None:
        """Drop what ``restart``, which is always called before, leaves of a node: its row is free again."""
        ...

    def carry(self, node: int, source: Self, origin: Origin) -> None:
        """Take over the state of a node that moves here because its devices changed.

        State by device name moves; state by slot starts anew.
        """
        ...


@runtime_checkable
class LearnsLevels(Protocol):
    """A detector whose levels a planned change of the job makes obsolete."""

    def relearn(self, node: int) -> None:
        """Learn the levels of a node anew; what has been raised stays raised."""
        ...


NodeDetectorFactory = Callable[[Shape, int, NodeConfig], NodeDetector | None]
"""Makes a detector for a block of so many nodes of one shape; None where the settings switch it off."""
