"""Step rows of synthetic and recorded jobs, for benchmarks and tests of the job stage.

Work is drawn per rank and step, and faults change the work; step and wait times follow from it, as the job
waits for its slowest rank. No metric is changed directly.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from slowrank.telemetry import JobSteps
from slowrank.telemetry.columns import pack, step_schema_of

Floats = npt.NDArray[np.float64]

Coords = dict[str, Sequence[int]]

START = 1_795_000_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTable:
    """Seconds per step and rank, [steps, ranks]; ``numbers`` and ``ts`` [steps]; coords name -> [ranks]."""

    compute: Floats
    step: Floats
    numbers: npt.NDArray[np.int64]
    ts: Floats
    wait: Floats | None = None
    data: Floats | None = None
    comm: Floats | None = None
    tokens: Floats | None = None
    squares: Floats | None = None
    coords: Coords = field(default_factory=dict)
    with_compute: bool = True
    ranks_per_node: int = 8
    job_id: str = "job"
    attempt: int = 0
    world_size: int = 0


def synchronous(work: Floats, *, overhead: float = 0.0, coords: Coords | None = None) -> StepTable:
    """Return the table of a job in which every rank waits for the slowest, [steps, ranks] of ``work``
    seconds.
    """
    step = np.repeat(work.max(axis=1, keepdims=True) + overhead, work.shape[1], axis=1)
    return StepTable(
        compute=work,
        step=step,
        wait=step - work - overhead,
        numbers=np.arange(len(work)) + 1000,
        ts=START + np.cumsum(step[:, 0]),
        coords=coords or {},
    )


def records(table: StepTable, *, only: npt.NDArray[np.bool_] | None = None) -> Iterator[JobSteps]:
    """Yield one record per step and node; rows where ``only`` [steps, ranks] is false are lost."""
    ranks = table.compute.shape[1]
    for s in range(len(table.numbers)):
        for first in range(0, ranks, table.ranks_per_node):
            members = [
                r
                for r in range(first, min(first + table.ranks_per_node, ranks))
                if only is None or only[s, r]
            ]
            if members:
                yield _record(table, s, members, f"node-{first // table.ranks_per_node:04d}")


def _record(table: StepTable, s: int, members: list[int], node: str) -> JobSteps:
    rows = []
    for r in members:
        row: dict[str, float | int | None] = {
            "step": int(table.numbers[s]),
            "rank": r,
            "ts": float(table.ts[s]),
            "step_seconds": float(table.step[s, r]),
            **{name: positions[r] for name, positions in table.coords.items()},
        }
        if table.with_compute:
            row["compute_seconds"] = float(table.compute[s, r])
        for name, values in (
            ("wait_seconds", table.wait),
            ("data_seconds", table.data),
            ("comm_seconds", table.comm),
            ("tokens", table.tokens),
            ("seq_len_sq_sum", table.squares),
        ):
            if values is not None:
                row[name] = float(values[s, r])
        rows.append(row)
    schema = step_schema_of(rows)
    return JobSteps(
        schema=schema.id,
        cluster="bench",
        job_id=table.job_id,
        attempt=table.attempt,
        world_size=table.world_size,
        node=node,
        boot_id="file",
        seq=s,
        ts=float(table.ts[s]),
        row_bytes=schema.row_bytes,
        rows=pack(schema.rows, rows),
    )
