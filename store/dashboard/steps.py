"""The step times of a job: its band over time, and how slow each rank was in each bin.

A long window of a large job has more rows than a read may take. Then of every bin one roll-up of 10 s is read
instead of all (``Grid.sampled``), which the caller states beside the numbers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, LiteralString

from psycopg import Connection, sql
from psycopg.rows import class_row, dict_row

from store.telemetry.buckets import BUCKET_SECONDS
from store.telemetry.metrics import StoredMetric
from store.text import storable

MAX_ROWS = 1_000_000
"""Roll-ups that one read may take. Chosen: some seconds of the database's time; 1,024 ranks for 500 bins are
half of it."""


@dataclass(frozen=True, slots=True)
class Grid:
    """Bins of ``step`` from ``starts``; ``buckets`` are the roll-ups to read of them, None for all."""

    starts: datetime
    ends: datetime
    step: timedelta
    bins: int
    buckets: tuple[datetime, ...] | None = None

    @property
    def sampled(self) -> bool:
        """Whether one roll-up stands for each bin."""
        return self.buckets is not None

    def times(self) -> list[int]:
        """Return the starts of the bins in epoch milliseconds."""
        return [round((self.starts + i * self.step).timestamp() * 1000) for i in range(self.bins)]


@dataclass(frozen=True, slots=True, kw_only=True)
class OfJob:
    """An attempt of a job (None: all) and the metric to read."""

    cluster: str
    job_id: str
    attempt: int | None
    metric: StoredMetric

    def values(self, grid: Grid) -> dict[str, Any]:
        """Return the parameters of a query."""
        return {
            "cluster": storable(self.cluster),
            "job": storable(self.job_id),
            "attempt": self.attempt,
            "starts": grid.starts,
            "ends": grid.ends,
            "step": grid.step,
            "buckets": None if grid.buckets is None else list(grid.buckets),
        }


def grid_of(starts: datetime, ends: datetime, *, series: int, most: int) -> Grid:
    """Return at most ``most`` bins over a window of which ``series`` have a roll-up every 10 s each."""
    first = starts.timestamp() // BUCKET_SECONDS * BUCKET_SECONDS
    buckets = max(1, -int((first - ends.timestamp()) // BUCKET_SECONDS))
    affordable = max(1, MAX_ROWS // max(1, series))
    width = -(-buckets // max(1, min(most, affordable)))
    step, since = timedelta(seconds=BUCKET_SECONDS * width), datetime.fromtimestamp(first, UTC)
    bins = -(-buckets // width)
    whole = Grid(since, since + bins * step, step, bins)
    if buckets <= affordable:
        return whole
    return Grid(since, whole.ends, step, bins, tuple(since + i * step for i in range(bins)))


_ROWS: LiteralString = """
  FROM steps_10s s
  WHERE s.cluster = %(cluster)s AND s.job_id = %(job)s AND s.bucket >= %(starts)s AND s.bucket < %(ends)s
    AND (%(attempt)s::int4 IS NULL OR s.attempt = %(attempt)s)
    AND (%(buckets)s::timestamptz[] IS NULL OR s.bucket = ANY(%(buckets)s)) AND s.n_steps > 0
"""

_BAND: LiteralString = (
    """
WITH points AS (
  SELECT date_bin(%(step)s, bucket, %(starts)s) AS bin, rank, {value} AS value, first_step, last_step,
    checkpoint_seconds_sum AS checkpoint
"""
    + _ROWS
    + """
)
SELECT round(extract(epoch FROM bin - %(starts)s) / extract(epoch FROM %(step)s::interval))::int4 AS col,
  count(DISTINCT rank) AS ranks, min(first_step) AS first_step, max(last_step) AS last_step,
  max(value) AS max, max(checkpoint) AS checkpoint,
  percentile_cont(ARRAY[0.05, 0.5, 0.95]) WITHIN GROUP (ORDER BY value) AS quantiles,
  (array_agg(rank ORDER BY value DESC, rank))[1] AS slowest
FROM points WHERE value IS NOT NULL GROUP BY bin ORDER BY bin
"""
)

# One pass and no join: before the first ANALYZE of a table the planner takes half a million rows for one, and
# what it joins or sorts by such an estimate takes seconds to minutes.
_VALUES: LiteralString = (
    """
SELECT rank,
  string_agg(int2send(floor(date_part('epoch', s.bucket - %(starts)s) / %(width)s)::int2), ''::bytea) AS cols,
  string_agg(float4send(({value})::float4), ''::bytea) AS values
"""
    + _ROWS
    + """ AND ({value}) > 0 GROUP BY rank ORDER BY rank
"""
)

# All ranks make the same steps; more than one is asked because some may be silent.
_STEPS: LiteralString = (
    "SELECT floor(date_part('epoch', s.bucket - %(starts)s) / %(width)s)::int4, min(first_step), "
    "max(last_step)" + _ROWS + " AND s.rank = ANY(%(some)s::int4[]) GROUP BY 1"
)


@dataclass(frozen=True, slots=True)
class RankValues:
    """The roll-ups of one rank as big-endian arrays of equal length: the bin of each (int16), its value.

    Values are float32 and positive; several are of one bin where that is longer than a roll-up.
    """

    rank: int
    cols: bytes
    values: bytes


def band(conn: Connection[Any], job: OfJob, grid: Grid) -> list[dict[str, Any]]:
    """Return the bins that have steps: quantiles over ranks, the slowest, the longest checkpoint."""
    query = sql.SQL(_BAND).format(value=job.metric.value)
    with conn.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(query, job.values(grid)).fetchall()


def values(conn: Connection[Any], job: OfJob, grid: Grid) -> list[RankValues]:
    """Return the roll-ups of a job by rank, at most some ``MAX_ROWS``."""
    query = sql.SQL(_VALUES).format(value=job.metric.value)
    asked = job.values(grid) | {"width": grid.step.total_seconds()}
    # As bytes: a million Python numbers would take 60 MB.
    with conn.cursor(row_factory=class_row(RankValues), binary=True) as cursor:
        return cursor.execute(query, asked).fetchall()


def steps_of(
    conn: Connection[Any], job: OfJob, grid: Grid, some: Sequence[int]
) -> dict[int, tuple[int, int]]:
    """Return by bin the first and the last step of some ranks."""
    values = job.values(grid) | {"width": grid.step.total_seconds(), "some": list(some)}
    rows = conn.execute(sql.SQL(_STEPS), values).fetchall()
    return {col: (first, last) for col, first, last in rows}
