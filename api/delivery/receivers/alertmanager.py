"""Alertmanager's webhook body, version 4: each finding is a group with one alert.

Alertmanager identifies an alert by its labels alone: a label that changes makes another alert, and the first
one is never resolved. So the labels are what a finding keeps for life, its id and cluster; severity, kind and
place may change and are annotations.
"""

from collections.abc import Mapping

import msgspec

from api.delivery.receivers.finding_text import facts, has_ended, subject_path
from api.delivery.receivers.receiver import Finding, Notification, Receiver
from slowrank import __version__

ALERTNAME = "SlowrankFinding"

# End of an alert that still fires, as Alertmanager writes it: the zero time of Go.
_GO_ZERO_TIME = "0001-01-01T00:00:00Z"
# Nearest of Alertmanager's notification reasons. It has none for an alert that grew worse, for feedback, or
# for a new cause; a group whose alerts had all been resolved begins anew when one reopens.
_REASONS = {
    "finding.opened": "first notification",
    "finding.reopened": "first notification",
    "finding.escalated": "new alerts added",
    "finding.resolved": "all alerts resolved",
    "delivery.test": "first notification",
}
# Coordinates of the subject that are shown where they are present.
PLACES = ("node", "gpu_uuid", "nic", "port", "job_id", "rank", "rack", "switch", "rail")


def _render(notification: Notification, public_url: str) -> object:
    finding, labels = notification.finding, alert_labels(notification.finding)
    status = "resolved" if has_ended(finding) else "firing"
    shown = annotations(finding)
    # One group per finding: in a shared one the end of a finding would end the notification of all.
    pairs = ",".join(f"{name}={_quoted(value)}" for name, value in sorted(labels.items()))
    ended_at = finding.get("resolved_at", notification.timestamp)
    return {
        "version": "4",
        "groupKey": f"{{}}:{{{pairs}}}",
        "truncatedAlerts": 0,
        "status": status,
        "receiver": "slowrank",
        "groupLabels": labels,
        "commonLabels": labels,
        "commonAnnotations": shown,
        "routeLabels": {},
        "notification_reason": _REASONS.get(notification.type, "unknown"),
        "externalURL": public_url,
        "alerts": [
            {
                "status": status,
                "labels": labels,
                "annotations": shown,
                "startsAt": finding.get("onset", notification.timestamp),
                "endsAt": ended_at if status == "resolved" else _GO_ZERO_TIME,
                "generatorURL": notification.link,
                "fingerprint": fingerprint(labels),
            }
        ],
    }


def alert_labels(finding: Finding) -> dict[str, str]:
    """Return the labels that identify a finding: the same from its opening to its end, reopened too."""
    # Cut as `fit` cuts the texts of a long finding, so that its length does not change its identity.
    cluster = str(finding.get("subject", {}).get("cluster") or "")[:120]
    labels = {"alertname": ALERTNAME, "source": "slowrank", "cluster": cluster}
    labels["finding_id"] = str(finding.get("id", ""))
    return {name: value for name, value in labels.items() if value}


def annotations(finding: Finding) -> dict[str, str]:
    """Return what an alert shows of a finding and what may change while it is open."""
    action, subject = finding.get("action", {}), finding.get("subject", {})
    values = {
        "summary": finding.get("title"),
        "description": ". ".join(f"{name}: {text}" for name, text in facts(finding)),
        **{name: finding.get(name) for name in ("severity", "kind", "slowdown_ratio", "confidence")},
        **{name: subject.get(name) for name in PLACES},
        "subject": subject_path(subject),
        "gpu": subject.get("gpu_index"),
        "action": action.get("code"),
        "runbook_url": action.get("runbook_url"),
        "slowrank_version": __version__,
    }
    return {name: str(value) for name, value in values.items() if value is not None}


def _quoted(value: str) -> str:
    return msgspec.json.encode(value).decode()


def fingerprint(labels: Mapping[str, str]) -> str:
    """Return Alertmanager's fingerprint: 64-bit FNV-1a of names and values in order, each ended by 0xff."""
    value = 0xCBF29CE484222325
    for byte in b"".join(part.encode() + b"\xff" for pair in sorted(labels.items()) for part in pair):
        value = (value ^ byte) * 0x100000001B3 & (2**64 - 1)
    return f"{value:016x}"


RECEIVER = Receiver("alertmanager", "application/json", _render)
