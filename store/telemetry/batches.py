"""Rows of every kind to their tables: what streams tell the store beside findings."""

from collections.abc import Sequence
from typing import Any

from psycopg import Connection

from alerts.chronic import Pace
from store.buckets import NodeLatest, SampleRollup, StepRollup
from store.paces import write_paces
from store.rollups import write_nodes, write_samples, write_steps

Row = SampleRollup | StepRollup | NodeLatest | Pace
"""A roll-up, or how a job paces a GPU."""


def write_rows(conn: Connection[Any], rows: Sequence[Row]) -> None:
    """Store rows in any order; each may be written any number of times."""
    write_samples(conn, [row for row in rows if isinstance(row, SampleRollup)])
    write_steps(conn, [row for row in rows if isinstance(row, StepRollup)])
    write_nodes(conn, [row for row in rows if isinstance(row, NodeLatest)])
    write_paces(conn, [row for row in rows if isinstance(row, Pace)])
