"""Stores recordings that wait to be run through the detectors, and what was found in them.

A runner leases one at a time. A lease that expires, because its runner was killed, is taken by the next one,
``MAX_ATTEMPTS`` times at most.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal, LiteralString

from psycopg import Connection
from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from store.text import storable, storable_json

State = Literal["waiting", "running", "done", "failed"]

# Recordings that wait, of all keys together. Chosen: 16 of 5 MiB at most are kept in the database.
MAX_WAITING = 16

# Chosen: a run whose process ended may be tried again once; a recording that ends it would do so each time.
MAX_ATTEMPTS = 2

INTERRUPTED = (
    "interrupted: slowrank was killed or ran out of memory each time that it was tried; post the recording "
    "again, in parts if that ends it too"
)

# How long results are kept (chosen: a week in which people compare).
KEEP = timedelta(days=7)

_COLUMNS: LiteralString = "id, created_by, created_at, state, ended_at, result, error"


@dataclass(frozen=True, slots=True)
class Backtest:
    """One recording; ``result`` is there when it is ``done``, ``error`` when it ``failed``."""

    id: str
    created_by: str
    created_at: datetime
    state: State
    ended_at: datetime | None
    result: dict[str, Any] | None
    error: str


def add(conn: Connection[Any], id_: str, *, by: str, now: datetime, recording: bytes) -> bool:
    """Store a compressed recording; return False where ``MAX_WAITING`` are waiting already."""
    cursor = conn.execute(
        "INSERT INTO backtests (id, created_by, created_at, state, recording) "
        "SELECT %s, %s, %s, 'waiting', %s "
        "WHERE (SELECT count(*) FROM backtests WHERE state IN ('waiting', 'running')) < %s",
        (id_, storable(by), now, recording, MAX_WAITING),
    )
    return cursor.rowcount == 1


def get(conn: Connection[Any], id_: str) -> Backtest | None:
    """Return one."""
    found = _select(conn, "WHERE id = %s", (storable(id_),))
    return found[0] if found else None


def listed(conn: Connection[Any], *, by: str | None, limit: int = 100) -> list[Backtest]:
    """Return the newest, of one key or (None) of all."""
    return _select(
        conn,
        "WHERE %s::text IS NULL OR created_by = %s ORDER BY created_at DESC, id DESC LIMIT %s",
        (by, by, limit),
    )


@dataclass(frozen=True, slots=True)
class Lease:
    """A recording that a runner has; ``attempt`` tells its lease from that of a later runner."""

    id: str
    attempt: int
    recording: bytes


def lease(conn: Connection[Any], now: datetime, seconds: float) -> Lease | None:
    """Take the oldest that waits, or whose runner is gone."""
    with conn.transaction():
        conn.execute(
            "UPDATE backtests SET state = 'failed', ended_at = %s, recording = NULL, "
            "error = %s WHERE state = 'running' AND leased_until <= %s AND attempts >= %s",
            (now, INTERRUPTED, now, MAX_ATTEMPTS),
        )
        conn.execute("DELETE FROM backtests WHERE created_at < %s", (now - KEEP,))
        row = conn.execute(
            "UPDATE backtests SET state = 'running', attempts = attempts + 1, leased_until = %s WHERE id = ("
            "SELECT id FROM backtests WHERE state = 'waiting' OR (state = 'running' AND leased_until <= %s) "
            "ORDER BY created_at, id LIMIT 1 FOR UPDATE SKIP LOCKED) RETURNING id, attempts, recording",
            (now + timedelta(seconds=seconds), now),
        ).fetchone()
    return None if row is None else Lease(row[0], row[1], bytes(row[2]))


def renew(conn: Connection[Any], held: Lease, now: datetime, seconds: float) -> bool:
    """Keep the lease of a runner that goes on; return False where it has lost it."""
    cursor = conn.execute(
        "UPDATE backtests SET leased_until = %s WHERE id = %s AND attempts = %s AND state = 'running'",
        (now + timedelta(seconds=seconds), held.id, held.attempt),
    )
    return cursor.rowcount == 1


def finish(
    conn: Connection[Any], held: Lease, now: datetime, *, result: dict[str, Any] | None, error: str = ""
) -> None:
    """Store what a recording gave, or why it failed, and remove it; nothing where the lease is lost."""
    conn.execute(
        "UPDATE backtests SET state = %s, ended_at = %s, result = %s, error = %s, recording = NULL, "
        "leased_until = NULL WHERE id = %s AND attempts = %s AND state = 'running'",
        (
            "failed" if result is None else "done",
            now,
            None if result is None else Jsonb(storable_json(result)),
            storable(error)[:2000],
            held.id,
            held.attempt,
        ),
    )


def release(conn: Connection[Any], held: Lease) -> None:
    """Let a recording wait again that its runner could not finish; nothing where its lease is lost."""
    conn.execute(
        "UPDATE backtests SET state = 'waiting', attempts = attempts - 1, leased_until = NULL "
        "WHERE id = %s AND attempts = %s AND state = 'running'",
        (held.id, held.attempt),
    )


def _select(conn: Connection[Any], where: LiteralString, values: tuple[Any, ...]) -> list[Backtest]:
    with conn.cursor(row_factory=class_row(Backtest)) as cursor:
        return cursor.execute(f"SELECT {_COLUMNS} FROM backtests " + where, values).fetchall()
