"""Reads a stretch of the roll-ups: one subject's series beside the band of its peers, on a common time axis.

Every query is bounded: by the time range and bin width that the caller checks, by ``MAX_NODES``, and by a
statement timeout of the transaction that the caller opens (``bounded``).
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, LiteralString

from psycopg import Connection, sql

from store.telemetry.metrics import StoredMetric
from store.text import storable

# Nodes whose devices are the peers of one (chosen: 512 GPUs give quantiles to a part in a hundred, and ten
# minutes of them are 31,000 rows).
MAX_NODES = 64
# Longest statement of a read (chosen: half of what Grafana's role gets; a dashboard asks again).
STATEMENT_SECONDS = 5.0


# The same for a heat map, which reads up to a million roll-ups. Measured: half a million take 3.3 s on two
# cores that eight other processes share (``python -m benchmarks api``).
MATRIX_SECONDS = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Whose rows to read: ``scope`` bounds them all, ``own`` says which of them are the subject's.

    Both are conditions over a row with named parameters in ``values``. ``instance`` is the SQL key by which
    rows belong to one series.
    """

    scope: LiteralString
    own: LiteralString
    instance: LiteralString
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Bin:
    """One bin: the subject's mean, minimum and maximum, and the quantiles of ``n`` values of its peers."""

    at: float
    """Start, in Unix seconds."""
    value: float | None
    lo: float | None
    hi: float | None
    n: int
    p05: float | None
    median: float | None
    p95: float | None


# date_bin and not time_bucket: plain PostgreSQL has it, too.
_BINS: LiteralString = """
WITH points AS (
  SELECT date_bin(%(step)s, bucket, timestamptz '1970-01-01Z') AS bin, ({own}) AS own, {value} AS value
  FROM {table}
  WHERE cluster = %(cluster)s AND bucket >= %(starts)s AND bucket < %(ends)s AND ({scope})
)
SELECT extract(epoch FROM bin)::float8, avg(value) FILTER (WHERE own), min(value) FILTER (WHERE own),
  max(value) FILTER (WHERE own), count(value) FILTER (WHERE NOT own),
  percentile_cont(ARRAY[0.05, 0.5, 0.95]) WITHIN GROUP (ORDER BY value) FILTER (WHERE NOT own)
FROM points WHERE value IS NOT NULL GROUP BY bin ORDER BY bin
"""

_MEANS: LiteralString = """
SELECT bool_or({own}), avg({value})
FROM {table}
WHERE cluster = %(cluster)s AND bucket >= %(starts)s AND bucket < %(ends)s AND ({scope})
GROUP BY {instance} HAVING avg({value}) IS NOT NULL
"""

_OF_JOB: LiteralString = """
SELECT DISTINCT node FROM ranks WHERE cluster = %(cluster)s AND job_id = %(job)s AND node <> %(node)s
ORDER BY node LIMIT %(most)s
"""
# Without a job, or where no other node runs it.
_OF_CLUSTER: LiteralString = """
SELECT node FROM nodes WHERE cluster = %(cluster)s AND node <> %(node)s AND last_seen_at >= %(since)s
ORDER BY node LIMIT %(most)s
"""

# Of a node that has never reported nothing is known. The list of nodes is ahead of the roll-ups, which hold a
# GPU that was lost.
_LACKS: LiteralString = """
SELECT EXISTS (SELECT 1 FROM nodes WHERE cluster = %(cluster)s AND node = %(node)s AND gpus <= %(index)s)
  AND NOT EXISTS (
    SELECT 1 FROM {table} WHERE cluster = %(cluster)s AND node = %(node)s AND instance = %(instance)s)
"""


@contextmanager
def bounded(conn: Connection[Any], seconds: float | None = None) -> Iterator[None]:
    """Run the block in a transaction in which no statement lasts longer than ``seconds``.

    One that does raises ``QueryCanceled``. Without a limit of its own it has ``STATEMENT_SECONDS``.
    """
    with conn.transaction():
        limit = f"{round((seconds or STATEMENT_SECONDS) * 1000)}ms"
        conn.execute("SELECT set_config('statement_timeout', %s, true)", (limit,))
        yield


def bins(
    conn: Connection[Any],
    metric: StoredMetric,
    selection: Selection,
    *,
    cluster: str,
    starts: datetime,
    ends: datetime,
    step: timedelta,
) -> list[Bin]:
    """Return the bins of ``step`` between two times that have values, oldest first."""
    times = {"cluster": storable(cluster), "starts": starts, "ends": ends, "step": step}
    rows = conn.execute(_query(_BINS, metric, selection), times | dict(selection.values))
    return [_bin(row) for row in rows]


