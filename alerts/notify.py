"""Which event a change of a finding is: decided from the version last notified and the new one."""

from dataclasses import dataclass
from typing import Literal

from alerts.cases.lifecycle import NOTIFIED
from alerts.finding import Finding, Status
from alerts.stated_severity import ORDER
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

# Events of a webhook that names none: the changes that ask people to act, or to stop acting.
DEFAULT_EVENTS: frozenset[EventType] = frozenset(
    {"finding.opened", "finding.reopened", "finding.escalated", "finding.resolved"}
)

END: EventType = "finding.resolved"


@dataclass(frozen=True, slots=True)
class NotifiedState:
    """The fields of which a change is notified; values that change all the time are not among them."""

    status: Status
    severity: Severity
    kind: str
    hypothesis: str
    action: str
    occurrences: int

    @classmethod
    def of(cls, finding: Finding) -> "NotifiedState":
        """Return the state of a version."""
        cause = finding.cause.hypothesis if finding.cause else ""
        return cls(
            finding.status, finding.severity, finding.kind, cause, finding.action.code, finding.occurrences
        )


def event_of(before: NotifiedState | None, after: NotifiedState) -> EventType | None:
    """Return the event to emit, or None: for a suspected finding, or where numbers alone changed."""
    open_before = before is not None and before.status in NOTIFIED
    if after.status in NOTIFIED and not open_before:
        return "finding.reopened" if after.occurrences > 1 else "finding.opened"
    if before is None or not open_before:
        return None
    if after.status not in NOTIFIED:
        return "finding.resolved"
    if ORDER.index(after.severity) > ORDER.index(before.severity):
        return "finding.escalated"
    same = (before.severity, before.kind, before.hypothesis, before.action)
    return None if same == (after.severity, after.kind, after.hypothesis, after.action) else "finding.updated"
