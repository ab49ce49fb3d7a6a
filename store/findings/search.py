"""Searches findings: filters, pages by keyset, and counts for dashboards."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, LiteralString

from psycopg import Connection
from psycopg.rows import dict_row

from store.findings.rows import StoredFinding, served
from store.likely import LIKELY
from store.text import storable

Sort = Literal["cost", "onset", "detected_at", "updated_at", "severity"]

# Expression over ``findings`` and its type by sort name; every order is descending, ties broken by id. What
# totals of costs leave out has none.
_SORTS: dict[str, tuple[LiteralString, LiteralString]] = {
    "cost": ("(CASE WHEN " + LIKELY + " THEN gpu_hours_lost_per_hour ELSE 0 END)", "float8"),
    "onset": ("onset", "timestamptz"),
    "detected_at": ("detected_at", "timestamptz"),
    "updated_at": ("updated_at", "timestamptz"),
    "severity": ("severity_rank", "int2"),
}

_WHERE: LiteralString = """
WHERE (%(status)s::text[] IS NULL OR status = ANY(%(status)s))
  AND (%(severity)s::text[] IS NULL OR severity = ANY(%(severity)s))
  AND (%(kinds)s::text[] IS NULL OR kind = ANY(%(kinds)s) OR split_part(kind, '.', 1) = ANY(%(kinds)s))
  AND (%(clusters)s::text[] IS NULL OR cluster = ANY(%(clusters)s))
  AND (%(nodes)s::text[] IS NULL OR node = ANY(%(nodes)s))
  AND (%(job_id)s::text IS NULL OR job_id = %(job_id)s)
  AND (was_open OR status = 'suspected')
  AND (%(shadow)s::boolean IS NULL OR shadow = %(shadow)s)
  AND (%(dedup_key)s::text IS NULL OR dedup_key = %(dedup_key)s)
  AND (%(min_confidence)s::float8 IS NULL OR confidence >= %(min_confidence)s)
  AND (%(onset_from)s::timestamptz IS NULL OR onset >= %(onset_from)s)
  AND (%(onset_to)s::timestamptz IS NULL OR onset < %(onset_to)s)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingFilter:
    """Which findings to list; an empty tuple or None does not filter.

    Suspicions that ended without having opened are never listed. ``kinds`` takes whole kinds and families
    (``straggler``). ``after`` is ``FindingPage.next`` of the previous page, made with the same filter.
    ``shadow``: only shadow findings, none (False) or all (None).
    """

    status: tuple[str, ...] = ()
    severity: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    clusters: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    job_id: str | None = None
    dedup_key: str | None = None
    shadow: bool | None = False
    min_confidence: float | None = None
    onset_from: datetime | None = None
    onset_to: datetime | None = None
    sort: Sort = "cost"
    limit: int = 100
    after: tuple[Any, str] | None = None


@dataclass(frozen=True, slots=True)
class FindingPage:
    """One page; ``next`` is JSON-ready and None on the last page, ``total`` counts all pages."""

    items: tuple[StoredFinding, ...]
    next: tuple[Any, str] | None
    total: int


def find(conn: Connection[Any], wanted: FindingFilter) -> FindingPage:
    """Return the page of findings after ``wanted.after``."""
    value, kind = _SORTS[wanted.sort]
    values = _parameters(wanted)
    position: LiteralString = ""
    if wanted.after is not None:
        position = f"AND ({value}, id) < (%(at)s::{kind}, %(after)s) "
        values |= {"at": wanted.after[0], "after": storable(wanted.after[1])}
    order: LiteralString = f"ORDER BY {value} DESC, id DESC LIMIT %(limit)s"
    with conn.cursor(row_factory=dict_row) as cursor:
        columns: LiteralString = f"SELECT *, {value} AS sorted_by FROM findings "
        rows = cursor.execute(columns + _WHERE + position + order, values).fetchall()
        total = cursor.execute("SELECT count(*) AS n FROM findings " + _WHERE, values).fetchone()
    more = len(rows) > wanted.limit
    shown = rows[: wanted.limit]
    last = _json_ready(shown[-1]["sorted_by"]) if more else None
    return FindingPage(
        tuple(served(row) for row in shown),
        (last, shown[-1]["id"]) if more else None,
        total["n"] if total else 0,
    )


def open_counts(conn: Connection[Any]) -> dict[tuple[str, str], int]:
    """Count open and acknowledged findings by (kind, severity)."""
    rows = conn.execute(
        "SELECT kind, severity, count(*) FROM findings WHERE status IN ('open', 'acknowledged') "
        "AND NOT shadow GROUP BY kind, severity"
    ).fetchall()
    return {(kind, severity): n for kind, severity, n in rows}


def _parameters(wanted: FindingFilter) -> dict[str, Any]:
    lists = {
        name: [storable(v) for v in getattr(wanted, name)] or None
        for name in ("status", "severity", "kinds", "clusters", "nodes")
    }
    texts = {
        name: None if (value := getattr(wanted, name)) is None else storable(value)
        for name in ("job_id", "dedup_key")
    }
    names = ("shadow", "min_confidence", "onset_from", "onset_to")
    others = {name: getattr(wanted, name) for name in names}
    # One row more than the page holds shows whether there is a next page.
    return {**lists, **texts, **others, "limit": wanted.limit + 1}


def _json_ready(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value
