"""Deliveries: one event to one endpoint, leased to a notifier, tried until delivered or given up.

A lease that runs out is taken by the next notifier: at least once, under the same ``webhook-id``.
"""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal, LiteralString

from psycopg import Connection
from psycopg.rows import class_row, dict_row

from alerts.silence import labels, muting
from store import events, silences, webhooks
from store.events import Event, emit
from store.text import storable
from store.webhooks import Webhook

State = Literal["pending", "muted", "delivered", "failed"]

_COLUMNS: LiteralString = (
    "d.id, d.event_id, d.webhook_id, e.type, e.finding_id, d.state, d.attempts, d.next_attempt_at, "
    "d.muted_by, d.last_status, d.last_error, d.last_attempt_at, d.delivered_at, d.created_at"
)

# What a silence held back is still worth telling if its finding is open when the silence ends.
WAITING: LiteralString = (
    "(d.state = 'pending' OR (d.state = 'muted' AND coalesce(f.status, 'open') IN ('open', 'acknowledged'))) "
)
"""Whether delivery ``d`` of an event of finding ``f`` (outer join) may yet be sent, in SQL."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """One line of the delivery log; ``event_id`` is the ``webhook-id``."""

    id: str
    event_id: str
    webhook_id: str
    type: str
    finding_id: str | None
    state: State
    attempts: int
    next_attempt_at: datetime
    muted_by: str | None
    last_status: int | None
    last_error: str
    last_attempt_at: datetime | None
    delivered_at: datetime | None
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Due:
    """A leased delivery with all that is needed to send it; ``attempt`` counts from 1."""

    id: str
    attempt: int
    event: Event
    webhook: Webhook


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """What came of one try; ``status`` is None when there was no answer."""

    at: datetime
    status: int | None = None
    error: str = ""
    excerpt: str = ""
    seconds: float = 0.0


def due(
    conn: Connection[Any],
    *,
    now: datetime,
    limit: int = 50,
    lease_seconds: float = 60.0,
    busy: Collection[str] = (),
) -> list[Due]:
    """Lease what is due to the caller and return it, oldest first; nobody else gets it until the lease ends.

    ``busy`` names the endpoints that get nothing now, so that a slow one does not hold up the others.

    A delivery that a silence held back becomes due when the silence has ended and its finding is still open,
    unless another silence mutes it by then.
    """
    with conn.transaction(), conn.cursor(row_factory=dict_row) as cursor:
        silences.hold(conn)
        rows, happened = _unmuted(conn, now=now, limit=limit, busy=busy)
        if not rows:
            return []
        # The attempt is counted with the lease: one cut off by a kill was one, too.
        leased = cursor.execute(
            "UPDATE deliveries SET leased_until = %s, attempts = attempts + 1, state = 'pending', "
            "last_attempt_at = %s WHERE id = ANY(%s) RETURNING id, attempts",
            (now + timedelta(seconds=lease_seconds), now, [row["id"] for row in rows]),
        ).fetchall()
        attempt = {row["id"]: row["attempts"] for row in leased}
        endpoints = webhooks.by_id(conn, {row["webhook_id"] for row in rows})
    return [
        Due(row["id"], attempt[row["id"]], happened[row["event_id"]], endpoints[row["webhook_id"]])
        for row in rows
    ]


def _unmuted(
    conn: Connection[Any], *, now: datetime, limit: int, busy: Collection[str]
) -> tuple[list[dict[str, Any]], dict[str, Event]]:
    """Lock and return what is due, oldest first, with its events; what is muted again waits for that end."""
    while True:
        rows = _next(conn, now=now, limit=limit, busy=busy)
        happened = events.by_id(conn, {row["event_id"] for row in rows})
        in_force = silences.current(conn, now) if any(row["state"] == "muted" for row in rows) else []
        free = []
        for row in rows:
            known = labels(happened[row["event_id"]].body)
            silence = muting(in_force, known, now) if row["state"] == "muted" else None
            if silence is None:
                free.append(row)
            else:
                conn.execute(
                    "UPDATE deliveries SET muted_by = %s, next_attempt_at = %s WHERE id = %s",
                    (silence.id, silence.ends_at, row["id"]),
                )
        # Behind those that are muted again others may be due.
        if free or not rows:
            return free, happened


def _next(conn: Connection[Any], *, now: datetime, limit: int, busy: Collection[str]) -> list[dict[str, Any]]:
    with conn.cursor(row_factory=dict_row) as cursor:
        # SKIP LOCKED lets notifiers side by side take different rows, and none of them wait.
        return cursor.execute(
            "SELECT d.id, d.event_id, d.webhook_id, d.state FROM deliveries d "
            "JOIN webhooks w ON w.id = d.webhook_id JOIN events e ON e.id = d.event_id "
            "LEFT JOIN findings f ON f.id = e.finding_id "
            "WHERE w.enabled AND d.next_attempt_at <= %(now)s AND "
            + WAITING
            + "AND NOT d.webhook_id = ANY(%(busy)s) "
            "AND (d.leased_until IS NULL OR d.leased_until <= %(now)s) "
            "ORDER BY d.next_attempt_at, d.id LIMIT %(limit)s FOR UPDATE OF d SKIP LOCKED",
            {"now": now, "limit": limit, "busy": list(busy)},
        ).fetchall()


def mark_delivered(conn: Connection[Any], leased: Due, attempt: Attempt) -> None:
    """Write down that the endpoint took it."""
    with conn.transaction():
        conn.execute(
            "UPDATE deliveries SET state = 'delivered', delivered_at = %s, leased_until = NULL, "
            "last_status = %s, last_error = '' WHERE id = %s",
            (attempt.at, attempt.status, leased.id),
        )
        _log(conn, leased, attempt)


def mark_failed(conn: Connection[Any], leased: Due, attempt: Attempt, *, again_at: datetime | None) -> None:
    """Write down a failed try and when the next one is; None gives the delivery up."""
    with conn.transaction():
        conn.execute(
            # Only while pending: after a lease that ran out another notifier may have delivered it.
            "UPDATE deliveries SET state = %s, next_attempt_at = coalesce(%s, next_attempt_at), "
            "leased_until = NULL, last_status = %s, last_error = %s WHERE id = %s AND state = 'pending'",
            (
                "failed" if again_at is None else "pending",
                again_at,
                attempt.status,
                storable(attempt.error)[:1000],
                leased.id,
            ),
        )
        _log(conn, leased, attempt)


def listed(
    conn: Connection[Any],
    webhook_id: str,
    *,
    limit: int = 100,
    after: tuple[datetime, str] | None = None,
) -> list[Delivery]:
    """Return the deliveries of an endpoint, newest first, after the (created_at, id) of the last one seen."""
    created_at, id_ = after if after is not None else (None, None)
    with conn.cursor(row_factory=class_row(Delivery)) as cursor:
        return cursor.execute(
            "SELECT " + _COLUMNS + " FROM deliveries d JOIN events e ON e.id = d.event_id "
            "WHERE d.webhook_id = %s AND (%s::timestamptz IS NULL OR (d.created_at, d.id) < (%s, %s::text)) "
            "ORDER BY d.created_at DESC, d.id DESC LIMIT %s",
            (storable(webhook_id), created_at, created_at, id_, limit),
        ).fetchall()


def get(conn: Connection[Any], delivery_id: str) -> Delivery | None:
    """Return one delivery."""
    with conn.cursor(row_factory=class_row(Delivery)) as cursor:
        return cursor.execute(
            "SELECT " + _COLUMNS + " FROM deliveries d JOIN events e ON e.id = d.event_id WHERE d.id = %s",
            (storable(delivery_id),),
        ).fetchone()


def attempts(conn: Connection[Any], delivery_id: str) -> list[Attempt]:
    """Return the tries of a delivery, first one first."""
    with conn.cursor(row_factory=class_row(Attempt)) as cursor:
        return cursor.execute(
            "SELECT at, status, error, excerpt, seconds FROM delivery_attempts WHERE delivery_id = %s "
            "ORDER BY attempt",
            (storable(delivery_id),),
        ).fetchall()


def retry(conn: Connection[Any], delivery_id: str, now: datetime) -> bool:
    """Make a delivery due once more, also one that was given up; return whether there is such a one."""
    cursor = conn.execute(
        "UPDATE deliveries SET state = 'pending', next_attempt_at = %s, leased_until = NULL WHERE id = %s",
        (now, storable(delivery_id)),
    )
    return cursor.rowcount == 1


def test(conn: Connection[Any], webhook_id: str, event: Event) -> str:
    """Queue ``event`` for one endpoint alone, whatever its filters; return the delivery's id."""
    with conn.transaction():
        emit(conn, event, to=webhook_id)
    return delivery_id(event.id, webhook_id)


