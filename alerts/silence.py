"""Silences: label matchers for a stretch of time, in Alertmanager's shape, and which of them mute a finding.

``store.findings.outbox`` applies them when a delivery is queued, ``store.findings.leases`` when it is due.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, get_args

from alerts.recurrence import Recurrence

# Characters of a matcher's value (chosen: twice the longest name in telemetry).
MAX_VALUE = 256
PlaceLabel = Literal["cluster", "node", "gpu_uuid", "nic", "port", "rank", "job_id", "rack", "switch", "rail"]
LabelName = Literal[
    PlaceLabel, "gpu", "subject_type", "kind", "severity", "finding_id", "alertname", "source"
]
"""The labels that a finding has; a matcher of another one would mute nothing, or everything."""

# Labels of every finding as an alert: Alertmanager's clients make silences of all labels of an alert.
ALERT_LABELS = {"alertname": "SlowrankFinding", "source": "slowrank"}


@dataclass(frozen=True, slots=True)
class Matcher:
    """One condition on a label; a missing label counts as empty. Raises ``ValueError`` for a bad regex."""

    name: str
    value: str
    is_regex: bool = False
    is_equal: bool = True

    def __post_init__(self) -> None:
        if len(self.value) > MAX_VALUE:
            raise ValueError(f"a matcher's value has at most {MAX_VALUE} characters")
        if self.is_regex:
            try:
                re.compile(self.value)
            # A number of repetitions beyond 32 bits is an OverflowError.
            except (re.error, OverflowError) as error:
                raise ValueError(f"{self.value!r} is no regular expression: {error}") from error

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return whether the labels fulfil the condition; a regex must match the whole value."""
        have = labels.get(self.name, "")
        equal = re.fullmatch(self.value, have) is not None if self.is_regex else have == self.value
        return equal is self.is_equal


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """Mutes what all its matchers match, from ``starts_at`` up to but not including ``ends_at``.

    With a ``recurrence``, a maintenance window, only during its occurrences between these times.
    """

    id: str
    matchers: tuple[Matcher, ...]
    starts_at: datetime
    ends_at: datetime
    created_by: str
    comment: str
    recurrence: Recurrence | None = None

    def state(self, now: datetime) -> Literal["pending", "active", "expired"]:
        """Return the state at a time: it is derived, never stored."""
        if now >= self.ends_at:
            return "expired"
        return "pending" if self.mutes_until(now) is None else "active"

    def mutes_until(self, now: datetime) -> datetime | None:
        """Return when it ends to mute what it mutes now, or None where it mutes nothing now."""
        if not self.starts_at <= now < self.ends_at:
            return None
        if self.recurrence is None:
            return self.ends_at
        occurrence = self.recurrence.occurrence(self.starts_at, now)
        return None if occurrence is None else min(occurrence[1], self.ends_at)

    def mutes(self, labels: Mapping[str, str], now: datetime) -> bool:
        """Return whether it mutes these labels now; a silence without matchers mutes nothing."""
        applies = bool(self.matchers) and all(m.matches(labels) for m in self.matchers)
        return applies and self.state(now) == "active"


def muting(silences: Iterable[Silence], labels: Mapping[str, str], now: datetime) -> Silence | None:
    """Return the silence that mutes the labels longest, or None."""
    return max(
        (s for s in silences if s.mutes(labels, now)),
        key=lambda s: (s.mutes_until(now) or s.ends_at, s.id),
        default=None,
    )


def labels(finding: Mapping[str, Any]) -> dict[str, str]:
    """Return the labels of a ``finding.v1`` object that matchers see."""
    subject: Mapping[str, Any] = finding.get("subject", {})
    found = {name: subject.get(name) for name in get_args(PlaceLabel)}
    found |= {"gpu": subject.get("gpu_index"), "subject_type": subject.get("type")}
    found |= {name: finding.get(name) for name in ("kind", "severity")} | {"finding_id": finding.get("id")}
    found |= ALERT_LABELS
    return {name: str(value) for name, value in found.items() if value is not None}
