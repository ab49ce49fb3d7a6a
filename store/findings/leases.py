"""Leases due deliveries to notifiers.

Deliveries of one finding to one endpoint are sent in order: while one is leased no other is, and one that has
a newer one beside it is superseded instead of sent; so is the end of a finding of which the endpoint took
nothing. A lease that expires can be taken by another notifier, so delivery is at least once, under the same
``webhook-id``.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, LiteralString

from psycopg import Connection
from psycopg.rows import dict_row

from alerts.notify import END
from alerts.silence import labels
from store.findings import outbox, queue, silences, webhooks
from store.findings.attempt_errors import NOTHING_SENT
from store.findings.outbox import OutboxEvent
from store.findings.webhooks import Webhook

Row = dict[str, Any]

# Whether delivery ``d`` of event ``e`` of finding ``f`` (outer join) may yet be sent, in SQL.
# A resolved event is queued for endpoints that got an earlier event (outbox.emit): it is sent in any case.
WAITING: LiteralString = (
    "(d.state = 'pending' OR (d.state = 'muted' AND "
    "(coalesce(f.status, 'open') IN ('open', 'acknowledged') OR e.type = 'finding.resolved'))) "
)

_QUEUE: LiteralString = (
    "FROM deliveries d JOIN webhooks w ON w.id = d.webhook_id JOIN events e ON e.id = d.event_id "
    "LEFT JOIN findings f ON f.id = e.finding_id "
)
_QUEUED: LiteralString = "WHERE w.enabled AND d.state IN ('pending', 'muted') AND " + WAITING
# Deliveries of one endpoint that are superseded at once, after an outage of the notifier; chosen: one short
# transaction.
_FRONT = 500


@dataclass(frozen=True, slots=True)
class Due:
    """A leased delivery with its event and endpoint; ``attempt`` counts from 1.

    ``repeat``: it was delivered before, to an endpoint that needs repetitions.
    """

    id: str
    attempt: int
    event: OutboxEvent
    webhook: Webhook
    leased_until: datetime
    repeat: bool = False


def lease_due(
    conn: Connection[Any],
    *,
    now: datetime,
    limit: int = 50,
    lease_seconds: float = 60.0,
    busy: Collection[str] = (),
) -> list[Due]:
    """Lease due deliveries to the caller, oldest first, for ``lease_seconds``.

    Endpoints in ``busy`` are left out, so that a slow one does not delay the others. A delivery that a
    silence held back is due when the silence has ended, unless another silence mutes it by then, or its
    finding has ended without ever having been sent.
    """
    with conn.transaction(), conn.cursor(row_factory=dict_row) as cursor:
        silences.hold(conn)
        rows, happened = _sendable(conn, now=now, limit=limit, busy=busy)
        if not rows:
            return []
        until = now + timedelta(seconds=lease_seconds)
        # Counted with the lease, so that an attempt cut off by a kill counts.
        leased = cursor.execute(
            "UPDATE deliveries SET leased_until = %s, attempts = attempts + 1, state = 'pending', "
            "last_attempt_at = %s WHERE id = ANY(%s) RETURNING id, attempts",
            (until, now, [row["id"] for row in rows]),
        ).fetchall()
        attempt = {row["id"]: row["attempts"] for row in leased}
        endpoints = webhooks.by_id(conn, {row["webhook_id"] for row in rows})
    return [
        Due(row["id"], attempt[row["id"]], happened[row["event_id"]], endpoints[row["webhook_id"]], until)
        for row in rows
    ]


def oldest_due(conn: Connection[Any], now: datetime) -> datetime | None:
    """Return since when the oldest pending delivery has been due: the age of the queue."""
    row = conn.execute(
        "SELECT min(d.next_attempt_at) FROM deliveries d JOIN webhooks w ON w.id = d.webhook_id "
        "WHERE w.enabled AND d.state = 'pending' AND d.next_attempt_at <= %s",
        (now,),
    ).fetchone()
    return None if row is None else row[0]


def next_due(conn: Connection[Any]) -> datetime | None:
    """Return when the next delivery is due, which bounds how long a notifier may sleep."""
    row = conn.execute(
        # Deliveries wait for a leased one of the same finding; greatest() ignores NULL (not leased).
        "WITH leased AS (SELECT o.webhook_id, oe.finding_id, max(o.leased_until) AS until FROM deliveries o "
        "JOIN events oe ON oe.id = o.event_id WHERE o.leased_until IS NOT NULL GROUP BY 1, 2) "
        "SELECT min(greatest(d.next_attempt_at, d.leased_until, leased.until)) "
        + _QUEUE
        + "LEFT JOIN leased ON leased.webhook_id = d.webhook_id AND leased.finding_id = e.finding_id "
        + _QUEUED
    ).fetchone()
    return None if row is None else row[0]


def _sendable(
    conn: Connection[Any], *, now: datetime, limit: int, busy: Collection[str]
) -> tuple[list[Row], dict[str, OutboxEvent]]:
    """Lock and return deliveries that may be sent now, oldest first, with their events."""
    passed: list[str] = []
    while True:
        rows = _next(conn, now=now, limit=limit, busy=busy, passed=passed)
        happened = outbox.by_id(conn, {row["event_id"] for row in rows})
        free = [
            row
            for row in rows
            if not _is_superseded(conn, row, now)
            and not _held_again(conn, row, happened[row["event_id"]], now)
            and _supersede_older(conn, row, happened[row["event_id"]], now)
            and not _ends_unknown(conn, row, happened[row["event_id"]])
        ]
        # All of these have to wait: look for others behind them.
        if free or not rows:
            return free, happened
        passed += [row["id"] for row in rows]


def _next(
    conn: Connection[Any], *, now: datetime, limit: int, busy: Collection[str], passed: Sequence[str]
) -> list[Row]:
    with conn.cursor(row_factory=dict_row) as cursor:
        # SKIP LOCKED: concurrent notifiers take different rows without waiting for each other.
        return cursor.execute(
            "SELECT d.id, d.event_id, d.webhook_id, d.state "
            + _QUEUE
            + _QUEUED
            + "AND d.next_attempt_at <= %(now)s AND NOT d.webhook_id = ANY(%(busy)s) "
            "AND NOT d.id = ANY(%(passed)s) AND (d.leased_until IS NULL OR d.leased_until <= %(now)s) "
            "AND NOT EXISTS (SELECT 1 FROM deliveries o JOIN events oe ON oe.id = o.event_id "
            "WHERE o.leased_until > %(now)s AND o.webhook_id = d.webhook_id "
            "AND oe.finding_id = e.finding_id) "
            "ORDER BY d.next_attempt_at, d.id LIMIT %(limit)s FOR UPDATE OF d SKIP LOCKED",
            {"now": now, "limit": limit, "busy": list(busy), "passed": passed},
        ).fetchall()


# ``seq`` orders the events of one finding: each is recorded under the lock of its finding.
_NEWEST: LiteralString = (
    "(SELECT n.id FROM deliveries n JOIN events ne ON ne.id = n.event_id WHERE n.webhook_id = d.webhook_id "
    "AND ne.finding_id = e.finding_id AND ne.seq > e.seq ORDER BY ne.seq DESC LIMIT 1) "
)


def _is_superseded(conn: Connection[Any], row: Row, now: datetime) -> bool:
    """Supersede a locked delivery that has a newer one, with all due ones of its endpoint that have."""
    found = conn.execute(
        "SELECT " + _NEWEST + "FROM deliveries d JOIN events e ON e.id = d.event_id WHERE d.id = %s",
        (row["id"],),
    ).fetchone()
    if found is None or found[0] is None:
        return False
    conn.execute(
        "UPDATE deliveries s SET state = 'superseded', superseded_by = stale.newest, leased_until = NULL "
        "FROM (SELECT d.id, " + _NEWEST + "AS newest FROM (SELECT id, webhook_id, event_id FROM deliveries "
        "WHERE webhook_id = %(webhook)s AND state IN ('pending', 'muted') AND next_attempt_at <= %(now)s "
        "AND (leased_until IS NULL OR leased_until <= %(now)s) "
        "ORDER BY id <> %(id)s, next_attempt_at LIMIT %(front)s FOR UPDATE SKIP LOCKED) d "
        "JOIN events e ON e.id = d.event_id) stale WHERE s.id = stale.id AND stale.newest IS NOT NULL",
        {"webhook": row["webhook_id"], "id": row["id"], "now": now, "front": _FRONT},
    )
    return True


def _held_again(conn: Connection[Any], row: Row, event: OutboxEvent, now: datetime) -> bool:
    """Hold a delivery back for longer where something still does; return whether it does."""
    if row["state"] != "muted":
        return False
    mute = queue.mute_on(conn, labels(event.body), now)
    route = webhooks.by_id(conn, [row["webhook_id"]])[row["webhook_id"]].route
    held = queue.hold_on(conn, row["webhook_id"], route, event, mute, now)
    if held is not None:
        conn.execute(
            "UPDATE deliveries SET muted_by = %s, next_attempt_at = %s WHERE id = %s",
            (held.by, held.until, row["id"]),
        )
    return held is not None


def _supersede_older(conn: Connection[Any], row: Row, event: OutboxEvent, now: datetime) -> bool:
    """Supersede waiting deliveries of older events; return False while one of them is leased."""
    if event.finding_id is None:
        return True
    older: LiteralString = (
        "SELECT d.id FROM deliveries d JOIN events e ON e.id = d.event_id WHERE d.webhook_id = %(webhook)s "
        "AND e.finding_id = %(finding)s AND e.seq < %(seq)s AND d.state IN ('pending', 'muted') "
    )
    these = {"webhook": row["webhook_id"], "finding": event.finding_id, "seq": event.seq}
    conn.execute(
        # A row locked by another notifier stays; the next statement finds it.
        "UPDATE deliveries SET state = 'superseded', superseded_by = %(by)s, leased_until = NULL "
        "WHERE id = ANY(ARRAY(" + older + "AND (d.leased_until IS NULL OR d.leased_until <= %(now)s) "
        "FOR UPDATE OF d SKIP LOCKED))",
        these | {"by": row["id"], "now": now},
    )
    return conn.execute(older, these).fetchone() is None


# Attempts of which a receiver has certainly taken nothing: no connection, or an answer that says so. After
# others (5xx, 429 to one of several requests, a time-out, a lost connection) it may have.
_NOT_TAKEN: LiteralString = (
    "((a.status BETWEEN 300 AND 499 AND a.status NOT IN (408, 429)) "
    f"OR (a.status IS NULL AND a.error ~ '{NOTHING_SENT}')) "
)
# Of each event since the last end that an endpoint took, whether it was tried, and whether the endpoint may
# have got it: an attempt without a result may have been cut off by a kill.
_TOLD: LiteralString = (
    "SELECT d.attempts > 0 AS tried, d.delivered_at IS NOT NULL OR d.attempts > ("
    "SELECT count(*) FROM delivery_attempts a WHERE a.delivery_id = d.id AND " + _NOT_TAKEN + ") AS maybe "
    "FROM deliveries d JOIN events e ON e.id = d.event_id WHERE d.webhook_id = %(webhook)s "
    "AND e.finding_id = %(finding)s AND e.type <> %(end)s AND e.seq < %(seq)s AND e.seq > coalesce(("
    "SELECT max(oe.seq) FROM deliveries o JOIN events oe ON oe.id = o.event_id "
    "WHERE o.webhook_id = %(webhook)s AND oe.finding_id = %(finding)s AND oe.type = %(end)s "
    "AND o.delivered_at IS NOT NULL), 0)"
)


def _ends_unknown(conn: Connection[Any], row: Row, event: OutboxEvent) -> bool:
    """Drop the end of a finding of which the endpoint has certainly got nothing; return whether it was.

    Where nothing was tried, as no notifier ran, the end is all that is sent of the finding.
    """
    if event.type != END or event.finding_id is None:
        return False
    dropped = conn.execute(
        "WITH told AS (" + _TOLD + ") UPDATE deliveries SET state = 'superseded', leased_until = NULL "
        "WHERE id = %(id)s AND EXISTS (SELECT FROM told WHERE tried) "
        "AND NOT EXISTS (SELECT FROM told WHERE maybe)",
        {
            "id": row["id"],
            "webhook": row["webhook_id"],
            "finding": event.finding_id,
            "seq": event.seq,
            "end": END,
        },
    )
    return dropped.rowcount == 1