def delivery_id(event_id: str, webhook_id: str) -> str:
    """Return the id of the delivery of an event to an endpoint: there is exactly one."""
    return f"dlv_{event_id.removeprefix('msg_')}_{webhook_id}"


def oldest_due(conn: Connection[Any], now: datetime) -> datetime | None:
    """Return since when the oldest waiting delivery has been due: the age of the queue."""
    row = conn.execute(
        "SELECT min(d.next_attempt_at) FROM deliveries d JOIN webhooks w ON w.id = d.webhook_id "
        "WHERE w.enabled AND d.state = 'pending' AND d.next_attempt_at <= %s",
        (now,),
    ).fetchone()
    return None if row is None else row[0]


def next_due(conn: Connection[Any]) -> datetime | None:
    """Return when the next delivery wants to be sent, so that a notifier knows how long to sleep."""
    row = conn.execute(
        # greatest() passes over NULL, which is no lease.
        "SELECT min(greatest(d.next_attempt_at, d.leased_until)) FROM deliveries d "
        "JOIN webhooks w ON w.id = d.webhook_id JOIN events e ON e.id = d.event_id "
        "LEFT JOIN findings f ON f.id = e.finding_id WHERE w.enabled AND " + WAITING
    ).fetchone()
    return None if row is None else row[0]


def _log(conn: Connection[Any], leased: Due, attempt: Attempt) -> None:
    conn.execute(
        # From the row, which may be gone with its endpoint: then there is nothing to write.
        "INSERT INTO delivery_attempts (delivery_id, attempt, at, status, error, excerpt, seconds) "
        "SELECT id, %s, %s, %s, %s, %s, %s FROM deliveries WHERE id = %s "
        "ON CONFLICT (delivery_id, attempt) DO NOTHING",
        (
            leased.attempt,
            attempt.at,
            attempt.status,
            storable(attempt.error)[:1000],
            storable(attempt.excerpt)[:1000],
            attempt.seconds,
            leased.id,
        ),
    )
