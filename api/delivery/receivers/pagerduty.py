"""PagerDuty Events API v2: each finding is one alert under one ``dedup_key``, its id.

The finding's own ``dedup_key`` holds its kind, which may change while the finding is open; PagerDuty drops an
``acknowledge`` or ``resolve`` whose key matches no open alert. An acknowledgement may supersede the opening
or a higher severity before that was sent: then the alert is triggered first. The body is what
``api.delivery.sequence_client`` posts.
"""

from collections.abc import Iterator, Mapping

from api.delivery.receivers.finding_text import facts, has_ended, subject_path
from api.delivery.receivers.receiver import Credential, Finding, Notification, Receiver

# Length limits of the API's documentation: characters of a summary, and of an integration key.
_MAX_SUMMARY = 1024
_INTEGRATION_KEY = r"[0-9A-Za-z]{32}"
# Receipt of an end; that of an open alert is its severity.
_ENDED = "ended"
# Events that page again although a person has acknowledged the finding.
_NEW_TROUBLE = frozenset({"finding.opened", "finding.reopened", "finding.escalated"})


def _render(notification: Notification, public_url: str) -> object:
    finding = notification.finding
    severity = _ENDED if has_ended(finding) else str(finding.get("severity", "info"))
    return {"requests": [{"body": event} for event in _events(notification, severity)], "receipt": severity}


def _events(notification: Notification, severity: str) -> Iterator[Mapping[str, object]]:
    action = _action(notification)
    event: dict[str, object] = {
        "routing_key": notification.credential,
        "dedup_key": str(notification.finding.get("id", "")),
    }
    if action == "trigger" or (action == "acknowledge" and notification.receipt != severity):
        yield event | {"event_action": "trigger"} | _described(notification)
    if action != "trigger":
        yield event | {"event_action": action}


def _described(notification: Notification) -> dict[str, object]:
    links = [{"href": notification.link, "text": "Finding"}]
    runbook = notification.finding.get("action", {}).get("runbook_url")
    if runbook:
        links.append({"href": runbook, "text": "Runbook"})
    return {
        "client": "slowrank",
        "client_url": notification.link,
        "links": links,
        "payload": _payload(notification),
    }


def _action(notification: Notification) -> str:
    """Return ``resolve`` at the end, ``acknowledge`` while a person has it, otherwise ``trigger``.

    A ``trigger`` of an open alert adds to it; PagerDuty notifies nobody while the incident is acknowledged.
    """
    if has_ended(notification.finding):
        return "resolve"
    acknowledged = notification.finding.get("status") == "acknowledged"
    return "acknowledge" if acknowledged and notification.type not in _NEW_TROUBLE else "trigger"


def _payload(notification: Notification) -> dict[str, object]:
    finding = notification.finding
    subject, place = finding.get("subject", {}), subject_path(finding.get("subject", {}))
    return {
        "summary": str(finding.get("title") or finding.get("kind") or "finding")[:_MAX_SUMMARY],
        # The severities of a finding are those of this API.
        "severity": finding.get("severity", "info"),
        "source": str(subject.get("node") or subject.get("job_id") or subject.get("cluster") or "slowrank"),
        "timestamp": finding.get("detected_at", notification.timestamp),
        "component": place,
        "group": str(subject.get("cluster", "")),
        "class": str(finding.get("kind", "")),
        "custom_details": _details(finding),
    }


def _details(finding: Finding) -> dict[str, object]:
    action = finding.get("action", {})
    more = {
        "Do": action.get("text"),
        "Commands": action.get("commands"),
        "Slowdown": finding.get("slowdown_ratio"),
        "Confidence": finding.get("confidence"),
    }
    return dict(facts(finding)) | {name: value for name, value in more.items() if value not in (None, [], ())}


RECEIVER = Receiver(
    "pagerduty",
    "application/json",
    _render,
    Credential("PagerDuty integration key", "32 letters and digits", _INTEGRATION_KEY),
    transport="sequence",
)
