"""Alertmanager's API v2: each finding is an alert that is posted to ``/api/v2/alerts`` until it ends.

Alertmanager routes and groups by labels, and identifies an alert by all of them. When the severity, kind or
place of a finding changes, the alert with its former labels ends in the same request. An alert that fires has
no ``endsAt``: Alertmanager ends it ``resolve_timeout`` (default 5 min) after it was last posted.
"""

from collections.abc import Iterator, Mapping

import msgspec

from api.delivery.receivers.alertmanager import PLACES, alert_labels, annotations
from api.delivery.receivers.finding_text import has_ended
from api.delivery.receivers.receiver import MAX_BODY, Finding, Notification, Receiver

# Prometheus and Alertmanager's documentation expect 30 s to 3 min; chosen: four posts may be lost before the
# default resolve_timeout of 5 min.
REPEAT_SECONDS = 60.0

Labels = Mapping[str, str]


def _render(notification: Notification, public_url: str) -> object:
    finding = notification.finding
    alert = {
        "labels": routing_labels(finding),
        "annotations": annotations(finding),
        "startsAt": finding.get("onset", notification.timestamp),
        "generatorURL": notification.link,
    }
    ended_at = finding.get("resolved_at", notification.timestamp) if has_ended(finding) else None
    alerts = [alert if ended_at is None else alert | {"endsAt": ended_at}]
    ended = alert | {"endsAt": ended_at or notification.timestamp}
    for labels in _former(notification, alert["labels"]):
        alerts.append(ended | {"labels": labels, "annotations": {"summary": str(finding.get("title", ""))}})
        if len(msgspec.json.encode(alerts)) > MAX_BODY:
            return alerts[:-1]
    return alerts


def routing_labels(finding: Finding) -> dict[str, str]:
    """Return the labels of a finding by which Alertmanager routes it; some change as the finding does."""
    subject = finding.get("subject", {})
    values = {
        **{name: finding.get(name) for name in ("severity", "kind")},
        **{name: subject.get(name) for name in PLACES},
        "gpu": subject.get("gpu_index"),
    }
    # Cut as `fit` cuts the texts of a long finding, so that its length does not change its identity.
    shown = {name: str(value)[:120] for name, value in values.items() if value not in (None, "")}
    return alert_labels(finding) | shown


def _former(notification: Notification, current: Labels) -> Iterator[Labels]:
    """Yield the other label sets under which the finding was posted, newest first."""
    seen = [current]
    for finding in notification.earlier:
        if (labels := routing_labels(finding)) not in seen:
            seen.append(labels)
            yield labels


RECEIVER = Receiver(
    "alertmanager_push",
    "application/json",
    _render,
    repeat_seconds=REPEAT_SECONDS,
    # A lower severity or another kind is another label.
    more_events=("finding.updated",),
)
