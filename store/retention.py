"""Removal of old rows in small batches, by one process at a time; one function for each process.

Findings that were open are kept for ever.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, LiteralString

from psycopg import Connection, sql

from alerts.config import FindingConfig
from slowrank.settings import Settings
from store.access import requests
from store.evidence.freeze import freeze
from store.findings.findings import expire_silent
from store.findings.leases import WAITING
from store.locks import lock_key
from store.telemetry.ranks import forget_ranks

ROLLUPS = ("samples_10s", "nic_10s", "host_10s", "steps_10s")
# Rows per transaction. Chosen: short transactions hold locks briefly and let vacuum follow.
BATCH = 20_000
# How far back a listener may resume with Last-Event-ID (api.routes.stream), and how long links in alerts
# work. Chosen: a week covers a long weekend.
EVENT_DAYS = 7.0

# Events per transaction; their deliveries and attempts are deleted with them.
EVENT_BATCH = 1_000

# Findings per transaction; their history, events and deliveries are deleted with them.
FINDING_BATCH = 500

_LOCK = lock_key("retention")
_FINDINGS_LOCK = lock_key("retention of findings")
# A lock of its own: the notifier removes events while the sink worker removes roll-ups.
_EVENTS_LOCK = lock_key("retention of events")


# Events of live findings stay: they record which webhooks must be sent the end (store.findings.outbox).
_PRUNE: LiteralString = (
    "DELETE FROM events WHERE id = ANY(ARRAY(SELECT e.id FROM events e WHERE e.created_at < %s "
    "AND NOT EXISTS (SELECT 1 FROM findings f WHERE f.id = e.finding_id "
    "AND f.status IN ('open', 'acknowledged')) "
    "AND NOT EXISTS (SELECT 1 FROM deliveries d LEFT JOIN findings f ON f.id = e.finding_id "
    "WHERE d.event_id = e.id AND " + WAITING + ") LIMIT %s))"
)


def prune_as_sink(
    conn: Connection[Any],
    settings: Settings,
    *,
    now: datetime,
    config_of: Callable[[str], FindingConfig],
) -> None:
    """Apply the retention settings to what the stream workers write, after storing the evidence of findings.

    ``config_of`` returns the finding settings of a cluster. ``conn`` must be in autocommit.
    """
    days, pace_days = settings.retention_rollup_days, settings.retention_pace_days
    # First: it reads the roll-ups that are removed next.
    freeze(conn, now=now, days=days)
    prune_telemetry(conn, now=now, days=days, pace_days=pace_days, config_of=config_of)
    prune_findings(conn, now=now, days=settings.retention_suspicion_days)


def prune_as_notifier(conn: Connection[Any], *, now: datetime) -> None:
    """Remove old events, expired webhook secrets and kept answers. ``conn`` must be in autocommit."""
    prune_events(conn, now=now, days=EVENT_DAYS)
    prune_secrets(conn, now=now)
    requests.prune(conn, now)


def prune_telemetry(
    conn: Connection[Any],
    *,
    now: datetime,
    days: float,
    pace_days: float,
    config_of: Callable[[str], FindingConfig],
) -> dict[str, int] | None:
    """Remove telemetry older than ``days`` and paces older than ``pace_days``; expire findings.

    Returns per table the chunks dropped or rows deleted, and under ``findings`` how many expired; None while
    another process does the same. ``conn`` must be in autocommit: every batch is a transaction.
    """
    with _alone(conn, _LOCK) as alone:
        if not alone:
            return None
        oldest = dict.fromkeys(ROLLUPS, now - timedelta(days=days))
        oldest["job_events"] = now - timedelta(days=days)
        oldest["paces"] = now - timedelta(days=pace_days)
        hypertables = _hypertables(conn)
        removed = {
            name: _drop_chunks(conn, name, before) if name in hypertables else _delete(conn, name, before)
            for name, before in oldest.items()
        }
        removed |= forget_ranks(conn, now - timedelta(days=days))
        return removed | {"findings": expire_silent(conn, now, config_of)}


def prune_events(conn: Connection[Any], *, now: datetime, days: float) -> int | None:
    """Remove events older than ``days`` of findings that ended and have nothing to deliver; return how many.

    Returns None while another process does the same. ``conn`` must be in autocommit.
    """
    with _alone(conn, _EVENTS_LOCK) as alone:
        return _until_none(conn, _PRUNE, (now - timedelta(days=days), EVENT_BATCH)) if alone else None


def prune_findings(conn: Connection[Any], *, now: datetime, days: float) -> int | None:
    """Remove findings of no consequence that ended ``days`` ago, with history and events; return how many.

    These are suspicions, expired findings and findings that were resolved without ever having been open. Kept
    are findings that a person edited and those with deliveries to come. Returns None while another process
    does the same. ``conn`` must be in autocommit.
    """
    with _alone(conn, _FINDINGS_LOCK) as alone:
        if not alone:
            return None
        before, pruned = now - timedelta(days=days), 0
        # A function of the tables' owner: roles of processes may not delete findings (migrations/0013).
        while n := int(_one(conn, "SELECT prune_findings(%s, %s)", (before, FINDING_BATCH))):
            pruned += n
        return pruned


def prune_secrets(conn: Connection[Any], *, now: datetime) -> int:
    """Remove expired webhook secrets; return how many."""
    return conn.execute("DELETE FROM webhook_secrets WHERE expires_at <= %s", (now,)).rowcount


def _hypertables(conn: Connection[Any]) -> frozenset[str]:
    if not _one(conn, "SELECT count(*) FROM pg_extension WHERE extname = 'timescaledb'"):
        return frozenset()
    rows = conn.execute("SELECT hypertable_name FROM timescaledb_information.hypertables").fetchall()
    return frozenset(row[0] for row in rows)


def _drop_chunks(conn: Connection[Any], name: str, before: datetime) -> int:
    # A function of the tables' owner: only the owner may drop chunks (migrations/0005).
    return int(_one(conn, "SELECT drop_old_chunks(%s, %s)", (name, before)))


def _delete(conn: Connection[Any], name: str, before: datetime) -> int:
    table = sql.Identifier(name)
    # DELETE has no LIMIT; ctid names the rows of a batch without an index or a sort.
    statement = sql.SQL(
        "DELETE FROM {} WHERE ctid = ANY(ARRAY(SELECT ctid FROM {} WHERE bucket < %s LIMIT %s))"
    ).format(table, table)
    return _until_none(conn, statement, (before, BATCH))


def _until_none(
    conn: Connection[Any], statement: LiteralString | sql.Composed, parameters: Sequence[Any]
) -> int:
    """Delete batch by batch, each in its own transaction; return the number of rows."""
    deleted = 0
    while (n := conn.execute(statement, parameters).rowcount) > 0:
        deleted += n
    return deleted


@contextmanager
def _alone(conn: Connection[Any], lock: int) -> Iterator[bool]:
    """Try to take an advisory lock for the block; yield whether it was free."""
    if not _one(conn, "SELECT pg_try_advisory_lock(%s)", (lock,)):
        yield False
        return
    try:
        yield True
    finally:
        # The lock belongs to the session, which goes back to its pool.
        conn.execute("SELECT pg_advisory_unlock(%s)", (lock,))


def _one(conn: Connection[Any], statement: LiteralString, parameters: Sequence[Any] = ()) -> Any:
    row = conn.execute(statement, parameters).fetchone()
    assert row is not None
    return row[0]
