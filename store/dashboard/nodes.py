"""Nodes and GPUs with their open findings, and the history of one GPU across nodes."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, LiteralString

from psycopg import Connection
from psycopg.rows import dict_row

from store.text import storable

# Findings of one GPU or node that are listed (chosen: a page of them; the newest).
HISTORY = 200

# Severities are 1 (info) to 4 (critical) here and 0 where nothing is open.
_NODES: LiteralString = """
SELECT n.cluster, n.node, n.last_seen_at, n.rack, n.switch, n.gpus, n.nics, n.job_id,
  coalesce(f.open, 0) AS open, coalesce(f.worst, 0) AS worst, f.on_gpus
FROM nodes n LEFT JOIN (
  SELECT cluster, node, count(*) AS open, max(severity_rank) + 1 AS worst,
    array_agg(ARRAY[gpu_index, severity_rank + 1]) FILTER (WHERE gpu_index IS NOT NULL) AS on_gpus
  FROM findings WHERE status IN ('open', 'acknowledged') AND NOT shadow AND node IS NOT NULL
  GROUP BY cluster, node
) f ON f.cluster = n.cluster AND f.node = n.node
WHERE (%(clusters)s::text[] IS NULL OR n.cluster = ANY(%(clusters)s))
  AND (%(nodes)s::text[] IS NULL OR n.node = ANY(%(nodes)s))
  AND (%(racks)s::text[] IS NULL OR n.rack = ANY(%(racks)s))
  AND (%(job)s::text IS NULL OR n.job_id = %(job)s)
  AND (%(after)s::text[] IS NULL OR (n.cluster, n.node) > (%(after)s[1], %(after)s[2]))
ORDER BY n.cluster, n.node LIMIT %(limit)s
"""

_RANKS: LiteralString = """
SELECT job_id, attempt, rank, gpu_index, dp, pp, tp, cp, ep, last_seen_at FROM ranks
WHERE cluster = %s AND node = %s AND last_seen_at >= %s
ORDER BY last_seen_at DESC, job_id, rank LIMIT 64
"""

_OF_NODE: LiteralString = "cluster = %(cluster)s AND node = %(name)s"
_OF_HARDWARE: LiteralString = "(gpu_uuid = %(name)s OR serial = %(name)s)"
_OF_PLACE: LiteralString = "node = %(node)s AND gpu_index = %(gpu)s AND gpu_uuid IS NULL AND serial IS NULL"
_FINDINGS: LiteralString = """
SELECT id, cluster, node, gpu_index, gpu_uuid, serial, kind, severity, status, title, onset, resolved_at,
  gpu_hours_lost, doc #>> '{cause,hypothesis}' AS cause
FROM findings WHERE """
_NEWEST: LiteralString = """ AND was_open AND status <> 'suspected' AND NOT shadow
  AND (%(clusters)s::text[] IS NULL OR cluster = ANY(%(clusters)s))
ORDER BY onset DESC, id DESC LIMIT %(limit)s
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFilter:
    """Which nodes to list; an empty tuple or None does not filter. ``after``: the last one of a page."""

    clusters: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    racks: tuple[str, ...] = ()
    job_id: str | None = None
    after: tuple[str, str] | None = None
    limit: int = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """A node with the worst severity (0 to 4) of what is open on it, and of each of its GPUs (``pips``)."""

    cluster: str
    node: str
    last_seen_at: datetime
    rack: str | None
    switch: str | None
    gpus: int
    nics: int
    job_id: str | None
    open: int
    worst: int
    pips: tuple[int, ...]


def nodes(conn: Connection[Any], wanted: NodeFilter) -> list[NodeState]:
    """Return nodes by cluster and name."""
    values = {
        "clusters": _texts(wanted.clusters),
        "nodes": _texts(wanted.nodes),
        "racks": _texts(wanted.racks),
        "job": None if wanted.job_id is None else storable(wanted.job_id),
        "after": None if wanted.after is None else [storable(name) for name in wanted.after],
        "limit": wanted.limit,
    }
    with conn.cursor(row_factory=dict_row) as cursor:
        rows = cursor.execute(_NODES, values).fetchall()
    return [NodeState(**(row | {"pips": _pips(row["gpus"], row.pop("on_gpus"))})) for row in rows]


def ranks_on(conn: Connection[Any], cluster: str, node: str, since: datetime) -> list[dict[str, Any]]:
    """Return the ranks that ran on a node since a time, the latest first, at most 64."""
    with conn.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(_RANKS, (storable(cluster), storable(node), since)).fetchall()


def findings_of_node(conn: Connection[Any], cluster: str, node: str) -> list[dict[str, Any]]:
    """Return the newest findings of a node."""
    return _history(conn, _OF_NODE, {"cluster": storable(cluster), "name": storable(node)}, ())


def findings_of_gpu(conn: Connection[Any], name: str, clusters: Sequence[str]) -> list[dict[str, Any]]:
    """Return the newest findings of a GPU on whatever node: by its UUID or serial, else ``node:index``."""
    found = _history(conn, _OF_HARDWARE, {"name": storable(name)}, clusters)
    node, _, index = name.rpartition(":")
    if found or not node or not index.isdigit() or len(index) > 4:
        return found
    return _history(conn, _OF_PLACE, {"node": storable(node), "gpu": int(index)}, clusters)


def _history(
    conn: Connection[Any], where: LiteralString, values: dict[str, Any], clusters: Sequence[str]
) -> list[dict[str, Any]]:
    with conn.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(
            _FINDINGS + where + _NEWEST, values | {"clusters": _texts(clusters), "limit": HISTORY}
        ).fetchall()


def _texts(values: Sequence[str]) -> list[str] | None:
    return [storable(value) for value in values] or None


def _pips(gpus: int, found: Sequence[Sequence[int]] | None) -> tuple[int, ...]:
    pips = [0] * max(0, gpus)
    for index, severity in found or ():
        if 0 <= index < len(pips):
            pips[index] = max(pips[index], severity)
    return tuple(pips)
