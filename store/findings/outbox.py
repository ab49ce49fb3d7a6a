"""The outbox: events of findings, and the notification of listeners."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, LiteralString

from psycopg import Connection
from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from alerts.finding import finding_id
from store.findings import queue
from store.text import storable_json

_SELECT: LiteralString = "SELECT id, seq, type, finding_id, at, body FROM events "

CHANNEL = "slowrank_findings"


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxEvent:
    """One event; ``id`` is the webhook-id of all its deliveries, ``body`` the finding as served at that time.

    ``seq`` grows with every event, so that a listener can ask for the events it missed.
    """

    id: str
    seq: int
    type: str
    finding_id: str | None
    at: datetime
    body: dict[str, Any]


def event_id(key: str, at: datetime) -> str:
    """Return ``msg_`` and a ULID: the same key and time give the same id, so an event is recorded once."""
    return "msg_" + finding_id(key, at.timestamp()).removeprefix("fnd_")


def emit(
    conn: Connection[Any], event: OutboxEvent, *, version: int | None = None, to: str | None = None
) -> bool:
    """Record the event with a delivery for every webhook that wants it; return False if it was there before.

    ``to`` addresses one webhook only, regardless of its filters and of silences. ``event.seq`` is ignored:
    the database numbers events. Call it inside the transaction of the change.
    """
    fresh = conn.execute(
        "INSERT INTO events (id, type, finding_id, finding_version, at, body) "
        "VALUES (%s, %s, %s, %s, %s, %s) ON CONFLICT DO NOTHING",
        (event.id, event.type, event.finding_id, version, event.at, Jsonb(storable_json(event.body))),
    )
    if fresh.rowcount == 0:
        return False
    queue.enqueue(conn, event, to)
    return True


def wake(conn: Connection[Any], payload: dict[str, Any]) -> None:
    """Notify listeners on ``CHANNEL`` when the transaction commits."""
    # Ids only: PostgreSQL limits a payload to 8,000 bytes, and listeners read the tables.
    conn.execute("SELECT pg_notify(%s, %s)", (CHANNEL, json.dumps(payload)))


def after(conn: Connection[Any], seq: int, *, limit: int = 500) -> list[OutboxEvent]:
    """Return the events after ``seq``, oldest first."""
    return _select(conn, "WHERE seq > %s ORDER BY seq LIMIT %s", (seq, limit))


def last_seq(conn: Connection[Any]) -> int:
    """Return the number of the newest event, 0 before the first."""
    row = conn.execute("SELECT coalesce(max(seq), 0) FROM events").fetchone()
    return 0 if row is None else int(row[0])


def listen(conn: Connection[Any]) -> None:
    """Subscribe ``conn``, which must be in autocommit, to notifications."""
    # LISTEN takes no parameters.
    conn.execute(f"LISTEN {CHANNEL}")


def unlisten(conn: Connection[Any]) -> None:
    """Unsubscribe ``conn`` before it goes back to a pool."""
    conn.execute(f"UNLISTEN {CHANNEL}")


def wait(conn: Connection[Any], seconds: float) -> bool:
    """Return whether a notification came within ``seconds``; several at once count as one."""
    return any(True for _ in conn.notifies(timeout=seconds, stop_after=1))


def get(conn: Connection[Any], id_: str) -> OutboxEvent | None:
    """Return one event."""
    found = _select(conn, "WHERE id = %s", (id_,))
    return found[0] if found else None


def by_id(conn: Connection[Any], ids: Iterable[str]) -> dict[str, OutboxEvent]:
    """Return the events with these ids."""
    return {event.id: event for event in _select(conn, "WHERE id = ANY(%s)", (list(ids),))}


def _select(conn: Connection[Any], where: LiteralString, parameters: tuple[Any, ...]) -> list[OutboxEvent]:
    with conn.cursor(row_factory=class_row(OutboxEvent)) as cursor:
        return cursor.execute(_SELECT + where, parameters).fetchall()
