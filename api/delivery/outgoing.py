"""Makes the request of a leased delivery: the notification of its finding in the receiver's form, signed."""

from datetime import datetime
from typing import Any

from psycopg import Connection
from psycopg.errors import QueryCanceled

from alerts.report import spark
from alerts.report.plot import plot
from api.delivery.receivers.receiver import Notification, PlotForm
from api.delivery.receivers.registry import receiver_named
from api.security.links import finding_link
from api.security.signing import signature_headers
from store.access.link_key import link_key
from store.evidence.freeze import evidence_of
from store.findings import deliveries, webhooks
from store.findings.findings import NotFound
from store.findings.leases import Due
from store.findings.outbox import OutboxEvent

Request = tuple[dict[str, str], bytes]

# Characters of a plot as text and of its labels. Chosen: what a phone shows of a chat without breaking lines.
_TEXT_WIDTH, _TEXT_LABEL = 30, 8


def request_of(conn: Connection[Any], due: Due, *, now: datetime, public_url: str) -> Request:
    """Return headers and body. Raises ``ValueError`` for a format that this release does not have."""
    event, receiver = due.event, receiver_named(due.webhook.format)
    active = webhooks.secrets(conn, due.webhook.id, now)
    notification = Notification(
        event.id,
        event.type,
        event.at,
        event.body,
        _link(event, link_key(conn), public_url),
        credential=active[0] if receiver.credential else "",
        earlier=deliveries.sent_before(conn, due) if receiver.repeat_seconds else (),
        receipt=deliveries.newest_receipt(conn, due),
        plot=_plot(conn, event, receiver.plot) if receiver.plot else "",
        template=due.webhook.template,
    )
    body = receiver.body(notification, public_url)
    signing = active if receiver.is_signed else ()
    headers = {"content-type": receiver.content_type}
    return headers | signature_headers(signing, event.id, int(now.timestamp()), body), body


def _link(event: OutboxEvent, key: bytes, public_url: str) -> str:
    if event.finding_id is None:
        # A test delivery has no stored finding.
        return f"{public_url.rstrip('/')}/"
    return finding_link(public_url, event.finding_id, key=key, at=event.at)


def _plot(conn: Connection[Any], event: OutboxEvent, form: PlotForm) -> str:
    """Return the plots of the finding; nothing where there is no telemetry, or it takes too long."""
    if event.finding_id is None:
        return ""
    try:
        evidence = evidence_of(conn, event.finding_id)
    except (NotFound, QueryCanceled):
        return ""
    if form == "text":
        drawn = spark.plots(evidence, _TEXT_WIDTH, label=_TEXT_LABEL)
        return "\n\n".join("\n".join(lines) for lines in drawn)
    return plot(event.body, evidence) if evidence["plots"] else ""
