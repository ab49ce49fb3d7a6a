"""Jobs, where their ranks run, and what has cost them GPU-hours."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, LiteralString

from psycopg import Connection
from psycopg.rows import dict_row

from store.likely import LIKELY
from store.text import storable

# Where no row tells the world size, the ranks of the latest attempt that were seen.
_JOBS: LiteralString = """
SELECT cluster, job_id, attempt, attempts, coalesce(nullif(world_size, 0), (
    SELECT count(*)::int FROM ranks AS r
    WHERE r.cluster = page.cluster AND r.job_id = page.job_id AND r.attempt = page.attempt
  )) AS world_size, started_at, last_seen_at, first_step, last_step
FROM (
SELECT cluster, job_id, max(attempt) AS attempt, count(*) AS attempts,
  (array_agg(world_size ORDER BY attempt DESC))[1] AS world_size,
  min(first_seen_at) AS started_at, max(last_seen_at) AS last_seen_at,
  (array_agg(first_step ORDER BY attempt))[1] AS first_step, max(last_step) AS last_step
FROM jobs
WHERE (%(clusters)s::text[] IS NULL OR cluster = ANY(%(clusters)s))
  AND (%(job)s::text IS NULL OR job_id = %(job)s)
  AND (%(since)s::timestamptz IS NULL OR last_seen_at >= %(since)s)
GROUP BY cluster, job_id
HAVING %(after)s::text[] IS NULL
  OR (min(first_seen_at), cluster, job_id) < (%(at)s::timestamptz, %(after)s[1], %(after)s[2])
ORDER BY started_at DESC, cluster DESC, job_id DESC LIMIT %(limit)s
) AS page ORDER BY started_at DESC, cluster DESC, job_id DESC
"""

_ATTEMPTS: LiteralString = """
SELECT attempt, world_size, first_step, last_step, first_seen_at, last_seen_at FROM jobs
WHERE cluster = %s AND job_id = %s ORDER BY attempt DESC LIMIT 100
"""

# Members of a group are counted with the finding that explains them. From the index findings_job_cost alone.
_TOTALS: LiteralString = f"""
SELECT cluster, job_id, count(*) FILTER (WHERE status IN ('open', 'acknowledged')) AS open_findings,
  coalesce(sum(gpu_hours_lost) FILTER (WHERE {LIKELY}), 0)::float8
    AS gpu_hours_lost
FROM findings
WHERE job_id = ANY(%(jobs)s) AND was_open AND status <> 'suspected' AND group_key IS NULL AND NOT shadow
GROUP BY cluster, job_id
"""

# Those that an incident explains, too: the job stands still all the same.
_HUNG: LiteralString = f"""
SELECT DISTINCT cluster, job_id FROM findings
WHERE job_id = ANY(%s) AND kind = 'hang.job' AND status IN ('open', 'acknowledged') AND NOT shadow
  AND {LIKELY}
"""


_LAST_STEPS: LiteralString = """
SELECT cluster, job_id, max(last_seen_at) FROM jobs
WHERE (cluster, job_id) IN (SELECT * FROM unnest(%s::text[], %s::text[])) GROUP BY cluster, job_id
"""

_COSTS: LiteralString = f"""
SELECT kind, cause, count(*) AS findings, count(*) FILTER (WHERE status IN ('open', 'acknowledged')) AS open,
  coalesce(sum(gpu_hours_lost) FILTER (WHERE {LIKELY}), 0)::float8
    AS gpu_hours_lost
FROM findings
WHERE cluster = %s AND job_id = %s AND was_open AND status <> 'suspected' AND group_key IS NULL AND NOT shadow
GROUP BY kind, cause ORDER BY gpu_hours_lost DESC, kind, cause
"""

_EVENTS: LiteralString = """
SELECT bucket AS at, code, message FROM job_events
WHERE cluster = %(cluster)s AND job_id = %(job)s AND bucket >= %(starts)s AND bucket <= %(ends)s
ORDER BY bucket, code LIMIT 5000
"""

# Members of a group are shown by the finding that explains them.
_FINDINGS: LiteralString = """
SELECT id, title, onset, resolved_at FROM findings
WHERE cluster = %(cluster)s AND job_id = %(job)s
  AND was_open AND status <> 'suspected' AND group_key IS NULL AND NOT shadow
  AND (onset BETWEEN %(starts)s AND %(ends)s OR resolved_at BETWEEN %(starts)s AND %(ends)s)
