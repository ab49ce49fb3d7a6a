"""Whether the pipeline itself is blind, and the findings that say so. Pure: times and counts come in."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from alerts.finding import Action, Finding, dedup_key, finding_id
from alerts.kinds import kind_of
from slowrank.telemetry import Subject
from streams.runtime.kafka.offsets import Place

LAG = "self.lag"
DEAD_LETTERS = "self.dead_letters"
# Dead letters count for ten minutes; a trouble is over after a minute without a sign of it, and one that goes
# on is stored anew each minute.
LETTER_WINDOW_SECONDS = 600.0
WELL_SECONDS = 60.0
UPDATE_SECONDS = 60.0
# For each partition: two hours of looks every fifteen seconds.
MAX_MARKS = 500


class Backlog:
    """How long messages have waited for a consumer group, however few or many they are."""

    def __init__(self) -> None:
        self._marks: dict[Place, list[tuple[float, int]]] = {}

    def note(self, now: float, ends: Mapping[Place, int], committed: Mapping[Place, int]) -> float:
        """Take where partitions end and how far the group is; return the age [s] of the oldest wait.

        A wait counts from the first time it was seen here, so that a worker that has just started is not
        alarmed by what lay there before.
        """
        oldest = now
        for place, end in ends.items():
            done = committed.get(place, 0)
            marks = [mark for mark in self._marks.get(place, ()) if mark[1] > done]
            if end > done and (not marks or marks[-1][1] < end):
                marks.append((now, end))
            if len(marks) > MAX_MARKS:
                # The first tells the age now and stays. What the second would have told later is then told a
                # little too short.
                del marks[1]
            self._marks[place] = marks
            oldest = min([oldest, *(at for at, _ in marks[:1])])
        return now - oldest


@dataclass(frozen=True, slots=True)
class Sight:
    """What was seen at one time: seconds each worker role is behind, and dead letters of the last minutes."""

    behind: Mapping[str, float]
    letters: int


@dataclass(slots=True)
class _Trouble:
    onset: float | None = None
    last_bad: float = -math.inf
    told: float = -math.inf
    ended: bool = False


@dataclass(slots=True)
class Blindness:
    """Remembers what is wrong since when: a finding opens once, is freshened, and ends once all is well.

    ``behind_seconds`` is the lag past which workers no longer help themselves. All is well when nothing was
    seen for a minute; that is also said once after a start, for what a predecessor may have left open.
    """

    cluster: str
    behind_seconds: float
    started: float
    _troubles: dict[str, _Trouble] = field(default_factory=dict)

    def judge(self, now: float, sight: Sight) -> list[Finding]:
        """Return the findings to store; one that is ``resolved`` matters only if the store holds it open."""
        found = []
        for role, behind in sight.behind.items():
            subject = Subject(type="telemetry", cluster=self.cluster, node=f"streams-{role}")
            found += self._step(now, subject, behind >= self.behind_seconds, _lag(role, behind))
        subject = Subject(type="telemetry", cluster=self.cluster, node="dead-letters")
        return found + self._step(now, subject, sight.letters > 0, _letters(sight.letters))

    def _step(self, now: float, subject: Subject, bad: bool, says: "_Says") -> list[Finding]:
        trouble = self._troubles.setdefault(dedup_key(subject, says.kind), _Trouble(last_bad=self.started))
        if bad:
            trouble.onset = now - says.age if trouble.onset is None else trouble.onset
            trouble.last_bad, trouble.ended = now, False
            if now - trouble.told < UPDATE_SECONDS:
                return []
            trouble.told = now
            return [_finding(now, subject, says, trouble.onset)]
        if trouble.ended or now - trouble.last_bad < WELL_SECONDS:
            return []
        onset = trouble.last_bad if trouble.onset is None else trouble.onset
        trouble.onset, trouble.told, trouble.ended = None, -math.inf, True
        return [_finding(now, subject, says, onset, ended=True)]


@dataclass(frozen=True, slots=True)
class _Says:
    kind: str
    title: str
    text: str
    commands: tuple[str, ...]
    score: float
    age: float = 0.0


def _lag(role: str, behind: float) -> _Says:
    what = "The detectors are" if role == "detect" else "Findings and roll-ups are"
    return _Says(
        LAG,
        f"{what} {behind:.0f} s behind the telemetry",
        "Look at the stream workers: are they running, are they too few, is a server slow?",
        ("slowrank healthcheck streams", "slowrank topics describe"),
        behind,
        behind,
    )


def _letters(count: int) -> _Says:
    return _Says(
        DEAD_LETTERS,
        f"{count} messages of the last {LETTER_WINDOW_SECONDS / 60:.0f} min could not be used",
        "See which sender they come from and why they were refused; repair it, then send them again.",
        ("slowrank dlq list",),
        float(count),
    )


def _finding(now: float, subject: Subject, says: _Says, onset: float, *, ended: bool = False) -> Finding:
    key, rule = dedup_key(subject, says.kind), kind_of(says.kind)
    return Finding(
        id=finding_id(key, onset),
        dedup_key=key,
        kind=says.kind,
        title=says.title,
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
        score=says.score,
        action=Action(rule.action, says.text, says.commands),
    )
