"""One sample of each of some nodes that carry the same devices, as arrays."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from slowrank.telemetry import NodeSample
from slowrank.telemetry.schema import SAMPLE_SCHEMAS, Block
from streams.arrays import Array, FloatArray, Mask, Rows, spread, stacked
from streams.suspicions import Place

Columns = dict[str, Array]


@dataclass(frozen=True, slots=True)
class Devices:
    """The devices of a node in the order of their lanes, and the schema their columns follow."""

    schema: int
    gpus: tuple[str, ...]
    nics: tuple[str, ...]

    @property
    def shape(self) -> "Shape":
        """Return what decides which nodes can be handled together."""
        return Shape(self.schema, len(self.gpus), len(self.nics))

    def holds(self, sample: NodeSample) -> bool:
        """Return whether every device of the sample has a lane."""
        return (
            # Mostly they are equal; sets are dearer and made only where they are not.
            (self.gpus == sample.gpu_ids or set(self.gpus).issuperset(sample.gpu_ids))
            and (self.nics == sample.nic_ids or set(self.nics).issuperset(sample.nic_ids))
            and self.schema == sample.schema
        )

    def widened(self, sample: NodeSample) -> "Devices":
        """Return these devices and what is new in the sample."""
        gpus = dict.fromkeys((*self.gpus, *sample.gpu_ids))
        return Devices(sample.schema, tuple(gpus), tuple(dict.fromkeys((*self.nics, *sample.nic_ids))))


@dataclass(frozen=True, slots=True)
class Shape:
    """How many devices nodes have, whatever their names, and the schema of their columns."""

    schema: int
    gpus: int
    nics: int


class Batch:
    """Samples of n nodes of a page, in the order of its rows; all arrays are [n, devices].

    A device that a sample does not name is not ``there``, and all its columns read as missing.
    """

    def __init__(
        self, rows: Rows, index: Array, samples: Sequence[NodeSample], devices: Sequence[Devices]
    ) -> None:
        self.rows, self.index, self.samples = rows, index, samples
        self.gpu_ids, self.nic_ids = [d.gpus for d in devices], [d.nics for d in devices]
        # There is one host, and it has no name.
        self.host_ids = [("",)] * len(samples)
        schema = SAMPLE_SCHEMAS[devices[0].schema]
        self.ts: FloatArray = np.array([s.ts for s in samples])
        self.gpu, self.gpu_there = _block(schema.gpu, self.gpu_ids, [(s.gpu_ids, s.gpu) for s in samples])
        self.nic, self.nic_there = _block(schema.nic, self.nic_ids, [(s.nic_ids, s.nic) for s in samples])
        host = [(("",) if s.host else (), s.host) for s in samples]
        self.host, self.host_there = _block(schema.host, self.host_ids, host)

    def __len__(self) -> int:
        return len(self.samples)

    @cached_property
    def fabric(self) -> Mask:
        """Which nodes have GPUs, [n]: the links of an ordinary host come and go for reasons of its own."""
        return np.array([bool(s.gpu_ids) for s in self.samples])

    @cached_property
    def in_job(self) -> Mask:
        """Which nodes name the job they work for, [n]."""
        return np.array([s.job_id is not None for s in self.samples])

    def place(self, k: int) -> Place:
        """Return where the suspicions of the k-th sample belong."""
        return Place.of(self.samples[k])


def _block(
    block: Block, ids: Sequence[tuple[str, ...]], parts: Sequence[tuple[tuple[str, ...], bytes]]
) -> tuple[Columns, Mask]:
    there = np.ones((len(parts), len(ids[0])), np.bool_)
    datas = [data for _, data in parts]
    for k, (named, data) in enumerate(parts):
        if named != ids[k]:
            places = [ids[k].index(name) for name in named]
            there[k] = False
            there[k, places] = True
            # ``stacked`` takes parts of one length only.
            datas[k] = spread(block, data, places, len(ids[k]))
    return stacked(block, datas), there
