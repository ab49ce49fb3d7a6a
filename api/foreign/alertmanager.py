"""Alertmanager's webhooks, version 4: each alert about a node is an event of that node."""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from slowrank.foreign.series import as_name, gpu_of, job_of, nic_of, node_of, plain
from slowrank.telemetry.checks import BadRecord, check_event
from slowrank.telemetry.records import NodeEvent

# Label or annotation by which an alert names the kind of finding that it argues for.
KIND_LABEL = "slowrank_kind"
# Bytes of a notification. Chosen: a thousand alerts of 2 kB; Alertmanager sends a group at once.
MAX_BODY = 2 * 2**20
# Characters. Chosen: a few sentences; the whole text is with the sender of the alert.
MAX_MESSAGE = 400

_SEVERITIES: Mapping[str, Literal["info", "warning", "error", "critical"]] = {
    **{"critical": "critical", "page": "critical", "error": "error", "warning": "warning", "info": "info"},
}
# In the order of preference: the texts that alert rules usually have.
_TEXTS = ("summary", "description", "message")


@dataclass(frozen=True, slots=True)
class Alert:
    """One alert of a notification."""

    firing: bool
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    starts_at: datetime
    fingerprint: str = ""


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads alerts of a key that may write into ``clusters`` (none: all); ``cluster`` is the default."""

    cluster: str
    clusters: Sequence[str] = ()

    def events(self, alerts: Sequence[Alert], now: float) -> tuple[list[NodeEvent], Counter[str]]:
        """Return the events received at ``now`` (Unix s), and the alerts that are none, by reason."""
        events: list[NodeEvent] = []
        ignored: Counter[str] = Counter()
        for alert in alerts:
            found = self._event(alert, now)
            if isinstance(found, NodeEvent):
                events.append(found)
            else:
                ignored[found] += 1
        return events, ignored

    def _event(self, alert: Alert, now: float) -> NodeEvent | str:
        labels = plain(alert.labels)
        # What slowrank itself has sent to Alertmanager is no second witness.
        if labels.get("source") == "slowrank":
            return "own_alert"
        node = node_of(labels)
        if node is None:
            return "no_node"
        cluster = as_name(labels.get("cluster") or self.cluster)
        if self.clusters and cluster not in self.clusters:
            return "forbidden_cluster"
        made = NodeEvent(
            cluster=cluster,
            node=node,
            # An alert that has fired for days is news now; when it began is part of the subject.
            ts=now,
            source="alertmanager",
            code="alert.firing" if alert.firing else "alert.resolved",
            severity=_SEVERITIES.get(labels.get("severity", ""), "warning"),
            subject=_subject(alert, labels),
            message=_message(alert, labels),
        )
        try:
            return check_event(made, now=now)
        except BadRecord as bad:
            return bad.reason


def _subject(alert: Alert, labels: Mapping[str, str]) -> dict[str, str | int]:
    subject: dict[str, str | int] = {"alert": _identity(alert)}
    started = alert.starts_at.timestamp()
    if started > 0:
        subject["started_ms"] = round(started * 1000)
    if kind := labels.get(KIND_LABEL) or plain(alert.annotations).get(KIND_LABEL) or _xid(labels):
        subject["kind"] = as_name(kind)
    if job := job_of(labels) or labels.get("job_id"):
        subject["job_id"] = as_name(job)
    if gpu := gpu_of(labels):
        return subject | ({"gpu_index": int(gpu)} if gpu.isdecimal() else {"gpu_uuid": gpu})
    if nic := nic_of(labels):
        device, _, port = nic.partition("/")
        return subject | {"nic": device} | ({"port": port} if port else {})
    return subject


def _identity(alert: Alert) -> str:
    """Return what is the same for all notifications of an alert: its labels, as Alertmanager has it."""
    if alert.fingerprint:
        return as_name(alert.fingerprint)
    pairs = "\xff".join(f"{name}\xff{value}" for name, value in sorted(alert.labels.items()))
    return hashlib.sha256(pairs.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _xid(labels: Mapping[str, str]) -> str:
    # dcgm-exporter's DCGM_EXP_XID_ERRORS_COUNT has the number as a label.
    number = labels.get("xid", "")
    return f"xid.{number}" if number.isdecimal() else ""


def _message(alert: Alert, labels: Mapping[str, str]) -> str:
    text = next((alert.annotations[name] for name in _TEXTS if alert.annotations.get(name)), "")
    name = labels.get("alertname", "alert")
    return (f"{name}: {text}" if text else name)[:MAX_MESSAGE].replace("\0", " ")
