"""Whether a change of a finding is news, and which: decided from the version people know and the new one."""

from dataclasses import dataclass
from typing import Literal

from alerts.finding import Finding, Status
from alerts.lifecycle import NOTIFIED
from alerts.severity import ORDER
from slowrank.telemetry.records import Severity

EventType = Literal[
    "finding.opened",
    "finding.updated",
    "finding.escalated",
    "finding.acknowledged",
    "finding.resolved",
    "finding.reopened",
    "finding.feedback",
]

DEFAULT_EVENTS: frozenset[EventType] = frozenset(
    {"finding.opened", "finding.reopened", "finding.escalated", "finding.resolved"}
)
"""What a webhook that names no events gets: the changes that ask somebody to act, or to stop acting."""

END: EventType = "finding.resolved"


@dataclass(frozen=True, slots=True)
class Told:
    """What of a finding makes news when it changes; values that move all the time are not in it."""

    status: Status
    severity: Severity
    kind: str
    hypothesis: str
    action: str
    occurrences: int

    @classmethod
    def of(cls, finding: Finding) -> "Told":
        """Return what is told of a version."""
        cause = finding.cause.hypothesis if finding.cause else ""
        return cls(
            finding.status, finding.severity, finding.kind, cause, finding.action.code, finding.occurrences
        )


def news(before: Told | None, after: Told) -> EventType | None:
    """Return the event to emit, or None: suspicions are never news, nor is a change of numbers alone."""
    known = before is not None and before.status in NOTIFIED
    if after.status in NOTIFIED and not known:
        return "finding.reopened" if after.occurrences > 1 else "finding.opened"
    if before is None or not known:
        return None
    if after.status not in NOTIFIED:
        return "finding.resolved"
    if ORDER.index(after.severity) > ORDER.index(before.severity):
        return "finding.escalated"
    same = (before.severity, before.kind, before.hypothesis, before.action)
    return None if same == (after.severity, after.kind, after.hypothesis, after.action) else "finding.updated"
