"""Leases deliveries again: to endpoints that forget what is not repeated (Alertmanager), and as reminders.

A repetition is no new delivery: it has the same event, body and ``webhook-id``. While it is leased no newer
delivery of the finding to that endpoint is (``leases``), and it is not due while a newer one waits.
"""

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Any, LiteralString

from psycopg import Connection
from psycopg.rows import dict_row

from alerts.silence import labels
from store.findings import outbox, queue, webhooks
from store.findings.leases import Due

# For how long the end of a finding is repeated, for an endpoint that restarts just then. Chosen: the 5 min
# after which Alertmanager would end the alert by itself.
END_REPEATED_SECONDS = 300.0

# Searched by finding, as an endpoint has many deliveries of findings that ended and a finding has few events:
# with 1,000 open findings and 100,000 older deliveries a lease takes some 6 ms, and 400 ms searched by
# endpoint. The id (deliveries.delivery_id) leads to each delivery even where PostgreSQL has no statistics.
_DUE: LiteralString = (
    "WITH recent AS MATERIALIZED ("
    "SELECT id, status, status IN ('open', 'acknowledged') AS is_open FROM findings "
    "WHERE status IN ('open', 'acknowledged') OR updated_at > %(since)s) "
    "SELECT newest.id FROM webhooks w "
    "LEFT JOIN unnest(%(formats)s::text[], %(seconds)s::float8[]) AS r (format, seconds) USING (format) "
    "CROSS JOIN recent CROSS JOIN LATERAL ("
    "SELECT d.*, e.type FROM events e JOIN deliveries d "
    "ON d.id = 'dlv_' || substr(e.id, 5) || '_' || w.id "
    "WHERE e.finding_id = recent.id AND d.state NOT IN ('muted', 'superseded') "
    "ORDER BY e.seq DESC LIMIT 1) newest "
    "WHERE w.enabled AND NOT w.id = ANY(%(busy)s) AND newest.last_attempt_at <= "
    "%(now)s - make_interval(secs => coalesce(r.seconds, w.repeat_seconds)) "
    "AND (newest.leased_until IS NULL OR newest.leased_until <= %(now)s) "
    "AND ((recent.is_open AND newest.state IN ('delivered', 'failed')"
    # A reminder is for findings that nobody works on.
    " AND (r.format IS NOT NULL OR recent.status = 'open')) OR (r.format IS NOT NULL "
    "AND newest.type = 'finding.resolved' AND newest.state = 'delivered' "
    "AND newest.delivered_at > %(since)s)) "
    "ORDER BY newest.last_attempt_at LIMIT %(limit)s"
)


def lease_repeats(
    conn: Connection[Any],
    intervals: Mapping[str, float],
    *,
    now: datetime,
    limit: int = 50,
    lease_seconds: float = 60.0,
    busy: Collection[str] = (),
) -> list[Due]:
    """Lease the newest deliveries of findings that are open or have just ended, if due for a repetition.

    ``intervals`` has seconds between repetitions by format. Deliveries that failed for good are repeated too.
    A newer one that a silence holds back does not stop the repetition. Endpoints of other formats that have
    ``repeat_seconds`` are reminded of findings that are open, neither acknowledged nor muted.
    """
    with conn.transaction(), conn.cursor(row_factory=dict_row) as cursor:
        rows = cursor.execute(
            "SELECT id, event_id, webhook_id, attempts FROM deliveries WHERE id = ANY(ARRAY("
            + _DUE
            + ")) AND (leased_until IS NULL OR leased_until <= %(now)s) AND state IN ('delivered', 'failed') "
            # SKIP LOCKED: what another notifier is leasing at this moment is left to it.
            "FOR UPDATE SKIP LOCKED",
            {
                "formats": list(intervals),
                "seconds": list(intervals.values()),
                "since": now - timedelta(seconds=END_REPEATED_SECONDS),
                "now": now,
                "busy": list(busy),
                "limit": limit,
            },
        ).fetchall()
        if not rows:
            return []
        until = now + timedelta(seconds=lease_seconds)
        cursor.execute(
            "UPDATE deliveries SET leased_until = %s, last_attempt_at = %s WHERE id = ANY(%s)",
            (until, now, [row["id"] for row in rows]),
        )
        happened = outbox.by_id(conn, {row["event_id"] for row in rows})
        hooks = webhooks.by_id(conn, {row["webhook_id"] for row in rows})
        due = [
            Due(one["id"], one["attempts"], happened[one["event_id"]], hooks[one["webhook_id"]], until, True)
            for one in rows
        ]
        muted = [
            one.id
            for one in due
            if one.webhook.format not in intervals and queue.mute_on(conn, labels(one.event.body), now)
        ]
        # Not now; the next reminder is due after another interval.
        cursor.execute("UPDATE deliveries SET leased_until = NULL WHERE id = ANY(%s)", (muted,))
    return [one for one in due if one.id not in muted]
