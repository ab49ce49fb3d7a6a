"""A block of nodes that carry the same devices: their rows, counters and detectors."""

from collections.abc import Sequence

import numpy as np

from slowrank.telemetry import NodeSample, Suspicion
from slowrank.telemetry.schema import Owner
from streams.node.batch import OWNERS, Batch, Devices, Shape
from streams.node.config import NodeConfig
from streams.node.counters import CounterBank
from streams.node.detector import LearnsLevels, NodeDetector, Origin
from streams.node.registry import node_detectors


class NodeBlock:
    """Up to ``size`` nodes of one shape, a row each; ``take`` hands out rows."""

    def __init__(self, shape: Shape, size: int, config: NodeConfig) -> None:
        self._devices: dict[int, Devices] = {}
        self._jobs: list[str | None] = [None] * size
        # Taken from the end, so that rows fill from 0 on and the nodes of a block are neighbours.
        self._free = list(range(size))[::-1]
        self._detectors = node_detectors(shape, size, config)
        self._counters = counter_banks(self._detectors, shape, size)

    @property
    def full(self) -> bool:
        """Whether no row is left."""
        return not self._free

    @property
    def empty(self) -> bool:
        """Whether no row is taken."""
        return not self._devices

    def take(self, devices: Devices) -> int:
        """Assign a row to a node that is new here; return its number."""
        row = self._free.pop()
        self._devices[row] = devices
        return row

    def leave(self, row: int) -> None:
        """Free the row of a node that has left."""
        self.restart(row)
        for detector in self._detectors:
            detector.forget(row)
        self._jobs[row] = None
        self._free.append(row)
        del self._devices[row]

    def restart(self, row: int) -> None:
        """Handle a reboot of the node: readings before it no longer count."""
        for counters in self._counters.values():
            counters.forget(row)
        for detector in self._detectors:
            detector.restart(row)

    def relearn(self, row: int) -> None:
        """Handle a planned change of the node's work."""
        for detector in self._detectors:
            if isinstance(detector, LearnsLevels):
                detector.relearn(row)

    def carry(self, row: int, source: "NodeBlock", there: int) -> None:
        """Take over a node from row ``there`` of another block: its devices have changed."""
        slots = {name: slot for slot, name in enumerate(source._devices[there].gpus)}
        origin = Origin(there, [slots.get(name) for name in self._devices[row].gpus])
        self._jobs[row] = source._jobs[there]
        for detector, theirs in zip(self._detectors, source._detectors, strict=True):
            detector.carry(row, theirs, origin)

    def update(self, rows: Sequence[int], samples: Sequence[NodeSample]) -> list[tuple[int, Suspicion]]:
        """Process one sample of each of some nodes, in ascending order of their ``rows``.

        Returns what was found, each with the index of its sample; the order for one sample is fixed.
        """
        index = np.array(rows, np.int64)
        neighbours = rows[-1] - rows[0] == len(rows) - 1
        selected = slice(rows[0], rows[-1] + 1) if neighbours else index
        batch = Batch(selected, index, samples, [self._devices[row] for row in rows])
        # First: detectors that learn by job start anew with the sample in which the job has changed.
        self._compare_jobs(rows, batch)
        increases = {
            owner: counters.update(batch.rows, batch.ts, batch.part(owner).columns, batch.part(owner).there)
            for owner, counters in self._counters.items()
        }
        return [found for detector in self._detectors for found in detector.update(batch, increases)]

    def _compare_jobs(self, rows: Sequence[int], batch: Batch) -> None:
        for k, (row, sample) in enumerate(zip(rows, batch.samples, strict=True)):
            if sample.job_id != self._jobs[row]:
                batch.left_jobs[k] = self._jobs[row]
                self._jobs[row] = sample.job_id


def counter_banks(detectors: Sequence[NodeDetector], shape: Shape, nodes: int) -> dict[Owner, CounterBank]:
    """Return a bank for each kind of device of which the detectors need counters."""
    needed = {
        owner: tuple(dict.fromkeys(name for d in detectors for name in d.counters.get(owner, ())))
        for owner in OWNERS
    }
    return {o: CounterBank(nodes, names, shape.count(o)) for o, names in needed.items() if names}
