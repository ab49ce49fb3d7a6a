"""The life of a finding as one table: which event takes which status where."""

from typing import Literal

from alerts.finding import Status

Event = Literal["corroborated", "recovered", "expired", "raised_again", "absorbed", "acknowledged", "closed"]

TRANSITIONS: dict[tuple[Status, Event], Status] = {
    ("suspected", "corroborated"): "open",
    ("suspected", "recovered"): "resolved",
    ("suspected", "expired"): "expired",
    ("open", "recovered"): "resolved",
    ("open", "expired"): "expired",
    ("open", "absorbed"): "resolved",
    ("open", "acknowledged"): "acknowledged",
    ("open", "closed"): "resolved",
    ("acknowledged", "recovered"): "resolved",
    ("acknowledged", "expired"): "expired",
    ("acknowledged", "absorbed"): "resolved",
    ("acknowledged", "closed"): "resolved",
    # A relapse keeps its id, but must be corroborated anew before anybody is called again.
    ("resolved", "raised_again"): "suspected",
    ("expired", "raised_again"): "suspected",
}

LIVE: frozenset[Status] = frozenset({"suspected", "open", "acknowledged"})
NOTIFIED: frozenset[Status] = frozenset({"open", "acknowledged"})


def transition(status: Status, event: Event) -> Status:
    """Return the next status; an event that does not apply leaves it as it is."""
    return TRANSITIONS.get((status, event), status)
