"""Defines the 10 s roll-ups: the columns of each table and how the samples of a bucket are aggregated.

Plain data without database access: ``streams.rollup`` aggregates by it, ``rollups`` writes the rows.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from slowrank.telemetry.schema import GPU_COLUMNS, HOST_COLUMNS, NIC_COLUMNS, Aggregate, Column

# Chosen: ten samples a row at 1 Hz; the names of the tables contain it.
BUCKET_SECONDS = 10.0

Block = Literal["gpu", "nic", "host"]

FloatArray = npt.NDArray[np.float64]
Integers = npt.NDArray[np.integer[Any]]


@dataclass(frozen=True, slots=True)
class Rolled:
    """One column of a roll-up: ``aggregate`` of ``metric`` over the bucket."""

    metric: str
    aggregate: Aggregate

    @property
    def column(self) -> str:
        """Name in the table: ``gpu.clock.sm_hz`` and ``min`` give ``clock_sm_hz_min``."""
        name = self.metric.split(".", 1)[1] if not self.metric.startswith("exporter.") else self.metric
        return f"{name.removesuffix('_total').replace('.', '_')}_{self.aggregate}"


def _rolled(columns: Sequence[Column]) -> tuple[Rolled, ...]:
    return tuple(Rolled(column.name, aggregate) for column in columns for aggregate in column.rollup)


# The aggregates of the telemetry schema; each has a column in the tables, created by a migration.
ROLLED: dict[Block, tuple[Rolled, ...]] = {
    "gpu": _rolled(GPU_COLUMNS),
    "nic": _rolled(NIC_COLUMNS),
    "host": _rolled(HOST_COLUMNS),
}

TABLE: dict[Block, str] = {"gpu": "samples_10s", "nic": "nic_10s", "host": "host_10s"}


@dataclass(frozen=True, slots=True)
class SampleRollup:
    """One instance (GPU index, ``device/port``, ``""`` for the host) of a node over one bucket.

    ``bucket`` is its start in Unix seconds, a multiple of ``BUCKET_SECONDS``; ``n`` the samples in it;
    ``values`` stand in the order of ``ROLLED[block]``, NaN where no sample had a value.
    """

    block: Block
    cluster: str
    node: str
    instance: str
    bucket: float
    n: int
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True, eq=False)
class SampleRollups:
    """The rows of all instances of a block of a node: ``n`` [instances], ``values`` [columns, instances]."""

    block: Block
    cluster: str
    node: str
    instances: Sequence[str]
    bucket: float
    n: Sequence[int]
    values: FloatArray

    def __len__(self) -> int:
        return len(self.instances)

    def rows(self) -> Iterator[SampleRollup]:
        """Yield the rows one by one."""
        for instance, n, values in zip(self.instances, self.n, self.values.T.tolist(), strict=True):
            yield SampleRollup(self.block, self.cluster, self.node, instance, self.bucket, n, tuple(values))


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRollup:
    """The steps one rank finished in one bucket; sums and maxima in seconds, NaN where nothing was read."""

    cluster: str
    job_id: str
    attempt: int
    rank: int
    node: str
    bucket: float
    n_steps: int
    step_seconds_sum: float
    step_seconds_max: float
    compute_seconds_sum: float
    compute_seconds_max: float
    wait_seconds_sum: float
    checkpoint_seconds_sum: float = math.nan
    first_step: int
    last_step: int


# The columns of step roll-ups in seconds, in the order of ``StepRollups.seconds``.
STEP_SECONDS = (
    "step_seconds_sum",
    "step_seconds_max",
    "compute_seconds_sum",
    "compute_seconds_max",
    "wait_seconds_sum",
    "checkpoint_seconds_sum",
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepRollups:
    """The rows of the ranks of a job on one node: ``seconds`` [STEP_SECONDS, ranks], the others [ranks]."""

    cluster: str
    job_id: str
    attempt: int
    node: str
    bucket: float
    ranks: Integers
    n_steps: Integers
    seconds: FloatArray
    first_step: Integers
    last_step: Integers

    def __len__(self) -> int:
        return len(self.ranks)

    def rows(self) -> Iterator[StepRollup]:
        """Yield the rows one by one."""
        columns = (self.ranks, self.n_steps, self.first_step, self.last_step)
        each = zip(*(column.tolist() for column in columns), self.seconds.T.tolist(), strict=True)
        for rank, n, first, last, seconds in each:
            yield StepRollup(
                cluster=self.cluster,
                job_id=self.job_id,
                attempt=self.attempt,
                rank=rank,
                node=self.node,
                bucket=self.bucket,
                n_steps=n,
                first_step=first,
                last_step=last,
                **dict(zip(STEP_SECONDS, seconds, strict=True)),
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlace:
    """Where a rank of a job runs at ``at``, in which ``step``; ``coords``: dp, pp, tp, cp, ep or None.

    ``world_size`` is the number of ranks of the job, 0 if unknown.
    """

    cluster: str
    job_id: str
    attempt: int
    rank: int
    node: str
    gpu_index: int | None
    coords: tuple[int | None, ...]
    world_size: int
    step: int
    at: float


@dataclass(frozen=True, slots=True)
class JobEvent:
    """What a job has declared ``at`` a time (Unix seconds), by the code of the event."""

    cluster: str
    job_id: str
    code: str
    at: float
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLatest:
    """Latest sample of a node, for lists of nodes."""

    cluster: str
    node: str
    last_seen_at: float
    boot_id: str
    seq: int
    gpus: int
    nics: int
    job_id: str | None = None
    rack: str | None = None
    switch: str | None = None
