"""Stores the rows that stream workers produce beside findings."""

from collections.abc import Sequence
from typing import Any

from psycopg import Connection

from detectors.fleet.chronic import Pace
from store.telemetry.buckets import JobEvent, NodeLatest, RankPlace, SampleRollups, StepRollups
from store.telemetry.job_events import write_job_events
from store.telemetry.rank_pace import write_rank_paces
from store.telemetry.ranks import write_jobs, write_ranks
from store.telemetry.rollups import write_nodes, write_samples, write_steps

Row = SampleRollups | StepRollups | NodeLatest | RankPlace | Pace | JobEvent
"""Roll-ups of a node, its latest state, the place of a rank, the pace of a GPU, or what a job declares."""


def count(rows: Sequence[Row]) -> int:
    """Return how many rows of tables these are."""
    return sum(len(row) if isinstance(row, SampleRollups | StepRollups) else 1 for row in rows)


def write_rows(conn: Connection[Any], rows: Sequence[Row]) -> None:
    """Store rows of all kinds, in any order; writing a row again changes nothing."""
    write_samples(conn, [row for row in rows if isinstance(row, SampleRollups)])
    steps = [row for row in rows if isinstance(row, StepRollups)]
    places = [row for row in rows if isinstance(row, RankPlace)]
    write_steps(conn, steps)
    write_ranks(conn, places)
    write_jobs(conn, steps, places)
    write_nodes(conn, [row for row in rows if isinstance(row, NodeLatest)])
    write_rank_paces(conn, [row for row in rows if isinstance(row, Pace)])
    write_job_events(conn, [row for row in rows if isinstance(row, JobEvent)])
