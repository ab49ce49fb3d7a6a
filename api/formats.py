"""Webhook bodies as a table of pure functions: an event in, bytes of at most 20 kB out.

Adding a format is one function and one line of ``FORMATS``.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
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
# Why Alertmanager would send what happened. A group of which all had resolved begins anew, and with another
# severity an alert has other labels. It has no word for what people say of a finding, nor for a new cause.
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
    """What happened to a finding (a ``finding.v1`` object) and when; ``id`` is the same on every retry."""

    id: str
    type: str
    at: datetime
    finding: Finding

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
    fitted = Event(event.id, event.type, event.at, fit(event.finding))
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
    """Alertmanager webhook, version 4, with one alert; its labels hold identity only."""
    finding, labels = event.finding, alert_labels(event.finding)
    over = finding.get("status") in _OVER
    annotations = _annotations(finding)
    group = {name: labels[name] for name in ("cluster", "alertname", "job_id") if name in labels}
    pairs = ",".join(f"{name}={_quoted(value)}" for name, value in sorted(group.items()))
    return {
        "version": "4",
        "groupKey": f"{{}}:{{{pairs}}}",
        "truncatedAlerts": 0,
        "status": "resolved" if over else "firing",
        "receiver": "slowrank",
        "groupLabels": group,
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
                "generatorURL": finding_url(finding, public_url),
                "fingerprint": _fingerprint(labels),
            }
        ],
    }


def slack(event: Event, public_url: str) -> object:
    """Slack incoming webhook: fallback text, four facts, the action, a link."""
    finding = event.finding
    title, severity = _slack(finding.get("title", ""), 120), str(finding.get("severity", "info")).upper()
    if finding.get("status") in _OVER:
        return {"text": f"Resolved: {title}"}
    facts = [f"*{name}*\n{_slack(text, 500)}" for name, text in _facts(finding)]
    action = _slack(finding.get("action", {}).get("text", ""), 1000)
    link = finding_url(finding, public_url)
    button = {"type": "button", "text": {"type": "plain_text", "text": "Open finding"}, "url": link}
    return {
        "text": f"{severity} {title}",
        "blocks": [
            # Slack's limits: 150 characters in a header, 2,000 in a field, 3,000 in a text.
            {"type": "header", "text": {"type": "plain_text", "text": title[:150]}},
            {"type": "section", "fields": [{"type": "mrkdwn", "text": fact} for fact in facts]},
            {"type": "section", "text": {"type": "mrkdwn", "text": f"*Do:* {action}"}},
            {"type": "actions", "elements": [button]},
        ],
    }


# Two findings with the same labels are one alert to Alertmanager, and the end of one would end both. Where a
# node stands may become known while its finding lives: only what is said of a place itself is known by it.
_PLACES = ("cluster", "node", "gpu_uuid", "nic", "port", "job_id", "rank")
_DOMAINS = ("rack", "switch", "rail")


def alert_labels(finding: Finding) -> dict[str, str]:
    """Return the fixed identity labels of a finding: nothing that changes while it lives, except severity."""
    subject = finding.get("subject", {})
    kind = str(finding.get("kind", ""))
    labels = {"alertname": alert_name(kind), "severity": finding.get("severity"), "kind": kind}
    labels |= {"source": "slowrank", "gpu": subject.get("gpu_index")}
    places = (*_PLACES, *_DOMAINS) if subject.get("type") in _DOMAINS else _PLACES
    labels |= {name: subject.get(name) for name in places}
    labels |= {"group": _shared(subject)} if subject.get("type") == "group" else {}
    return {name: str(value) for name, value in labels.items() if value is not None and value != ""}


def alert_name(kind: str) -> str:
    """Return ``StragglerFailSlow`` for ``straggler.fail_slow``."""
    words = kind.replace(".", " ").replace("_", " ").split()
    return "".join(word[:1].upper() + word[1:] for word in words) or "Slowrank"


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


def finding_url(finding: Finding, public_url: str) -> str:
    """Return where a person can look at the finding."""
    return f"{public_url}/findings/{finding.get('id', '')}"


def _annotations(finding: Finding) -> dict[str, str]:
    action = finding.get("action", {})
    values = {
        "summary": finding.get("title"),
        "description": ". ".join(f"{name}: {text}" for name, text in _facts(finding)),
        "action": action.get("code"),
        "finding_id": finding.get("id"),
        "slowdown_ratio": finding.get("slowdown_ratio"),
        "confidence": finding.get("confidence"),
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
    # As long as Alertmanager's; the hash is another, so the values are not the same.
    return hashlib.sha256(msgspec.json.encode(sorted(labels.items()))).hexdigest()[:16]


FORMATS: dict[str, Format] = {
    "standard": Format("application/json", standard),
    "cloudevents": Format("application/cloudevents+json", cloudevents),
    "alertmanager": Format("application/json", alertmanager),
    "slack": Format("application/json", slack),
}
