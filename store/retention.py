"""Old roll-ups, paces and news go, a little at a time, by one process at a time. Findings stay for ever."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, LiteralString

from psycopg import Connection, sql

from alerts.config import FindingConfig
from store import requests
from store.findings import expire_silent
from store.leases import WAITING
from store.locks import lock_key

ROLLUPS = ("samples_10s", "nic_10s", "host_10s", "steps_10s")
# Rows a transaction: short ones hold no lock for long and let vacuum follow.
BATCH = 20_000
# So far back a listener may go with Last-Event-ID (api.routes.stream).
EVENT_DAYS = 7.0

# Of events, each of which takes its deliveries and their log along.
EVENT_BATCH = 1_000

# Of findings, each of which takes its history, its events and their deliveries along.
FINDING_BATCH = 500

_LOCK = lock_key("retention")
_FINDINGS_LOCK = lock_key("retention of findings")
# Another: the notifier removes events while the sink worker removes roll-ups.
_EVENTS_LOCK = lock_key("retention of events")


# Who was sent the beginning of a finding is sent its end (store.events), and has to be known until then.
_PRUNE: LiteralString = (
    "DELETE FROM events WHERE id = ANY(ARRAY(SELECT e.id FROM events e WHERE e.created_at < %s "
    "AND NOT EXISTS (SELECT 1 FROM findings f WHERE f.id = e.finding_id "
    "AND f.status IN ('open', 'acknowledged')) "
    "AND NOT EXISTS (SELECT 1 FROM deliveries d LEFT JOIN findings f ON f.id = e.finding_id "
    "WHERE d.event_id = e.id AND " + WAITING + ") LIMIT %s))"
)


def run(
    conn: Connection[Any],
    *,
    now: datetime,
    days: float,
    pace_days: float,
    config_of: Callable[[str], FindingConfig],
) -> dict[str, int] | None:
    """Remove roll-ups older than ``days``, paces older than ``pace_days``, and end findings that nobody
    speaks of any more.

    ``config_of`` says for each cluster when that is. Returns per table the chunks dropped or rows deleted,
    and under ``findings`` how many ended.

    Returns None when another process is at it. ``conn`` must be in autocommit: every batch is a transaction.
    """
    with _alone(conn, _LOCK) as alone:
        if not alone:
            return None
        oldest = dict.fromkeys(ROLLUPS, now - timedelta(days=days))
        oldest["paces"] = now - timedelta(days=pace_days)
        hypertables = _hypertables(conn)
        removed = {
            name: _drop_chunks(conn, name, before) if name in hypertables else _delete(conn, name, before)
            for name, before in oldest.items()
        }
        return removed | {"findings": expire_silent(conn, now, config_of)}


def prune_events(conn: Connection[Any], *, now: datetime, days: float) -> int | None:
    """Remove events older than ``days`` whose finding is over and delivered, with their log; return how many.

    Returns None when another process is at it. ``conn`` must be in autocommit: every batch is a transaction.
    """
    with _alone(conn, _EVENTS_LOCK) as alone:
        return _until_none(conn, _PRUNE, (now - timedelta(days=days), EVENT_BATCH)) if alone else None


def prune_findings(conn: Connection[Any], *, now: datetime, days: float) -> int | None:
    """Remove findings that came to nothing ``days`` ago, with their history and events; return how many.

    These are suspicions, and what ended because nothing was heard of it any more; also what ended without
    ever having been open. What a person has said something about stays, and so does what is still to be
    delivered. Returns None when another process is at it. ``conn`` must be in autocommit.
    """
    with _alone(conn, _FINDINGS_LOCK) as alone:
        if not alone:
            return None
        before, pruned = now - timedelta(days=days), 0
        # A function of the tables' owner: no role of a process may remove a finding (migrations/0013).
        while n := int(_one(conn, "SELECT prune_findings(%s, %s)", (before, FINDING_BATCH))):
            pruned += n
        return pruned


def prune_deliveries(conn: Connection[Any], *, now: datetime) -> None:
    """Remove old events, and the secrets and answers that are kept for a time; the notifier's share.

    ``conn`` must be in autocommit.
    """
    prune_events(conn, now=now, days=EVENT_DAYS)
    prune_secrets(conn, now=now)
    requests.prune(conn, now)


def prune_secrets(conn: Connection[Any], *, now: datetime) -> int:
    """Remove webhook secrets that sign nothing any more; return how many."""
    return conn.execute("DELETE FROM webhook_secrets WHERE expires_at <= %s", (now,)).rowcount


def _hypertables(conn: Connection[Any]) -> frozenset[str]:
    if not _one(conn, "SELECT count(*) FROM pg_extension WHERE extname = 'timescaledb'"):
        return frozenset()
    rows = conn.execute("SELECT hypertable_name FROM timescaledb_information.hypertables").fetchall()
    return frozenset(row[0] for row in rows)


def _drop_chunks(conn: Connection[Any], name: str, before: datetime) -> int:
    # A function of the tables' owner, who alone may drop chunks (migrations/0005).
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
    """Delete batch by batch, each in a transaction of its own; return how many rows that were."""
    deleted = 0
    while (n := conn.execute(statement, parameters).rowcount) > 0:
        deleted += n
    return deleted


@contextmanager
def _alone(conn: Connection[Any], lock: int) -> Iterator[bool]:
    """Say whether no other process is at what the lock is for, and keep others from it until the end."""
    if not _one(conn, "SELECT pg_try_advisory_lock(%s)", (lock,)):
        yield False
        return
    try:
        yield True
    finally:
        # The session goes back to its pool, and would keep the lock.
        conn.execute("SELECT pg_advisory_unlock(%s)", (lock,))


def _one(conn: Connection[Any], statement: LiteralString, parameters: Sequence[Any] = ()) -> Any:
    row = conn.execute(statement, parameters).fetchone()
    assert row is not None
    return row[0]
