"""Findings as bars on a time axis."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, LiteralString

from psycopg import Connection
from psycopg.rows import dict_row

from store.text import storable

_BARS: LiteralString = """
SELECT id, cluster, kind, severity, status, title, subject_type, node, gpu_index, rank, job_id, onset,
  resolved_at, last_seen_at, gpu_hours_lost
FROM findings
WHERE onset < %(ends)s AND (resolved_at IS NULL OR resolved_at >= %(starts)s)
  AND (status IN ('open', 'acknowledged') OR coalesce(resolved_at, last_seen_at) >= %(starts)s)
  AND was_open AND status <> 'suspected' AND NOT shadow
  AND (%(clusters)s::text[] IS NULL OR cluster = ANY(%(clusters)s))
  AND (%(nodes)s::text[] IS NULL OR node = ANY(%(nodes)s))
  AND (%(job)s::text IS NULL OR job_id = %(job)s)
  AND (%(kinds)s::text[] IS NULL OR kind = ANY(%(kinds)s) OR split_part(kind, '.', 1) = ANY(%(kinds)s))
  AND (%(after)s::text IS NULL OR (onset, id) < (%(at)s::timestamptz, %(after)s))
ORDER BY onset DESC, id DESC LIMIT %(limit)s
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class BarFilter:
    """Which findings to list; an empty tuple or None does not filter.

    ``after``: onset and id of the last one of a page.
    """

    starts: datetime
    ends: datetime
    clusters: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    job_id: str | None = None
    after: tuple[datetime, str] | None = None
    limit: int = 1000


def bars(conn: Connection[Any], wanted: BarFilter) -> list[dict[str, Any]]:
    """Return the findings that were open at some time of a window, the newest first."""
    at, after = wanted.after or (None, None)
    values = {
        "starts": wanted.starts,
        "ends": wanted.ends,
        "clusters": _texts(wanted.clusters),
        "nodes": _texts(wanted.nodes),
        "kinds": _texts(wanted.kinds),
        "job": None if wanted.job_id is None else storable(wanted.job_id),
        "at": at,
        "after": None if after is None else storable(after),
        "limit": wanted.limit,
    }
    with conn.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(_BARS, values).fetchall()


def _texts(values: Sequence[str]) -> list[str] | None:
    return [storable(value) for value in values] or None
