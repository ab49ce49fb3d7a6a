"""Webhook bodies as a table of pure functions: an event in, bytes of at most 20 kB out.

Adding a format is one function and one line of ``FORMATS``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import msgspec

from slowrank import __version__

# Bytes: what Standard Webhooks recommends as the most, 14 kB of it for the finding itself.
MAX_BODY = 20_000
_FINDING_BUDGET = 14_000
# The end of an alert that still fires, as Alertmanager writes it.
_GO_ZERO_TIME = "0001-01-01T00:00:00Z"
_OVER = frozenset({"resolved", "expired"})
# Why Alertmanager would send what happened. A group of which all had resolved begins anew. It has no word for
# an alert that grew worse: the one for news in a group that fires is the nearest. It has none at all for what
# people say of a finding, nor for a new cause.
_REASONS = {
    "finding.opened": "first notification",
    "finding.reopened": "first notification",
    "finding.escalated": "new alerts added",
    "finding.resolved": "all alerts resolved",
    "delivery.test": "first notification",
}

Finding = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Event:
    """What happened to a finding (a ``finding.v1`` object) and when; ``id`` is the same on every retry.

    ``link`` is where a person reads about it.
    """

    id: str
    type: str
    at: datetime
    finding: Finding
    link: str = ""

    @property
    def timestamp(self) -> str:
        """RFC 3339 UTC."""
        return self.at.isoformat(timespec="seconds").replace("+00:00", "Z")


@dataclass(frozen=True, slots=True)
class Format:
    """How one kind of receiver wants its body; ``public_url`` of the API is the second argument."""

    content_type: str
    render: Callable[[Event, str], object]


def body(name: str, event: Event, public_url: str) -> tuple[str, bytes]:
    """Return content type and body of ``event`` in the format ``name``. Raises ``KeyError``."""
    chosen = FORMATS[name]
    fitted = replace(event, finding=fit(event.finding))
    return chosen.content_type, msgspec.json.encode(chosen.render(fitted, public_url.rstrip("/")))


def fit(finding: Finding) -> Finding:
    """Return the finding small enough for every format: evidence goes first, long texts are cut next."""
    small = dict(finding)
    while small.get("evidence") and len(msgspec.json.encode(small)) > _FINDING_BUDGET:
        small["evidence"] = small["evidence"][:-1]
        small["truncated"] = True
    if len(msgspec.json.encode(small)) > _FINDING_BUDGET:
        small = {key: _cut(value, 300) for key, value in small.items() if key in _CORE}
        small["truncated"] = True
    return small


def _cut(value: Any, limit: int) -> Any:
    if isinstance(value, str):
        return value[:limit]
    if isinstance(value, Mapping):
        return {str(k)[:64]: _cut(v, 120) for k, v in list(value.items())[:20]}
    if isinstance(value, list | tuple):
        return [_cut(v, 120) for v in value[:4]]
    return value


_CORE = frozenset(
    {"id", "schema", "dedup_key", "kind", "title", "severity", "status", "subject", "onset"}
    | {"onset_interval", "detected_at", "last_seen_at", "resolved_at", "detection_delay_seconds"}
    | {"slowdown_ratio", "job_slowdown_ratio", "gpu_hours_lost", "gpu_hours_lost_per_hour"}
    | {"cost_per_hour", "confidence", "score", "detector", "action"}
)


def standard(event: Event, public_url: str) -> object:
    """Standard Webhooks: ``{type, timestamp, data}``."""
    return {"type": event.type, "timestamp": event.timestamp, "data": event.finding}


def cloudevents(event: Event, public_url: str) -> object:
    """CloudEvents 1.0, structured mode."""
    subject = event.finding.get("subject", {})
    return {
        "specversion": "1.0",
        "id": event.id,
        "source": f"//slowrank/{subject.get('cluster', 'default')}",
        "type": f"io.slowrank.{event.type}.v1",
        "subject": subject_path(subject),
        "time": event.timestamp,
        "datacontenttype": "application/json",
        "dataschema": f"{public_url}/api/v1/schemas/finding.v1.json",
        "data": event.finding,
    }


def alertmanager(event: Event, public_url: str) -> object:
    """Alertmanager webhook, version 4: each finding is a group of its own with one alert."""
    finding, labels = event.finding, alert_labels(event.finding)
    over = finding.get("status") in _OVER
    annotations = _annotations(finding)
    # Of several findings in a group the end of one would be told as the end of all.
    pairs = ",".join(f"{name}={_quoted(value)}" for name, value in sorted(labels.items()))
    return {
        "version": "4",
        "groupKey": f"{{}}:{{{pairs}}}",
        "truncatedAlerts": 0,
        "status": "resolved" if over else "firing",
        "receiver": "slowrank",
        "groupLabels": labels,
        "commonLabels": labels,
        "commonAnnotations": annotations,
        "routeLabels": {},
        "notification_reason": _REASONS.get(event.type, "unknown"),
        "externalURL": public_url,
        "alerts": [
            {
                "status": "resolved" if over else "firing",
                "labels": labels,
                "annotations": annotations,
                "startsAt": finding.get("onset", event.timestamp),
                "endsAt": finding.get("resolved_at", event.timestamp) if over else _GO_ZERO_TIME,
                "generatorURL": event.link,
                "fingerprint": _fingerprint(labels),
            }
        ],
    }


# So that a channel which asked for them does not take them for another opening.
_WORDS = {
    "finding.acknowledged": "Acknowledged: ",
    "finding.feedback": "Feedback: ",
    "finding.escalated": "Escalated: ",
    "finding.reopened": "Back again: ",
}


def slack(event: Event, public_url: str) -> object:
    """Slack incoming webhook: fallback text, four facts, the action, a link."""
    finding = event.finding
    title, severity = _slack(finding.get("title", ""), 120), str(finding.get("severity", "info")).upper()
    if finding.get("status") in _OVER:
        return {"text": f"Resolved: {title}"}
    word = _WORDS.get(event.type, "")
    facts = [f"*{name}*\n{_slack(text, 500)}" for name, text in _facts(finding)]
    action = _slack(finding.get("action", {}).get("text", ""), 1000)
    button = {"type": "button", "text": {"type": "plain_text", "text": "Open finding"}, "url": event.link}
    return {
        "text": f"{word}{severity} {title}",
        "blocks": [
            # Slack's limits: 150 characters in a header, 2,000 in a field, 3,000 in a text.
            {"type": "header", "text": {"type": "plain_text", "text": (word + title)[:150]}},
            {"type": "section", "fields": [{"type": "mrkdwn", "text": fact} for fact in facts]},
            {"type": "section", "text": {"type": "mrkdwn", "text": f"*Do:* {action}"}},
            {"type": "actions", "elements": [button]},
        ],
    }


# Alertmanager tells alerts apart by their labels alone: another label is another alert, and the first one is
# never resolved. A finding keeps its id and cluster for life; its severity, kind and place may all change.
ALERTNAME = "SlowrankFinding"


def alert_labels(finding: Finding) -> dict[str, str]:
    """Return the identity of a finding as labels: the same from its opening to its end, reopened too."""
    # Cut as `fit` cuts a long finding, so that its length does not change who it is.
    cluster = str(finding.get("subject", {}).get("cluster") or "")[:120]
    labels = {"alertname": ALERTNAME, "source": "slowrank", "cluster": cluster}
    labels["finding_id"] = str(finding.get("id", ""))
    return {name: value for name, value in labels.items() if value}


def subject_path(subject: Mapping[str, Any]) -> str:
    """Return a short path to the subject, such as ``gpu-0423/gpu/5``."""
    kind = str(subject.get("type", "node"))
    instance = {
        "gpu": subject.get("gpu_index"),
        "rank": subject.get("rank"),
        "group": _shared(subject),
        "job": subject.get("job_id"),
        "nic": subject.get("nic"),
        "rack": subject.get("rack"),
        "switch": subject.get("switch") or subject.get("rail"),
    }.get(kind)
    parts = (subject.get("node"), kind, instance)
    return "/".join(str(part) for part in parts if part is not None)


def _shared(subject: Mapping[str, Any]) -> str:
    """Return the coordinates that the ranks of a group share: a node may have several of them."""
    return ",".join(f"{name}={at}" for name, at in sorted((subject.get("coords") or {}).items())) or "all"


# Where the subject is, as far as it is known by now.
_PLACES = ("node", "gpu_uuid", "nic", "port", "job_id", "rank", "rack", "switch", "rail")


def _annotations(finding: Finding) -> dict[str, str]:
    action, subject = finding.get("action", {}), finding.get("subject", {})
    values = {
        "summary": finding.get("title"),
        "description": ". ".join(f"{name}: {text}" for name, text in _facts(finding)),
        **{name: finding.get(name) for name in ("severity", "kind", "slowdown_ratio", "confidence")},
        **{name: subject.get(name) for name in _PLACES},
        "subject": subject_path(subject),
        "gpu": subject.get("gpu_index"),
        "action": action.get("code"),
        "runbook_url": action.get("runbook_url"),
        "slowrank_version": __version__,
    }
    return {name: str(value) for name, value in values.items() if value is not None}


def _facts(finding: Finding) -> list[tuple[str, str]]:
    cause, blast = finding.get("cause"), finding.get("blast_radius", {})
    per_hour, so_far = finding.get("gpu_hours_lost_per_hour"), finding.get("gpu_hours_lost")
    cost = "not gating a job" if per_hour is None else f"{per_hour:.1f} GPU-h per hour"
    if so_far is not None:
        cost += f", {so_far:.1f} so far"
    why = (
        "not known" if not cause else f"{cause.get('hypothesis')} ({100 * cause.get('confidence', 0):.0f} %)"
    )
    jobs = ", ".join(map(str, blast.get("jobs", ())[:3])) or "no job"
    return [
        ("Since", str(finding.get("onset", "unknown"))),
        ("Cost", cost),
        ("Why", why),
        ("Blast radius", f"{jobs}, {blast.get('ranks', 0)} ranks"),
    ]


def _slack(text: object, limit: int) -> str:
    cut = "".join(c if c.isprintable() else " " for c in str(text)[:limit])
    return cut.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _quoted(value: str) -> str:
    return msgspec.json.encode(value).decode()


def _fingerprint(labels: Mapping[str, str]) -> str:
    """Return what Alertmanager computes: 64-bit FNV-1a of names and values in order, each ended by 0xff."""
    value = 0xCBF29CE484222325
    for byte in b"".join(part.encode() + b"\xff" for pair in sorted(labels.items()) for part in pair):
        value = (value ^ byte) * 0x100000001B3 & (2**64 - 1)
    return f"{value:016x}"


FORMATS: dict[str, Format] = {
    "standard": Format("application/json", standard),
    "cloudevents": Format("application/cloudevents+json", cloudevents),
    "alertmanager": Format("application/json", alertmanager),
    "slack": Format("application/json", slack),
}