def means(
    conn: Connection[Any],
    metric: StoredMetric,
    selection: Selection,
    *,
    cluster: str,
    starts: datetime,
    ends: datetime,
) -> tuple[list[float], list[float]]:
    """Return the mean of each series between two times: those of the subject, those of its peers, sorted."""
    values = {"cluster": storable(cluster), "starts": starts, "ends": ends} | dict(selection.values)
    rows = conn.execute(_query(_MEANS, metric, selection), values).fetchall()
    return sorted(v for own, v in rows if own), sorted(v for own, v in rows if not own)


def peer_nodes(
    conn: Connection[Any], cluster: str, node: str, *, job_id: str | None, since: datetime
) -> list[str]:
    """Return ``node`` and up to ``MAX_NODES`` - 1 to compare it with: its job's, else its cluster's."""
    wanted = {"cluster": storable(cluster), "node": storable(node), "since": since, "most": MAX_NODES - 1}
    rows = []
    if job_id is not None:
        rows = conn.execute(_OF_JOB, wanted | {"job": storable(job_id)}).fetchall()
    if not rows:
        rows = conn.execute(_OF_CLUSTER, wanted).fetchall()
    return [wanted["node"], *(name for (name,) in rows)]


def lacks_device(conn: Connection[Any], metric: StoredMetric, cluster: str, node: str, instance: str) -> bool:
    """Return whether a node that has reported has no such device, and had none as far back as roll-ups go."""
    # Only GPUs are counted; ports, and GPUs that are named by their UUID, are known by their roll-ups.
    is_index = metric.owner == "gpu" and instance.isdecimal() and len(instance) <= 4
    values = {
        "cluster": storable(cluster),
        "node": storable(node),
        "instance": storable(instance),
        "index": int(instance) if is_index else 2**31 - 1,
    }
    query = sql.SQL(_LACKS).format(table=sql.Identifier(metric.table))
    row = conn.execute(query, values).fetchone()
    return row is not None and bool(row[0])


def rank_count(conn: Connection[Any], cluster: str, job_id: str) -> int:
    """Return how many ranks a job has had, in its largest attempt; 1 if that is unknown."""
    row = conn.execute(
        "SELECT max(world_size) FROM jobs WHERE cluster = %s AND job_id = %s",
        (storable(cluster), storable(job_id)),
    ).fetchone()
    return max(1, (row[0] if row else None) or 1)


def of_ranks(
    job_id: str, *, attempt: int | None, own: Sequence[int] | str | None, peers: bool = True
) -> Selection:
    """Return the ranks of a job: ``own`` are some ranks, those of a node, or none (the job itself).

    Without ``peers`` the rows of the others are not read.
    """
    values: dict[str, Any] = {"job": storable(job_id), "attempt": attempt}
    mine: LiteralString = "false"
    if isinstance(own, str):
        mine, values["mine"] = "node = %(mine)s", storable(own)
    elif own is not None:
        mine, values["mine"] = "rank = ANY(%(mine)s::int4[])", list(own)
    scope: LiteralString = "job_id = %(job)s AND (%(attempt)s::int4 IS NULL OR attempt = %(attempt)s)"
    if own is not None and not peers:
        scope = scope + " AND " + mine
    return Selection(scope=scope, own=mine, instance="attempt, rank", values=values)


def of_devices(nodes: Sequence[str], *, node: str, instance: str | None, peers: bool = True) -> Selection:
    """Return the devices of ``nodes``: the subject's is one instance of ``node``, or (None) all of them.

    Without ``peers`` the rows of the others are not read.
    """
    values = {
        "nodes": [storable(name) for name in nodes],
        "mine": storable(node),
        "instance": None if instance is None else storable(instance),
    }
    own: LiteralString = "node = %(mine)s AND (%(instance)s::text IS NULL OR instance = %(instance)s)"
    scope: LiteralString = "node = ANY(%(nodes)s::text[])" if peers else own
    return Selection(scope=scope, own=own, instance="node, instance", values=values)


def _query(template: LiteralString, metric: StoredMetric, selection: Selection) -> sql.Composed:
    return sql.SQL(template).format(
        own=sql.SQL(selection.own),
        scope=sql.SQL(selection.scope),
        instance=sql.SQL(selection.instance),
        value=metric.value,
        table=sql.Identifier(metric.table),
    )


def _bin(row: Sequence[Any]) -> Bin:
    at, value, lo, hi, n, quantiles = row
    p05, median, p95 = quantiles or (None, None, None)
    return Bin(float(at), value, lo, hi, n, p05, median, p95)
