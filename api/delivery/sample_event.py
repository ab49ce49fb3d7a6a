"""The ``delivery.test`` event: an invented finding, marked as such, for testing receivers."""

from datetime import datetime
from typing import Any

from alerts.finding import Action, Finding, finding_id
from api.http.ids import new_id
from slowrank.telemetry.records import Subject
from store.findings.outbox import OutboxEvent

KIND = "self.test"
TYPE = "delivery.test"


def sample_event(now: datetime) -> OutboxEvent:
    """Return a fresh test event."""
    return OutboxEvent(id=new_id("msg", now), seq=0, type=TYPE, finding_id=None, at=now, body=_finding(now))


def _finding(now: datetime) -> dict[str, Any]:
    at = now.timestamp()
    finding = Finding(
        id=finding_id(KIND, at),
        dedup_key=f"slowrank/exporter/-/{KIND}",
        kind=KIND,
        title="slowrank test delivery: nothing is wrong",
        severity="info",
        status="open",
        subject=Subject(type="exporter", cluster="slowrank"),
        onset=at,
        onset_lo=at,
        onset_hi=at,
        detected_at=at,
        last_seen_at=at,
        detector="person",
        action=Action("NONE", "Nothing to do: this webhook works."),
    )
    return finding.to_json()
