"""The band of step times is what PostgreSQL computes of the same rows."""

from datetime import UTC, datetime

import numpy as np
import pytest
from psycopg.rows import dict_row

from api.routes.dashboard.band import band
from store.dashboard.steps import OfJob, grid_of, values
from store.telemetry.batches import write_rows
from store.telemetry.buckets import StepRollup
from store.telemetry.metrics import STORED
from tests.roll_ups import packed

STARTS, RANKS, BUCKETS = 1_795_160_000, 40, 90
IN_SQL = """
WITH points AS (
  SELECT date_bin(%(step)s, bucket, %(starts)s) AS bin, rank, step_seconds_sum / n_steps AS value,
    checkpoint_seconds_sum AS checkpoint, first_step, last_step
  FROM steps_10s
  WHERE job_id = 'banded' AND bucket >= %(starts)s AND bucket < %(ends)s AND n_steps > 0
    AND (%(attempt)s::int4 IS NULL OR attempt = %(attempt)s)
)
SELECT round(extract(epoch FROM bin - %(starts)s) / extract(epoch FROM %(step)s::interval))::int4 AS col,
  count(DISTINCT rank) AS ranks, min(first_step) AS first_step, max(last_step) AS last_step,
  max(value) AS max, max(checkpoint) AS checkpoint,
  percentile_cont(ARRAY[0.05, 0.5, 0.95]) WITHIN GROUP (ORDER BY value) AS quantiles,
  (array_agg(rank ORDER BY value DESC, rank))[1] AS slowest
FROM points WHERE value IS NOT NULL GROUP BY bin ORDER BY bin
"""


@pytest.fixture
def irregular(pool):
    """Two attempts whose ranks miss buckets, tie, have no value or no step; one bucket has no value."""
    draw = np.random.default_rng(5)
    rows = [
        StepRollup(
            cluster="c",
            job_id="banded",
            attempt=attempt,
            rank=rank,
            node=f"n{rank // 8}",
            bucket=STARTS + 10.0 * k,
            n_steps=int(draw.integers(0, 4)),
            step_seconds_sum=float(draw.integers(1, 30)) / 7,
            step_seconds_max=1.0,
            compute_seconds_sum=1.0,
            compute_seconds_max=1.0,
            wait_seconds_sum=0.1,
            first_step=5 * k,
            last_step=5 * k + int(draw.integers(0, 5)),
        )
        for attempt in (0, 1)
        for k in range(BUCKETS)
        for rank in range(RANKS)
        if (k < 60 or attempt) and draw.random() < 0.8
    ]
    with pool.connection() as conn:
        write_rows(conn, packed(rows))
        conn.execute(
            "UPDATE steps_10s SET checkpoint_seconds_sum = rank "
            "WHERE job_id = 'banded' AND mod(rank, 9) = attempt"
        )
        conn.execute(
            "UPDATE steps_10s SET step_seconds_sum = NULL WHERE job_id = 'banded' "
            "AND (bucket = to_timestamp(%s) OR mod(first_step + rank, 10) = 0)",
            (STARTS + 70,),
        )
    yield
    with pool.connection() as conn:
        conn.execute("DELETE FROM steps_10s WHERE job_id = 'banded'")


@pytest.mark.parametrize("attempt", [None, 0, 1])
@pytest.mark.parametrize("most", [1000, 17, 1])
def test_band_is_that_of_the_database(irregular, pool, attempt, most):
    """Every column, whatever the width of a bin."""
    starts, ends = (datetime.fromtimestamp(STARTS + at, UTC) for at in (0, 10 * BUCKETS))
    grid = grid_of(starts, ends, series=RANKS, most=most)
    job = OfJob(cluster="c", job_id="banded", attempt=attempt, metric=STORED["step_seconds"])
    asked = {"step": grid.step, "starts": grid.starts, "ends": grid.ends, "attempt": attempt}
    with pool.connection() as conn, conn.cursor(row_factory=dict_row) as cursor:
        expected = cursor.execute(IN_SQL, asked).fetchall()
        found = band(values(conn, job, grid))
    columns = ("col", "first_step", "last_step", "checkpoint")
    got = [{name: getattr(one.source, name) for name in columns} for one in found]
    got = [row | {"ranks": one.ranks, "slowest": one.slowest} for row, one in zip(got, found, strict=True)]
    assert got == [{name: row[name] for name in (*columns, "ranks", "slowest")} for row in expected]
    for one, row in zip(found, expected, strict=True):
        assert [*one.quantiles, one.max] == pytest.approx([*row["quantiles"], row["max"]], rel=1e-12)
