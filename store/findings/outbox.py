"""The outbox: events of findings, the deliveries they give rise to, and the notification of listeners."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, LiteralString

from psycopg import Connection
from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from alerts.finding import finding_id
from alerts.notify import DEFAULT_EVENTS, END
from alerts.report.severity import ORDER
from alerts.silence import labels, muting
from store.findings import silences
from store.text import storable_json

_SELECT: LiteralString = "SELECT id, seq, type, finding_id, at, body FROM events "

CHANNEL = "slowrank_findings"
WEBHOOK_PLACE = "webhook:"
"""Prefix of the subject (``node``) of a finding about a webhook; the webhook's id follows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
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


def emit(conn: Connection[Any], event: Event, *, version: int | None = None, to: str | None = None) -> bool:
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
    _enqueue(conn, event, to)
    return True


def wake(conn: Connection[Any], payload: dict[str, Any]) -> None:
    """Notify listeners on ``CHANNEL`` when the transaction commits."""
    # Ids only: PostgreSQL limits a payload to 8,000 bytes, and listeners read the tables.
    conn.execute("SELECT pg_notify(%s, %s)", (CHANNEL, json.dumps(payload)))


def after(conn: Connection[Any], seq: int, *, limit: int = 500) -> list[Event]:
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


def get(conn: Connection[Any], id_: str) -> Event | None:
    """Return one event."""
    found = _select(conn, "WHERE id = %s", (id_,))
    return found[0] if found else None


def by_id(conn: Connection[Any], ids: Iterable[str]) -> dict[str, Event]:
    """Return the events with these ids."""
    return {event.id: event for event in _select(conn, "WHERE id = ANY(%s)", (list(ids),))}


# Whether the last event of this finding that was sent to webhook w is not its end: then the end is sent as
# well, whatever its filters are now. Deliveries that a silence held back do not count as sent.
_WAS_SENT: LiteralString = (
    "coalesce((SELECT e.type FROM deliveries d JOIN events e ON e.id = d.event_id WHERE d.webhook_id = w.id "
    "AND e.finding_id = %(finding)s AND (d.state <> 'muted' OR d.attempts > 0) ORDER BY e.seq DESC LIMIT 1) "
    "<> 'finding.resolved', false)"
)
# An update by which a finding begins to match a webhook's filters (by a new kind) is the first event that the
# webhook gets of it. Webhooks added after the finding's first event get later events only.
_IS_FIRST_EVENT: LiteralString = (
    "(%(type)s = 'finding.updated' AND NOT " + _WAS_SENT + " AND w.created_at <= "
    "(SELECT min(e.created_at) FROM events e WHERE e.finding_id = %(finding)s))"
)
_TAKES_TYPE: LiteralString = (
    "(%(type)s = ANY(w.events) OR (w.events = '{}' AND (%(by_default)s OR " + _IS_FIRST_EVENT + ")))"
)
_WANTS: LiteralString = (
    # A finding about a failing webhook is sent to the other webhooks only.
    "(w.enabled AND w.id <> %(about)s AND (w.clusters = '{}' OR %(cluster)s = ANY(w.clusters)) "
    "AND (w.kinds = '{}' OR %(kind)s = ANY(w.kinds) OR split_part(%(kind)s, '.', 1) = ANY(w.kinds)) "
    "AND array_position(%(order)s, w.min_severity) <= array_position(%(order)s, %(severity)s))"
)


def _enqueue(conn: Connection[Any], event: Event, to: str | None) -> None:
    if not to:
        # A silence that ends during this transaction could not release a delivery it does not see yet.
        silences.hold(conn)
    now = _now(conn)
    known = labels(event.body)
    silence = None if to else muting(silences.current(conn, now), known, now)
    wanted = _WANTS
    if event.type == END:
        wanted = _WAS_SENT if silence else "(" + _WANTS + " OR " + _WAS_SENT + ")"
    conn.execute(
        "INSERT INTO deliveries (id, event_id, webhook_id, state, muted_by, next_attempt_at) "
        "SELECT 'dlv_' || substr(%(event)s, 5) || '_' || w.id, %(event)s, w.id, %(state)s, %(muted_by)s, "
        "%(at)s FROM webhooks w WHERE w.id = %(to)s OR (%(to)s::text IS NULL AND "
        + _TAKES_TYPE
        + " AND "
        + wanted
        + ") ON CONFLICT DO NOTHING",
        {
            "event": event.id,
            "to": to,
            "type": event.type,
            "finding": event.finding_id,
            "by_default": event.type in DEFAULT_EVENTS,
            "about": known.get("node", "").removeprefix(WEBHOOK_PLACE),
            "cluster": known.get("cluster", ""),
            "kind": known.get("kind", ""),
            # A body without severity passes every filter.
            "severity": known.get("severity", "critical"),
            "order": list(ORDER),
            "state": "muted" if silence else "pending",
            "muted_by": silence.id if silence else None,
            "at": silence.ends_at if silence else now,
        },
    )


def _select(conn: Connection[Any], where: LiteralString, parameters: tuple[Any, ...]) -> list[Event]:
    with conn.cursor(row_factory=class_row(Event)) as cursor:
        return cursor.execute(_SELECT + where, parameters).fetchall()


def _now(conn: Connection[Any]) -> datetime:
    # The clock that all processes share; now() would be the start of the transaction.
    row = conn.execute("SELECT clock_timestamp()").fetchone()
    assert row is not None
    now: datetime = row[0]
    return now