ORDER BY onset, id LIMIT 1000
"""

_RANKS: LiteralString = """
SELECT rank, node, gpu_index, dp, pp, tp, cp, ep, first_seen_at, last_seen_at FROM ranks
WHERE cluster = %(cluster)s AND job_id = %(job)s AND attempt = %(attempt)s AND rank > %(after)s
ORDER BY rank LIMIT %(limit)s
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFilter:
    """Which jobs to list; an empty tuple or None does not filter.

    ``after``: start, cluster and id of the last one of a page.
    """

    clusters: tuple[str, ...] = ()
    job_id: str | None = None
    since: datetime | None = None
    after: tuple[datetime, str, str] | None = None
    limit: int = 100


def jobs(conn: Connection[Any], wanted: JobFilter) -> list[dict[str, Any]]:
    """Return jobs, the latest start first."""
    at, *after = wanted.after or (None,)
    values = {
        "clusters": [storable(name) for name in wanted.clusters] or None,
        "job": None if wanted.job_id is None else storable(wanted.job_id),
        "since": wanted.since,
        "at": at,
        "after": [storable(str(name)) for name in after] or None,
        "limit": wanted.limit,
    }
    with conn.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(_JOBS, values).fetchall()


def with_totals(conn: Connection[Any], found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the jobs, each with its open findings, the GPU-hours that all cost it, and if it is hung."""
    names = {"jobs": [row["job_id"] for row in found]}
    totals = {(row[0], row[1]): row[2:] for row in conn.execute(_TOTALS, names).fetchall()}
    of_each = (totals.get((row["cluster"], row["job_id"]), (0, 0.0)) for row in found)
    stuck = hung(conn, names["jobs"])
    return [
        row
        | {"open_findings": open_, "gpu_hours_lost": lost, "hung": (row["cluster"], row["job_id"]) in stuck}
        for row, (open_, lost) in zip(found, of_each, strict=True)
    ]


def hung(conn: Connection[Any], job_ids: Sequence[str]) -> set[tuple[str, str]]:
    """Return cluster and id of the jobs of these ids that an open finding says to be hung."""
    return set(conn.execute(_HUNG, (list(job_ids),)).fetchall())


def last_steps(
    conn: Connection[Any], job_keys: Collection[tuple[str, str]]
) -> dict[tuple[str, str], datetime]:
    """Return when jobs, given by cluster and id, made their last step, to ten seconds."""
    keys = sorted({(storable(cluster), storable(job_id)) for cluster, job_id in job_keys})
    rows = conn.execute(_LAST_STEPS, ([cluster for cluster, _ in keys], [job_id for _, job_id in keys]))
    return {(cluster, job_id): at for cluster, job_id, at in rows.fetchall()}


def costs_of(conn: Connection[Any], cluster: str, job_id: str) -> list[dict[str, Any]]:
    """Return by kind and cause how many findings a job had and what they cost, the dearest first."""
    with conn.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(_COSTS, (storable(cluster), storable(job_id))).fetchall()


def totals_of(costs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the sums that ``with_totals`` adds, from the costs of a job."""
    lost = math.fsum(row["gpu_hours_lost"] for row in costs)
    return {"open_findings": sum(row["open"] for row in costs), "gpu_hours_lost": lost}


def attempts(conn: Connection[Any], cluster: str, job_id: str) -> list[dict[str, Any]]:
    """Return the attempts of a job, the latest first, at most 100."""
    with conn.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(_ATTEMPTS, (storable(cluster), storable(job_id))).fetchall()


def events(
    conn: Connection[Any], cluster: str, job_id: str, starts: datetime, ends: datetime
) -> list[dict[str, Any]]:
    """Return what a job declared in a window, at most 5,000 events."""
    return _within(conn, _EVENTS, cluster, job_id, starts, ends)


def findings_within(
    conn: Connection[Any], cluster: str, job_id: str, starts: datetime, ends: datetime
) -> list[dict[str, Any]]:
    """Return the findings about a job that began or ended in a window, at most 1,000."""
    return _within(conn, _FINDINGS, cluster, job_id, starts, ends)


def _within(
    conn: Connection[Any], query: LiteralString, cluster: str, job_id: str, starts: datetime, ends: datetime
) -> list[dict[str, Any]]:
    values = {"cluster": storable(cluster), "job": storable(job_id), "starts": starts, "ends": ends}
    with conn.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(query, values).fetchall()


def ranks(
    conn: Connection[Any], cluster: str, job_id: str, attempt: int, *, after: int = -1, limit: int = 100_000
) -> list[dict[str, Any]]:
    """Return where the ranks of an attempt run, by rank."""
    values = {
        "cluster": storable(cluster),
        "job": storable(job_id),
        "attempt": attempt,
        "after": after,
        "limit": limit,
    }
    with conn.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(_RANKS, values).fetchall()
