"""Defines the 10 s roll-ups: the columns of each table and how the samples of a bucket are aggregated.

Plain data without database access: ``streams.rollup`` aggregates by it, ``rollups`` writes the rows.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from slowrank.telemetry.schema import GPU_COLUMNS, HOST_COLUMNS, NIC_COLUMNS, Aggregate, Column

# Chosen: ten samples a row at 1 Hz; the names of the tables contain it.
BUCKET_SECONDS = 10.0

Block = Literal["gpu", "nic", "host"]


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


ROLLED: dict[Block, tuple[Rolled, ...]] = {
    "gpu": _rolled(GPU_COLUMNS),
    "nic": _rolled(NIC_COLUMNS),
    "host": _rolled(HOST_COLUMNS),
}
"""The aggregates of the telemetry schema; each has a column in the tables, created by a migration."""

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
