"""Stores the pace of ranks by GPU, job and day, and selects the days of GPUs that may be chronically slow.

Each hour is added to its day once. ``detectors.fleet.chronic`` decides which GPU is slow.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, LiteralString

from psycopg import Connection

from detectors.fleet.chronic import LARGEST, MIN_DAYS, MIN_JOBS, Day, Machine, Pace
from store.findings.rows import moment
from store.text import storable

_HOUR, _DAY = 3600, 86_400
_MILLIONTHS = 1e6
# A larger spread would not fit its int4 column; healthy GPUs have 0.006.
_MAX_SPREAD = 10.0
_INT4 = 2**31 - 1

_ADD: LiteralString = """
INSERT INTO paces (bucket, cluster, node, gpu_index, job_id, rank, hours, n, ratio_sum, spread_max)
VALUES (%s, %s, %s, %s, %s, %s, %s, 1, %s, %s)
ON CONFLICT (cluster, node, gpu_index, job_id, bucket) DO UPDATE SET
  rank = greatest(paces.rank, excluded.rank),
  hours = paces.hours | excluded.hours,
  n = paces.n + 1,
  ratio_sum = paces.ratio_sum + excluded.ratio_sum,
  spread_max = greatest(paces.spread_max, excluded.spread_max)
WHERE paces.hours & excluded.hours = 0
"""

_MEANS: LiteralString = """
SELECT sum(ratio_sum)::float8 / sum(n) / 1e6, stddev_samp(ratio_sum::float8 / n) / 1e6
FROM paces
WHERE cluster = %s AND bucket >= %s
GROUP BY node, gpu_index
"""

_SUSPECTS: LiteralString = """
SELECT node, gpu_index, job_id, rank, extract(epoch FROM bucket)::float8, n, ratio_sum, spread_max
FROM paces
JOIN (
  SELECT node, gpu_index
  FROM paces
  WHERE cluster = %(cluster)s AND bucket >= %(since)s AND ratio_sum >= n * %(least)s::float8
  GROUP BY node, gpu_index
  HAVING count(DISTINCT bucket) >= %(days)s AND count(DISTINCT job_id) >= %(jobs)s
) AS slow USING (node, gpu_index)
WHERE cluster = %(cluster)s AND bucket >= %(since)s
"""


def write_rank_paces(conn: Connection[Any], paces: Iterable[Pace]) -> None:
    """Store paces in one transaction; an hour of a GPU in a job that was added before changes nothing."""
    rows = sorted(_row(pace) for pace in paces)
    if not rows:
        return
    with conn.transaction(), conn.cursor() as cursor:
        # Sorted: two writers that lock the same rows in different orders would deadlock.
        cursor.executemany(_ADD, rows)


def clusters(conn: Connection[Any], since: datetime) -> list[str]:
    """Return the clusters with paces, sorted."""
    rows = conn.execute("SELECT DISTINCT cluster FROM paces WHERE bucket >= %s", (since,)).fetchall()
    return sorted(name for (name,) in rows)


def means(conn: Connection[Any], cluster: str, since: datetime) -> Sequence[tuple[float, float | None]]:
    """Return per GPU its mean log ratio and the standard deviation of its days (None with one day)."""
    return conn.execute(_MEANS, (storable(cluster), since)).fetchall()


def suspects(conn: Connection[Any], cluster: str, since: datetime, *, least: float) -> list[Day]:
    """Return the days of GPUs with enough days and jobs at half of ``least`` (log ratio) or more."""
    wanted = {
        "cluster": storable(cluster),
        "since": since,
        "least": least / 2 * _MILLIONTHS,
        "days": MIN_DAYS,
        "jobs": MIN_JOBS,
    }
    return [
        Day(
            machine=Machine(cluster, node, gpu_index),
            job=job,
            rank=rank,
            at=at,
            hours=n,
            log_ratio=total / n / _MILLIONTHS,
            spread=spread / _MILLIONTHS,
        )
        for node, gpu_index, job, rank, at, n, total, spread in conn.execute(_SUSPECTS, wanted)
    ]


def _row(pace: Pace) -> tuple[Any, ...]:
    day = pace.at // _DAY * _DAY
    hour = int((pace.at - day) // _HOUR)
    where = (storable(pace.machine.cluster), storable(pace.machine.node), pace.machine.gpu_index)
    ratio = min(max(pace.log_ratio, -LARGEST), LARGEST)
    sums = (round(ratio * _MILLIONTHS), round(min(pace.spread, _MAX_SPREAD) * _MILLIONTHS))
    return (moment(day), *where, storable(pace.job), min(pace.rank, _INT4), 1 << hour, *sums)
