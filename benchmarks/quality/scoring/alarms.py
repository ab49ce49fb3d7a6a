"""What people were told: versions of findings to alarms, by the same rule by which webhooks are sent."""

from collections.abc import Mapping
from dataclasses import replace

from alerts.cases.lifecycle import NOTIFIED
from alerts.finding import Finding
from alerts.notify import NotifiedState, event_of
from alerts.report.severity import ORDER
from benchmarks.quality.matching import Alarm, Coords, Places, Suspects
from slowrank.telemetry import Subject

PAGE = frozenset({"critical"})
TICKET = frozenset({"error", "warning"})
"""A webhook gets warnings and above unless it asks otherwise; only critical ones are made to wake people."""

_CALLS = frozenset({"finding.opened", "finding.reopened"})


class Book:
    """Hears every version of every finding; ``alarms`` are those that were opened for people to see.

    A finding in shadow mode is told nobody.
    """

    def __init__(self, domains: Mapping[str, tuple[str, ...]]) -> None:
        """``domains``: the nodes of every rack and switch, by its name."""
        self._domains = domains
        self._known: dict[str, NotifiedState] = {}
        self._alarms: dict[str, Alarm] = {}

    @property
    def alarms(self) -> tuple[Alarm, ...]:
        """What was told, in order of its first telling."""
        return tuple(self._alarms.values())

    def hear(self, finding: Finding, now: float) -> None:
        """Take a version that left the pipeline when the stream had reached event time ``now``."""
        if finding.shadow:
            return
        told = NotifiedState.of(finding)
        event = event_of(self._known.get(finding.id), told)
        self._known[finding.id] = told
        if event in _CALLS and finding.id in self._alarms:
            again = self._alarms[finding.id]
            self._alarms[finding.id] = replace(again, calls=again.calls + 1)
        elif event in _CALLS:
            self._alarms[finding.id] = _alarm(finding, now)
        if finding.id in self._alarms and finding.status in NOTIFIED:
            self._alarms[finding.id] = self._updated(self._alarms[finding.id], finding, now)

    def _updated(self, alarm: Alarm, finding: Finding, now: float) -> Alarm:
        """Times stay those of the first telling; what it says is what it said last while it was open."""
        cause = finding.cause
        shares = {cause.hypothesis: cause.confidence, **cause.alternatives} if cause else {}
        return replace(
            alarm,
            kind=finding.kind,
            onset=finding.onset,
            onset_lo=finding.onset_lo,
            onset_hi=finding.onset_hi,
            places=self._places(finding.subject),
            suspects=self._suspects(alarm, finding, now),
            group=_group(finding.subject),
            severity=max(alarm.severity, finding.severity, key=lambda s: [*ORDER].index(s)),
            confidence=finding.confidence,
            causes=tuple(sorted(shares, key=lambda name: -shares[name])),
            cause_confidence=cause.confidence if cause else None,
        )

    def _places(self, subject: Subject) -> Places:
        if subject.node is not None:
            return ((subject.node, subject.gpu_index),)
        return tuple((node, None) for node in self._domains.get(subject.rack or subject.switch or "", ()))

    def _suspects(self, alarm: Alarm, finding: Finding, now: float) -> tuple[Suspects, ...]:
        likeliest = sorted(finding.suspects, key=lambda s: -s.probability)
        ranked = tuple(places for s in likeliest if (places := self._places(s.subject)))
        before = alarm.suspects[-1].ranked if alarm.suspects else ()
        return alarm.suspects if ranked == before else (*alarm.suspects, Suspects(now, ranked))


def _group(subject: Subject) -> Coords:
    return tuple(sorted((subject.coords or {}).items())) if subject.type == "job" else ()


def _alarm(finding: Finding, now: float) -> Alarm:
    return Alarm(
        at=finding.detected_at,
        told=now,
        onset=finding.onset,
        kind=finding.kind,
        job_id=finding.subject.job_id,
        severity=finding.severity,
    )
