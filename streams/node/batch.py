"""One sample of each of some nodes that carry the same devices, as arrays."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from slowrank.telemetry import NodeSample, Subject
from slowrank.telemetry.schema import SAMPLE_SCHEMAS, Block, Owner
from streams.columns import Array, FloatArray, Mask, Rows, spread, stacked
from streams.suspicions import Location

Columns = dict[str, Array]

OWNERS: tuple[Owner, ...] = ("gpu", "nic", "host")


@dataclass(frozen=True, slots=True)
class Devices:
    """The devices of a node in the order of their slots, and the schema of their columns."""

    schema: int
    gpus: tuple[str, ...]
    nics: tuple[str, ...]

    @property
    def shape(self) -> "Shape":
        """Return what nodes must have in common to share a block."""
        return Shape(self.schema, len(self.gpus), len(self.nics))

    def holds(self, sample: NodeSample) -> bool:
        """Return whether every device of the sample has a slot."""
        return (
            # Equal tuples are the usual case and cheaper to compare than sets.
            (self.gpus == sample.gpu_ids or set(self.gpus).issuperset(sample.gpu_ids))
            and (self.nics == sample.nic_ids or set(self.nics).issuperset(sample.nic_ids))
            and self.schema == sample.schema
        )

    def widened(self, sample: NodeSample) -> "Devices":
        """Return these devices and the new ones of the sample."""
        gpus = dict.fromkeys((*self.gpus, *sample.gpu_ids))
        return Devices(sample.schema, tuple(gpus), tuple(dict.fromkeys((*self.nics, *sample.nic_ids))))


@dataclass(frozen=True, slots=True)
class Shape:
    """The number of devices of a node and the schema of its columns."""

    schema: int
    gpus: int
    nics: int

    def count(self, owner: Owner) -> int:
        """Return how many instances of a kind of device each node has."""
        return {"gpu": self.gpus, "nic": self.nics, "host": 1}[owner]


@dataclass(frozen=True, slots=True)
class Part:
    """The columns of one kind of device, each [n, devices]; ``ids`` are the names of the devices by sample.

    A device that a sample does not name is not ``there`` [n, devices]; all its columns read as missing.
    """

    ids: Sequence[tuple[str, ...]]
    columns: Columns
    there: Mask

    def __getitem__(self, name: str) -> Array:
        return self.columns[name]


class Batch:
    """Samples of n nodes of a block, in the order of its rows.

    ``left_jobs``: by index of a sample whose node has changed jobs, the job before (None: none).
    """

    def __init__(
        self, rows: Rows, index: Array, samples: Sequence[NodeSample], devices: Sequence[Devices]
    ) -> None:
        self.rows, self.index, self.samples = rows, index, samples
        self.left_jobs: dict[int, str | None] = {}
        self.ts: FloatArray = np.array([s.ts for s in samples])
        schema = SAMPLE_SCHEMAS[devices[0].schema]
        gpus, nics = [d.gpus for d in devices], [d.nics for d in devices]
        self.gpu = _part(schema.gpu, gpus, [s.gpu_ids for s in samples], [s.gpu for s in samples])
        self.nic = _part(schema.nic, nics, [s.nic_ids for s in samples], [s.nic for s in samples])
        # There is one host, and it has no name.
        named = [("",) if s.host else () for s in samples]
        self.host = _part(schema.host, [("",)] * len(samples), named, [s.host for s in samples])

    def __len__(self) -> int:
        return len(self.samples)

    @cached_property
    def fabric(self) -> Mask:
        """Nodes with GPUs, [n]; links of other hosts come and go for unrelated reasons."""
        return np.array([bool(s.gpu_ids) for s in self.samples])

    @cached_property
    def in_job(self) -> Mask:
        """Nodes that name their job, [n]."""
        return np.array([s.job_id is not None for s in self.samples])

    def part(self, owner: Owner) -> Part:
        """Return the columns of one kind of device."""
        return {"gpu": self.gpu, "nic": self.nic, "host": self.host}[owner]

    def location(self, k: int) -> Location:
        """Return the location of the k-th sample's node."""
        return Location.of(self.samples[k])

    def subject(self, k: int, owner: Owner, name: str) -> Subject:
        """Return the device ``name`` of the k-th sample's node as a subject."""
        location = self.location(k)
        if owner == "host":
            return location.whole_node()
        return location.gpu(name) if owner == "gpu" else location.nic(name)


def _part(
    block: Block, ids: list[tuple[str, ...]], named: Sequence[tuple[str, ...]], parts: list[bytes]
) -> Part:
    """Return the columns ``parts`` of the devices ``named``, in the slots ``ids`` of all devices."""
    there = np.ones((len(parts), len(ids[0])), np.bool_)
    for k in [k for k, names in enumerate(named) if names != ids[k]]:
        slots = [ids[k].index(name) for name in named[k]]
        there[k] = False
        there[k, slots] = True
        # ``stacked`` takes parts of one length only.
        parts[k] = spread(block, parts[k], slots, len(ids[k]))
    return Part(ids, stacked(block, parts), there)
