"""The step times of a job's ranks, bin by bin.

A long window of a large job has more rows than a read may take. Then of every bin one roll-up of 10 s is read
instead of all (``Grid.sampled``), which the caller states beside the numbers.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, LiteralString

from psycopg import Connection, sql
from psycopg.rows import class_row

from store.telemetry.buckets import BUCKET_SECONDS
from store.telemetry.metrics import StoredMetric
from store.text import storable

# Roll-ups that one read may take. Chosen: some seconds of the database's time; 1,024 ranks for 500 bins are
# half of it.
MAX_ROWS = 1_000_000


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
            "width": grid.step.total_seconds(),
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


# One pass and no join: before the first ANALYZE of a table the planner takes half a million rows for one, and
# what it joins or sorts by such an estimate takes seconds to minutes.
_VALUES: LiteralString = """
SELECT floor(date_part('epoch', s.bucket - %(starts)s) / %(width)s)::int4 AS col,
  min(first_step) AS first_step, max(last_step) AS last_step, max(checkpoint_seconds_sum) AS checkpoint,
  string_agg(int4send(rank), ''::bytea) AS ranks,
  string_agg(float8send(coalesce({value}, 'NaN')), ''::bytea) AS values
FROM steps_10s s
WHERE s.cluster = %(cluster)s AND s.job_id = %(job)s AND s.bucket >= %(starts)s AND s.bucket < %(ends)s
  AND (%(attempt)s::int4 IS NULL OR s.attempt = %(attempt)s)
  AND (%(buckets)s::timestamptz[] IS NULL OR s.bucket = ANY(%(buckets)s)) AND s.n_steps > 0
GROUP BY col ORDER BY col
"""


@dataclass(frozen=True, slots=True)
class BinValues:
    """The roll-ups of one bin as big-endian arrays of equal length: the rank of each (int32), its value.

    Values are float64, NaN where a roll-up has none; a rank has several where bins are longer than roll-ups.
    ``checkpoint``: the longest time, in seconds, that a roll-up spent saving.
    """

    col: int
    first_step: int
    last_step: int
    checkpoint: float | None
    ranks: bytes
    values: bytes


def values(conn: Connection[Any], job: OfJob, grid: Grid) -> list[BinValues]:
    """Return the roll-ups of a job by the bins that have any, at most some ``MAX_ROWS``."""
    query = sql.SQL(_VALUES).format(value=job.metric.value)
    # As bytes: a million Python numbers would take 60 MB.
    with conn.cursor(row_factory=class_row(BinValues), binary=True) as cursor:
        return cursor.execute(query, job.values(grid)).fetchall()
