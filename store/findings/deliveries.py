"""Deliveries: one event for one endpoint, attempted until delivered, failed or superseded by a newer event.

``leases`` decides which delivery is sent next.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, LiteralString

from psycopg import Connection
from psycopg.rows import class_row

from store.findings.leases import Due
from store.findings.outbox import OutboxEvent, emit
from store.text import storable

State = Literal["pending", "muted", "delivered", "failed", "superseded"]

_COLUMNS: LiteralString = (
    "d.id, d.event_id, d.webhook_id, e.type, e.finding_id, d.state, d.attempts, d.next_attempt_at, "
    "d.muted_by, d.superseded_by, d.last_status, d.last_error, d.last_attempt_at, d.delivered_at, "
    "d.created_at"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """One line of the delivery log; ``event_id`` is the ``webhook-id``.

    ``superseded_by``: the delivery of a newer event of the finding, which was sent instead.
    """

    id: str
    event_id: str
    webhook_id: str
    type: str
    finding_id: str | None
    state: State
    attempts: int
    next_attempt_at: datetime
    muted_by: str | None
    superseded_by: str | None
    last_status: int | None
    last_error: str
    last_attempt_at: datetime | None
    delivered_at: datetime | None
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """Result of one attempt; ``status`` is None when there was no answer."""

    at: datetime
    status: int | None = None
    error: str = ""
    excerpt: str = ""
    seconds: float = 0.0


def mark_delivered(conn: Connection[Any], leased: Due, attempt: Attempt) -> None:
    """Record that the endpoint accepted the delivery."""
    with conn.transaction():
        conn.execute(
            "UPDATE deliveries SET state = 'delivered', delivered_at = %s, leased_until = NULL, "
            "last_status = %s, last_error = '' WHERE id = %s",
            (attempt.at, attempt.status, leased.id),
        )
        _log(conn, leased, attempt)


def mark_failed(conn: Connection[Any], leased: Due, attempt: Attempt, *, again_at: datetime | None) -> None:
    """Record a failed attempt and the time of the next one; None marks the delivery as failed for good."""
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


def mark_repeated(conn: Connection[Any], leased: Due, attempt: Attempt, *, delivered: bool) -> None:
    """Record the answer to a repetition of a delivery; the log has the attempts up to the first success."""
    conn.execute(
        "UPDATE deliveries SET leased_until = NULL, last_status = %s, last_error = %s, "
        "state = CASE WHEN %s AND state = 'failed' THEN 'delivered' ELSE state END, "
        "delivered_at = CASE WHEN %s THEN coalesce(delivered_at, %s) ELSE delivered_at END WHERE id = %s",
        (
            attempt.status,
            storable(attempt.error)[:1000],
            delivered,
            delivered,
            attempt.at,
            leased.id,
        ),
    )


def sent_before(conn: Connection[Any], leased: Due) -> list[dict[str, Any]]:
    """Return the finding as the endpoint may have got it before: the last ten times, newest first."""
    rows = conn.execute(
        "SELECT e.body FROM deliveries d JOIN events e ON e.id = d.event_id WHERE d.webhook_id = %s "
        "AND e.finding_id = %s AND e.seq < %s AND d.attempts > 0 ORDER BY e.seq DESC LIMIT 10",
        (leased.webhook.id, leased.event.finding_id, leased.event.seq),
    ).fetchall()
    return [row[0] for row in rows]


def keep_receipt(conn: Connection[Any], leased: Due, receipt: str) -> None:
    """Store what the endpoint answered that later deliveries of the finding need."""
    conn.execute("UPDATE deliveries SET receipt = %s WHERE id = %s", (storable(receipt)[:1000], leased.id))


def newest_receipt(conn: Connection[Any], leased: Due) -> str:
    """Return the receipt of the newest delivery of the finding to the endpoint that has one, or nothing."""
    row = conn.execute(
        "SELECT d.receipt FROM deliveries d JOIN events e ON e.id = d.event_id WHERE d.webhook_id = %s "
        "AND e.finding_id = %s AND d.receipt <> '' ORDER BY e.seq DESC LIMIT 1",
        (leased.webhook.id, leased.event.finding_id),
    ).fetchone()
    return "" if row is None else row[0]


def listed(
    conn: Connection[Any],
    webhook_id: str,
    *,
    limit: int = 100,
    after: tuple[datetime, str] | None = None,
) -> list[Delivery]:
    """Return the deliveries of an endpoint, newest first; ``after``: (created_at, id) of the last seen."""
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
    """Return the attempts of a delivery, oldest first."""
    with conn.cursor(row_factory=class_row(Attempt)) as cursor:
        return cursor.execute(
            "SELECT at, status, error, excerpt, seconds FROM delivery_attempts WHERE delivery_id = %s "
            "ORDER BY attempt",
            (storable(delivery_id),),
        ).fetchall()


def retry(conn: Connection[Any], delivery_id: str, now: datetime) -> str | None:
    """Make a delivery due again, also one that failed for good.

    Returns its id, or that of a newer delivery of the same finding to the same endpoint, which is made due
    instead; None when there is no such delivery. An attempt in progress continues.
    """
    row = conn.execute(
        "UPDATE deliveries SET state = 'pending', next_attempt_at = %s WHERE id = ("
        "SELECT n.id FROM deliveries d JOIN events e ON e.id = d.event_id "
        "JOIN deliveries n ON n.webhook_id = d.webhook_id JOIN events ne ON ne.id = n.event_id "
        "WHERE d.id = %s AND (n.id = d.id OR ne.finding_id = e.finding_id) ORDER BY ne.seq DESC LIMIT 1) "
        "RETURNING id",
        (now, storable(delivery_id)),
    ).fetchone()
    return None if row is None else row[0]


def make_due(conn: Connection[Any], webhook_id: str, now: datetime) -> None:
    """Make due what waits for another attempt at an endpoint that takes deliveries again.

    Not what it asked to have later (429). A leased delivery continues.
    """
    conn.execute(
        "UPDATE deliveries SET next_attempt_at = %(now)s WHERE webhook_id = %(webhook)s "
        "AND state = 'pending' AND attempts > 0 AND next_attempt_at > %(now)s "
        "AND (leased_until IS NULL OR leased_until <= %(now)s) AND last_status IS DISTINCT FROM 429",
        {"webhook": storable(webhook_id), "now": now},
    )


def test(conn: Connection[Any], webhook_id: str, event: OutboxEvent) -> str:
    """Queue ``event`` for one endpoint regardless of its filters; return the id of the delivery."""
    with conn.transaction():
        emit(conn, event, to=webhook_id)
    return delivery_id(event.id, webhook_id)


def delivery_id(event_id: str, webhook_id: str) -> str:
    """Return the id of the delivery of an event to an endpoint: there is exactly one."""
    return f"dlv_{event_id.removeprefix('msg_')}_{webhook_id}"


def _log(conn: Connection[Any], leased: Due, attempt: Attempt) -> None:
    conn.execute(
        # Selected from the delivery, which may have been deleted with its endpoint: then nothing is written.
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
