"""Roll-ups row by row, as tests write and read them, and as the columns that the store takes."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from store.telemetry.buckets import STEP_SECONDS, SampleRollup, SampleRollups, StepRollup, StepRollups


def unpacked(rows: Iterable[Any]) -> list[Any]:
    """Return the rows with those of columns one by one."""
    found: list[Any] = []
    for row in rows:
        found += row.rows() if isinstance(row, SampleRollups | StepRollups) else (row,)
    return found


def packed(rows: Iterable[Any]) -> list[Any]:
    """Return the rows with each roll-up as columns of one row."""
    return [_packed(row) for row in rows]


def _packed(row: Any) -> Any:
    if isinstance(row, SampleRollup):
        values = np.array(row.values)[:, np.newaxis]
        return SampleRollups(row.block, row.cluster, row.node, (row.instance,), row.bucket, (row.n,), values)
    if not isinstance(row, StepRollup):
        return row
    return StepRollups(
        cluster=row.cluster,
        job_id=row.job_id,
        attempt=row.attempt,
        node=row.node,
        bucket=row.bucket,
        ranks=np.array([row.rank]),
        n_steps=np.array([row.n_steps]),
        seconds=np.array([[getattr(row, name)] for name in STEP_SECONDS]),
        first_step=np.array([row.first_step]),
        last_step=np.array([row.last_step]),
    )
