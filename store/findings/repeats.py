"""Leases deliveries again to endpoints that forget a finding which is not repeated (Alertmanager).

A repetition is no new delivery: it has the same event, body and ``webhook-id``. While it is leased no newer
delivery of the finding to that endpoint is (``leases``), and it is not due while a newer one waits.
"""

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Any

from psycopg import Connection
from psycopg.rows import dict_row

from store.findings import events, webhooks
from store.findings.leases import Due

# For how long the end of a finding is repeated, for an endpoint that restarts just then. Chosen: the 5 min
# after which Alertmanager would end the alert by itself.
END_REPEATED_SECONDS = 300.0


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

    ``intervals`` has seconds between repetitions by format; other formats have none. Deliveries that failed
    for good are repeated too. A newer one that a silence holds back does not stop the repetition.
    """
    if not intervals:
        return []
    with conn.transaction(), conn.cursor(row_factory=dict_row) as cursor:
        rows = cursor.execute(
            "SELECT d.id, d.event_id, d.webhook_id, d.attempts "
            "FROM unnest(%(formats)s::text[], %(before)s::timestamptz[]) AS r (format, before) "
            "JOIN webhooks w ON w.format = r.format JOIN deliveries d ON d.webhook_id = w.id "
            "JOIN events e ON e.id = d.event_id JOIN findings f ON f.id = e.finding_id "
            "WHERE w.enabled AND NOT w.id = ANY(%(busy)s) AND d.last_attempt_at <= r.before "
            "AND (d.leased_until IS NULL OR d.leased_until <= %(now)s) "
            "AND ((f.status IN ('open', 'acknowledged') AND d.state IN ('delivered', 'failed')) "
            "OR (f.updated_at > %(since)s AND e.type = 'finding.resolved' AND d.state = 'delivered' "
            "AND d.delivered_at > %(since)s)) "
            "AND NOT EXISTS (SELECT 1 FROM deliveries o JOIN events oe ON oe.id = o.event_id "
            "WHERE o.webhook_id = d.webhook_id AND oe.finding_id = e.finding_id AND oe.seq > e.seq "
            "AND o.state NOT IN ('muted', 'superseded')) "
            "ORDER BY d.last_attempt_at LIMIT %(limit)s FOR UPDATE OF d SKIP LOCKED",
            {
                "formats": list(intervals),
                "before": [now - timedelta(seconds=seconds) for seconds in intervals.values()],
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
        happened = events.by_id(conn, {row["event_id"] for row in rows})
        endpoints = webhooks.by_id(conn, {row["webhook_id"] for row in rows})
    return [
        Due(row["id"], row["attempts"], happened[row["event_id"]], endpoints[row["webhook_id"]], until, True)
        for row in rows
    ]
