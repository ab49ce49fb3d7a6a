"""Alarms from versions of findings, by the rule by which webhooks are sent."""

from collections.abc import Mapping
from dataclasses import replace

from alerts.cases.lifecycle import NOTIFIED
from alerts.finding import Finding
from alerts.notify import NotifiedState, event_of
from alerts.stated_severity import ORDER
from benchmarks.quality.scoring.matching import Alarm, Coords, Places, Suspects
from slowrank.telemetry import Subject

PAGE = frozenset({"critical"})

# By default a webhook receives warnings and above; only critical findings are meant to page people.
TICKET = frozenset({"error", "warning"})

_CALLS = frozenset({"finding.opened", "finding.reopened"})


class AlarmLog:
    """Collect ``alarms``, the findings that were notified, from every version of every finding.

    Findings in shadow mode are left out, since they are not notified.
    """

    def __init__(self, domains: Mapping[str, tuple[str, ...]]) -> None:
        """``domains``: the nodes of every rack and switch, by its name."""
        self._domains = domains
        self._notified: dict[str, NotifiedState] = {}
        self._alarms: dict[str, Alarm] = {}

    @property
    def alarms(self) -> tuple[Alarm, ...]:
        """The alarms in order of their first notification."""
        return tuple(self._alarms.values())

    def update(self, finding: Finding, now: float) -> None:
        """Process a version that left the pipeline when the stream had reached event time ``now``."""
        if finding.shadow:
            return
        state = NotifiedState.of(finding)
        event = event_of(self._notified.get(finding.id), state)
        self._notified[finding.id] = state
        if event in _CALLS and finding.id in self._alarms:
            again = self._alarms[finding.id]
            self._alarms[finding.id] = replace(again, calls=again.calls + 1)
        elif event in _CALLS:
            self._alarms[finding.id] = _alarm(finding, now)
        if finding.id in self._alarms and finding.status in NOTIFIED:
            self._alarms[finding.id] = self._updated(self._alarms[finding.id], finding, now)

    def _updated(self, alarm: Alarm, finding: Finding, now: float) -> Alarm:
        """Return the alarm with its times unchanged and the content of its latest open version."""
        cause = finding.cause
        # Without a share nothing else was weighed.
        sure = None if cause is None else 1.0 if cause.confidence is None else cause.confidence
        shares = {} if cause is None or sure is None else {cause.hypothesis: sure, **cause.alternatives}
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
            cause_confidence=sure,
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
        sent_at=now,
        onset=finding.onset,
        kind=finding.kind,
        job_id=finding.subject.job_id,
        severity=finding.severity,
    )
