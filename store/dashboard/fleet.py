"""The numbers of a fleet: what is open, what it has cost, how much of the jobs' time was productive."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, LiteralString

from psycopg import Connection
from psycopg.rows import dict_row

from store.likely import LIKELY
from store.telemetry.buckets import BUCKET_SECONDS
from store.text import storable

_IN: LiteralString = "(%(clusters)s::text[] IS NULL OR cluster = ANY(%(clusters)s))"
# A job that makes no steps loses nothing by slow ones; a stop is reported on.
_OPEN: LiteralString = (
    "SELECT severity, kind, count(*) AS n, sum(gpu_hours_lost_per_hour) FILTER (WHERE "
    + LIKELY
    + " AND (job.at IS NULL OR job.at >= %(running)s OR findings.last_seen_at > job.at + %(bucket)s)) "
    "AS rate FROM findings "
    "LEFT JOIN LATERAL (SELECT max(jobs.last_seen_at) AS at FROM jobs WHERE jobs.cluster = findings.cluster "
    "AND jobs.job_id = findings.job_id) AS job ON true "
    "WHERE status IN ('open', 'acknowledged') AND NOT shadow AND " + _IN + " GROUP BY severity, kind"
)
# Devices of one name are behind the same switch of every node: a rail.
_RAILS: LiteralString = (
    "SELECT cluster, coalesce(doc #>> '{subject,rail}', doc #>> '{subject,nic}') AS rail, count(*) AS open, "
    "max(severity_rank) + 1 AS worst, array_remove(array_agg(DISTINCT node ORDER BY node), NULL) AS nodes "
    "FROM findings WHERE status IN ('open', 'acknowledged') AND NOT shadow "
    "AND coalesce(doc #>> '{subject,rail}', doc #>> '{subject,nic}') IS NOT NULL AND "
    + _IN
    + " GROUP BY 1, 2 ORDER BY worst DESC, 1, 2 LIMIT 32"
)
# Members of a group are counted with the finding that explains them.
_LOST: LiteralString = (
    "SELECT coalesce(sum(gpu_hours_lost), 0) FROM findings WHERE onset >= %(since)s "
    "AND was_open AND status <> 'suspected' AND group_key IS NULL AND NOT shadow "
    "AND " + LIKELY + " AND " + _IN
)
_NODES: LiteralString = (
    "SELECT count(*) AS nodes, count(*) FILTER (WHERE last_seen_at < %(silent)s) AS silent, "
    "coalesce(sum(gpus), 0) AS gpus, coalesce(sum(gpus) FILTER (WHERE last_seen_at >= %(silent)s), 0) "
    "AS reporting, max(last_seen_at) AS newest FROM nodes WHERE " + _IN
)
# A restart ends an attempt; the time between two attempts is not productive.
_JOBS: LiteralString = (
    "SELECT extract(epoch FROM max(last_seen_at) - greatest(min(first_seen_at), %(since)s))::float8 "
    "* max(world_size) AS wall, sum(extract(epoch FROM last_seen_at - greatest(first_seen_at, %(since)s)) "
    "* world_size)::float8 AS busy, "
    "sum(extract(epoch FROM last_seen_at - greatest(first_seen_at, %(since)s)))::float8 AS running, "
    "count(*) - 1 AS restarts FROM jobs WHERE last_seen_at >= %(since)s AND "
    + _IN
    + " GROUP BY cluster, job_id"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTime:
    """What the jobs of a window had, in GPU-seconds: from first to last step, and within their attempts.

    ``running`` is the latter in seconds, whatever the number of GPUs; ``restarts``: attempts after the first.
    """

    wall: float
    busy: float
    running: float
    restarts: int


def open_findings(
    conn: Connection[Any], clusters: Sequence[str], *, running: datetime
) -> list[dict[str, Any]]:
    """Return by severity and kind how many findings are open, and the GPU-hours that they cost an hour.

    ``running``: a job without a step since then does not run.
    """
    values = {"clusters": _texts(clusters), "running": running, "bucket": timedelta(seconds=BUCKET_SECONDS)}
    with conn.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(_OPEN, values).fetchall()


def gpu_hours_lost(conn: Connection[Any], clusters: Sequence[str], since: datetime) -> float:
    """Return the GPU-hours that findings have cost that began since a time."""
    row = conn.execute(_LOST, {"clusters": _texts(clusters), "since": since}).fetchone()
    return 0.0 if row is None else float(row[0])


def rails(conn: Connection[Any], clusters: Sequence[str]) -> list[dict[str, Any]]:
    """Return the rails with open findings about them or a NIC on them, the worst first, at most 32."""
    with conn.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(_RAILS, {"clusters": [storable(name) for name in clusters] or None}).fetchall()


def node_counts(conn: Connection[Any], clusters: Sequence[str], silent: datetime) -> dict[str, Any]:
    """Return the numbers of nodes and GPUs, those not heard of since ``silent``, and the newest sample."""
    with conn.cursor(row_factory=dict_row) as cursor:
        row = cursor.execute(_NODES, {"clusters": _texts(clusters), "silent": silent}).fetchone()
    return row or {}


def job_time(conn: Connection[Any], clusters: Sequence[str], since: datetime) -> JobTime:
    """Return what the jobs seen since a time had, of that time."""
    rows = conn.execute(_JOBS, {"clusters": _texts(clusters), "since": since}).fetchall()
    wall, busy, running, restarts = (sum(column) for column in zip(*rows, strict=True)) if rows else (0,) * 4
    return JobTime(wall=float(wall), busy=float(busy), running=float(running), restarts=int(restarts))


def _texts(values: Sequence[str]) -> list[str] | None:
    return [storable(value) for value in values] or None
