"""Deliveries that an event gives rise to: for which webhooks, and what holds each back (``alerts.route``)."""

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, LiteralString

from psycopg import Connection
from psycopg.rows import dict_row

from alerts.notify import DEFAULT_EVENTS, END
from alerts.route import RECHECK, Hold, Past, Route, hold
from alerts.silence import labels, muting
from alerts.stated_severity import ORDER
from store.findings import inhibitions, silences, webhooks

if TYPE_CHECKING:
    from store.findings.outbox import OutboxEvent

# Prefix of the subject (``node``) of a finding about a webhook; the webhook's id follows.
WEBHOOK_PLACE = "webhook:"

# Deliveries of this finding to webhook w that were sent or will be: not those that were held back only.
_SENT: LiteralString = (
    "FROM deliveries d JOIN events e ON e.id = d.event_id WHERE d.webhook_id = w.id "
    "AND e.finding_id = %(finding)s AND (d.state <> 'muted' OR d.attempts > 0) "
)
# Whether the last of them is not the end of the finding: then the end is sent as well, whatever the filters
# are now.
_WAS_SENT: LiteralString = (
    "coalesce((SELECT e.type " + _SENT + "ORDER BY e.seq DESC LIMIT 1) <> 'finding.resolved', false)"
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
_FILTERED: LiteralString = (
    # A finding about a failing webhook is sent to the other webhooks only.
    "(w.enabled AND w.id <> %(about)s AND (w.clusters = '{}' OR %(cluster)s = ANY(w.clusters)) "
    "AND (w.kinds = '{}' OR %(kind)s = ANY(w.kinds) OR split_part(%(kind)s, '.', 1) = ANY(w.kinds)) "
    "AND array_position(%(order)s, w.min_severity) <= array_position(%(order)s, %(severity)s))"
)
_CANDIDATES: LiteralString = (
    "SELECT w.id, " + _WAS_SENT + " AS was_sent, " + _FILTERED + " AS filtered FROM webhooks w "
    "WHERE w.id = %(to)s OR (%(to)s::text IS NULL AND " + _TAKES_TYPE + ") ORDER BY w.id"
)
# Since the finding last ended: how long its first event has been held back, and when one was last sent.
_PAST: LiteralString = (
    "SELECT (SELECT status = 'acknowledged' FROM findings WHERE id = %(finding)s) AS acknowledged, "
    "min(d.created_at) FILTER (WHERE d.state = 'muted' AND d.attempts = 0) AS waits_since, "
    "max(coalesce(d.last_attempt_at, d.created_at)) FILTER (WHERE d.state NOT IN ('muted', 'superseded') "
    "OR d.attempts > 0) AS sent_at FROM deliveries d JOIN events e ON e.id = d.event_id "
    "WHERE d.webhook_id = %(webhook)s AND e.finding_id = %(finding)s AND e.seq > coalesce((SELECT max(seq) "
    "FROM events WHERE finding_id = %(finding)s AND type = 'finding.resolved' AND id <> %(event)s), 0)"
)


def enqueue(conn: Connection[Any], event: "OutboxEvent", to: str | None) -> None:
    """Queue an event for the webhook ``to``, or for all that want it."""
    if not to:
        # A silence that ends during this transaction could not release a delivery it does not see yet.
        silences.hold(conn)
    now = _now(conn)
    known = labels(event.body)
    wanted = _candidates(conn, event, known, to)
    mute = mute_on(conn, known, now) if wanted and not to else None
    endpoints = webhooks.by_id(conn, [row["id"] for row in wanted])
    for row in wanted:
        webhook = endpoints[row["id"]]
        held = None if to else hold_on(conn, webhook.id, webhook.route, event, mute, now)
        takes = row["filtered"] and webhook.route.takes(known)
        if event.type == END:
            # Where the rest was held back, so is the end, unless it ends what was sent.
            takes = row["was_sent"] or (takes and not mute and not _waits(webhook.route))
        if takes or to:
            _queue(conn, event, webhook.id, held, now)


def mute_on(conn: Connection[Any], known: Mapping[str, str], now: datetime) -> Hold | None:
    """Return the silence or the inhibition that keeps a finding with these labels from all webhooks."""
    silence = muting(silences.current(conn, now), known, now)
    if silence is not None:
        return Hold(silence.id, silence.mutes_until(now) or silence.ends_at)
    rule = inhibitions.applying(conn, known)
    return None if rule is None else Hold(rule.id, now + RECHECK)


def hold_on(
    conn: Connection[Any],
    webhook_id: str,
    route: Route,
    event: "OutboxEvent",
    mute: Hold | None,
    now: datetime,
) -> Hold | None:
    """Return what holds an event back from a webhook, or None."""
    if event.finding_id is None or not (_waits(route) or route.interval_seconds):
        return mute
    these = {"webhook": webhook_id, "finding": event.finding_id, "event": event.id}
    with conn.cursor(row_factory=dict_row) as cursor:
        row = cursor.execute(_PAST, these).fetchone()
    assert row is not None
    past = Past(**(row | {"acknowledged": bool(row["acknowledged"])}))
    return hold(route, event.type, past, mute, now)


def _waits(route: Route) -> bool:
    return bool(route.wait_seconds) or route.unless_acknowledged


def _candidates(
    conn: Connection[Any], event: "OutboxEvent", known: Mapping[str, str], to: str | None
) -> list[dict[str, Any]]:
    with conn.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(
            _CANDIDATES,
            {
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
            },
        ).fetchall()


def _queue(
    conn: Connection[Any], event: "OutboxEvent", webhook_id: str, held: Hold | None, now: datetime
) -> None:
    conn.execute(
        "INSERT INTO deliveries (id, event_id, webhook_id, state, muted_by, next_attempt_at) "
        "VALUES ('dlv_' || substr(%(event)s, 5) || '_' || %(webhook)s, %(event)s, %(webhook)s, %(state)s, "
        "%(muted_by)s, %(at)s) ON CONFLICT DO NOTHING",
        {
            "event": event.id,
            "webhook": webhook_id,
            "state": "muted" if held else "pending",
            "muted_by": held.by if held else None,
            "at": held.until if held else now,
        },
    )


def _now(conn: Connection[Any]) -> datetime:
    # The clock that all processes share; now() would be the start of the transaction.
    row = conn.execute("SELECT clock_timestamp()").fetchone()
    assert row is not None
    now: datetime = row[0]
    return now
