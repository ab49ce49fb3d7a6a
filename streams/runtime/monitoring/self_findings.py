"""Findings about slowrank itself: workers that are behind, dead letters. Pure: times and counts come in."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from alerts.finding import Action, Finding, dedup_key, finding_id
from alerts.kinds import kind_of
from slowrank.telemetry import Subject
from streams.runtime.kafka.message import PartitionId
from streams.runtime.monitoring.capacity import Forecast

LAG = "self.lag"
DEAD_LETTERS = "self.dead_letters"
CAPACITY = "self.capacity"

# For which dead letters are counted. Chosen: the finding is still open when a notified person looks.
DEAD_LETTER_WINDOW_SECONDS = 600.0
# Without a sign of a problem until its finding is resolved. Chosen: four looks of the self monitor.
WELL_SECONDS = 60.0
# Between two stored versions of an open finding, as suspicions are refreshed.
UPDATE_SECONDS = 60.0
# Marks of one partition: two hours of looks every three seconds.
MAX_MARKS = 2500


class Backlog:
    """How long messages have waited for a consumer group, however few or many they are."""

    def __init__(self) -> None:
        self._marks: dict[PartitionId, list[tuple[float, int]]] = {}

    def note(
        self, now: float, ends: Mapping[PartitionId, int], committed: Mapping[PartitionId, int]
    ) -> float:
        """Return the seconds for which the oldest message waits, from end and committed offsets by partition.

        A wait counts from when it was first seen here: what had accumulated before the start is no alarm.
        """
        oldest = now
        for place, end in ends.items():
            done = committed.get(place, 0)
            marks = [mark for mark in self._marks.get(place, ()) if mark[1] > done]
            if end > done and (not marks or marks[-1][1] < end):
                marks.append((now, end))
            if len(marks) > MAX_MARKS:
                # The first mark gives the age now. Without the second a later age comes out a little short.
                del marks[1]
            self._marks[place] = marks
            oldest = min([oldest, *(at for at, _ in marks[:1])])
        return now - oldest


@dataclass(frozen=True, slots=True)
class Observation:
    """Seconds each worker role is behind, and dead letters within ``DEAD_LETTER_WINDOW_SECONDS``.

    ``capacity`` is the forecast of each role whose load is known.
    """

    behind: Mapping[str, float]
    dead_letters: int
    capacity: Mapping[str, Forecast] = field(default_factory=dict)


@dataclass(slots=True)
class _Problem:
    onset: float | None = None
    last_bad: float = -math.inf
    stored: float = -math.inf
    ended: bool = False


@dataclass(slots=True)
class SelfFindings:
    """Opens a finding for each problem, updates it each minute, and resolves it after a minute without.

    ``behind_seconds`` is the lag past which workers do not recover by themselves, ``growing_seconds`` the one
    from which a lag that grows from one look to the next is reported. Each finding is resolved once after a
    start as well, as a predecessor may have left it open.
    """

    cluster: str
    behind_seconds: float
    started: float
    growing_seconds: float = math.inf
    _before: dict[str, float] = field(default_factory=dict)
    _problems: dict[str, _Problem] = field(default_factory=dict)

    def update(self, now: float, seen: Observation) -> list[Finding]:
        """Return the findings to store; one that is ``resolved`` only matters if the store holds it open."""
        found = []
        for role, behind in seen.behind.items():
            subject = Subject(type="telemetry", cluster=self.cluster, node=f"streams-{role}")
            found += self._step(now, subject, self._is_late(role, behind), _lag(role, behind))
        for role, forecast in seen.capacity.items():
            subject = Subject(type="telemetry", cluster=self.cluster, node=f"streams-{role}")
            found += self._step(now, subject, forecast.short, _capacity(role, forecast))
        subject = Subject(type="telemetry", cluster=self.cluster, node="dead-letters")
        return found + self._step(now, subject, seen.dead_letters > 0, _dead_letters(seen.dead_letters))

    def _is_late(self, role: str, behind: float) -> bool:
        grows = behind > self._before.get(role, math.inf)
        self._before[role] = behind
        return behind >= self.behind_seconds or (grows and behind >= self.growing_seconds)

    def _step(self, now: float, subject: Subject, bad: bool, report: "_Report") -> list[Finding]:
        problem = self._problems.setdefault(dedup_key(subject, report.kind), _Problem(last_bad=self.started))
        if bad:
            # A lag of so many seconds began so many seconds ago.
            problem.onset = now - report.age if problem.onset is None else problem.onset
            problem.last_bad, problem.ended = now, False
            if now - problem.stored < UPDATE_SECONDS:
                return []
            problem.stored = now
            return [_finding(now, subject, report, problem.onset)]
        if problem.ended or now - problem.last_bad < WELL_SECONDS:
            return []
        onset = problem.last_bad if problem.onset is None else problem.onset
        problem.onset, problem.stored, problem.ended = None, -math.inf, True
        return [_finding(now, subject, report, onset, ended=True)]


@dataclass(frozen=True, slots=True)
class _Report:
    kind: str
    title: str
    text: str
    commands: tuple[str, ...]
    score: float
    age: float = 0.0


def _lag(role: str, behind: float) -> _Report:
    what = "The detectors are" if role == "detect" else "Findings and roll-ups are"
    return _Report(
        LAG,
        f"{what} {behind:.0f} s behind the telemetry",
        "Look at the stream workers: are they running, are they too few, is a server slow?",
        ("slowrank healthcheck streams", "slowrank topics describe"),
        behind,
        behind,
    )


def _capacity(role: str, forecast: Forecast) -> _Report:
    what = "Detection" if role == "detect" else "Storing"
    soon = forecast.behind_in
    when = "" if soon is None else f", behind in {max(1, round(soon / 60)):.0f} min if its load grows on"
    return _Report(
        CAPACITY,
        f"{what} uses {forecast.load:.0%} of its capacity{when}",
        "Start another stream worker of this role, up to one for each partition, or look why the load grows.",
        ("slowrank healthcheck streams", "slowrank topics describe"),
        forecast.load,
    )


def _dead_letters(count: int) -> _Report:
    return _Report(
        DEAD_LETTERS,
        f"{count} messages of the last {DEAD_LETTER_WINDOW_SECONDS / 60:.0f} min could not be used",
        "See which sender they come from and why they were refused; repair it, then send them again.",
        ("slowrank dlq list",),
        float(count),
    )


def _finding(now: float, subject: Subject, report: _Report, onset: float, *, ended: bool = False) -> Finding:
    key, rule = dedup_key(subject, report.kind), kind_of(report.kind)
    return Finding(
        id=finding_id(key, onset),
        dedup_key=key,
        kind=report.kind,
        title=report.title,
        severity=rule.severity,
        status="resolved" if ended else "open",
        subject=subject,
        onset=onset,
        onset_lo=onset,
        onset_hi=onset,
        detected_at=now,
        last_seen_at=now,
        resolved_at=now if ended else None,
        detector="sink",
        confidence=1.0,
        score=report.score,
        action=Action(rule.action, report.text, report.commands),
    )
