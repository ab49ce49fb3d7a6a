"""Scores by row of a table: events found and missed, delays, right places and causes, false alarms."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from benchmarks.quality.run import OURS, Outcome
from benchmarks.quality.scoring.alarms import PAGE, TICKET
from benchmarks.quality.scoring.matching import (
    Alarm,
    Event,
    Matches,
    Places,
    in_window,
    is_of,
    match,
    names_culprit,
)
from benchmarks.quality.scoring.metrics import Floats
from simulator.faults.shared_faults import TELEMETRY_FAULTS

# ``false`` includes duplicates, ``wrong`` only alarms about other machines. ``named`` are events of a machine
# that was named first, ``unnamed`` the other events of machines.
COUNTS = (
    "true", "false", "missed", "events", "named", "wrong", "unnamed", "soon", "top1", "top3", "kind",
    "cause1",
    "cause3", "covered",
)  # fmt: skip

SOON_STEPS = 30.0


@dataclass(slots=True)
class Score:
    """Counts by seed (in order of ``COUNTS``), and the values by seed for quantiles and calibration.

    ``opened`` is the time from the true onset to the opening of the finding, ``delays`` to the event time the
    stream had reached when it was sent; ``inf`` for missed events. ``sure`` pairs a finding's confidence with
    whether it was right, ``why`` that of its cause.
    """

    seeds: dict[int, Floats] = field(default_factory=dict)
    opened: dict[int, list[float]] = field(default_factory=dict)
    delays: dict[int, list[float]] = field(default_factory=dict)
    duplicates: int = 0
    sure: dict[int, list[tuple[float, bool]]] = field(default_factory=dict)
    why: dict[int, list[tuple[float, bool]]] = field(default_factory=dict)

    @property
    def events(self) -> int:
        """Number of events."""
        return sum(map(len, self.delays.values()))

    def counts(self, *which: str) -> Floats:
        """Return the counts of those names, [seeds, names]."""
        table = np.array([self.seeds[seed] for seed in sorted(self.seeds)])
        return table[:, [COUNTS.index(name) for name in which]]

    def add(self, seed: int, **counts: float) -> None:
        """Add to the counts of one seed, which is then part of every interval."""
        for seen in (self.opened, self.delays, self.sure, self.why):
            seen.setdefault(seed, [])
        row = self.seeds.setdefault(seed, np.zeros(len(COUNTS)))
        for name, count in counts.items():
            row[COUNTS.index(name)] += count


def scores(
    outcomes: Iterable[Outcome], detector: str = OURS, *, whole: str | None = None
) -> dict[str, Score]:
    """Return the score of a detector by row; with ``whole``, a row of that name over all of them."""
    table: dict[str, Score] = {}
    for outcome in outcomes:
        if detector not in outcome.alarms:
            continue
        result = match(outcome.events, outcome.alarms[detector])
        rows = dict.fromkeys([*(event.row for event in outcome.events), outcome.row])
        for row in (*rows, whole) if whole else rows:
            _count(table.setdefault(row, Score()), outcome, result, detector, None if row == whole else row)
    last = {whole: table.pop(whole)} if whole in table else {}
    return {row: score for row, score in table.items() if score.events} | last


def _count(score: Score, outcome: Outcome, result: Matches, detector: str, row: str | None) -> None:
    score.add(outcome.seed)
    for event, alarm in result.found:
        if row in (None, event.row):
            _found(score, outcome, event, alarm, outcome.alarms[detector])
    for event in result.missed:
        # Some failures of telemetry need no finding.
        if row in (None, event.row) and event.verdicts:
            score.add(outcome.seed, missed=1, events=1, unnamed=event.machine)
            score.opened[outcome.seed].append(np.inf)
            score.delays[outcome.seed].append(np.inf)
    wrong = [(alarm, row_of(outcome, alarm)) for alarm in result.false]
    again = [(alarm, event.row) for event, alarm in result.duplicates]
    for alarm, where in (*wrong, *again):
        if row in (None, where):
            score.add(outcome.seed, false=1, wrong=alarm in result.false)
            if alarm.confidence is not None:
                score.sure[outcome.seed].append((alarm.confidence, False))
    score.duplicates += sum(row in (None, where) for _, where in again)


def _found(score: Score, outcome: Outcome, event: Event, alarm: Alarm, alarms: Sequence[Alarm]) -> None:
    ranked = [names_culprit(event, places) for places in named_about(outcome, event, alarms)]
    accused = named_about(outcome, event, alarms, accused=True)
    limit = event.onset + SOON_STEPS * event.step_seconds
    named = any(names_culprit(event, places) for places in accused[:1])
    right = [is_of(cause, event.causes) for cause in alarm.causes]
    score.add(
        outcome.seed,
        true=1,
        events=1,
        named=event.machine and named,
        unnamed=event.machine and not named,
        soon=alarm.at <= limit,
        top1=any(ranked[:1]),
        top3=any(ranked[:3]),
        kind=is_of(alarm.kind, event.verdicts),
        cause1=any(right[:1]),
        cause3=any(right[:3]),
        covered=_covers(alarm, event),
    )
    score.opened[outcome.seed].append(alarm.at - event.onset)
    score.delays[outcome.seed].append(alarm.sent_at - event.onset)
    if alarm.confidence is not None:
        score.sure[outcome.seed].append((alarm.confidence, True))
    if alarm.cause_confidence is not None:
        score.why[outcome.seed].append((alarm.cause_confidence, any(right[:1])))


def _covers(alarm: Alarm, event: Event) -> bool:
    """Return whether the onset interval contains the true onset."""
    if alarm.onset_lo is None or alarm.onset_hi is None:
        return False
    return alarm.onset_lo <= event.onset <= alarm.onset_hi


def named_about(
    outcome: Outcome, event: Event, alarms: Iterable[Alarm], *, accused: bool = False
) -> list[Places]:
    """Return the places named about an event in the order of the notifications.

    A finding names its machine or domain and then its suspects, likeliest first; with ``accused`` the former
    only. Places at fault in another event are left out, as naming them is right.
    """
    others = [other for other in outcome.events if other.machine and other is not event]
    about = [
        alarm
        for alarm in sorted(alarms, key=lambda a: a.sent_at)
        if in_window(event, alarm.onset) and job_of(outcome, alarm) == event.job_id
    ]
    named = (alarm.named[: bool(alarm.places)] if accused else alarm.named for alarm in about)
    order = dict.fromkeys(places for some in named for places in some)
    return [
        p for p in order if names_culprit(event, p) or not any(names_culprit(other, p) for other in others)
    ]


def row_of(outcome: Outcome, alarm: Alarm) -> str:
    """Return the row of a false alarm: that of the event in the same job, else the scenario's own."""
    rows = [event.row for event in outcome.events if event.job_id == job_of(outcome, alarm)]
    return rows[0] if rows else outcome.row


@dataclass(frozen=True, slots=True)
class Noise:
    """False notifications over an exposure; a page is critical, a ticket an error or a warning."""

    pages: int
    tickets: int
    accusations: int
    node_days: float
    rank_steps: int


def noise(outcomes: Iterable[Outcome], detector: str = OURS) -> Noise:
    """Count the false alarms by severity; an expected finding about a healthy job is none."""
    pages = tickets = accusations = rank_steps = 0
    node_days = 0.0
    for outcome in outcomes:
        if detector not in outcome.alarms:
            continue
        false = false_alarms(outcome, detector)
        pages += sum(a.calls for a in false if a.severity in PAGE)
        tickets += sum(a.calls for a in false if a.severity in TICKET)
        accusations += sum(a.calls for a in false if a.accuses)
        node_days += outcome.node_days
        rank_steps += outcome.rank_steps
    return Noise(pages, tickets, accusations, node_days, rank_steps)


def false_alarms(outcome: Outcome, detector: str = OURS) -> list[Alarm]:
    """Return the alarms without a cause."""
    result = match(outcome.events, outcome.alarms[detector])
    return [*result.false, *(a for a in result.remarks if not _founded(outcome, a))]


def benign_row(outcome: Outcome, alarm: Alarm) -> str | None:
    """Return the benign row of the job that an alarm is about, None for one about no job."""
    return outcome.benign.get(job_of(outcome, alarm) or "")


@dataclass(slots=True)
class Abstention:
    """Counts of one kind of healthy job: all, with a machine accused, with a right verdict, with another."""

    jobs: int = 0
    accused: int = 0
    right: int = 0
    wrong: int = 0


def abstentions(outcomes: Iterable[Outcome]) -> dict[str, Abstention]:
    """Return the counts of findings about healthy jobs, by the name of the job."""
    table: dict[str, Abstention] = {}
    for outcome in outcomes:
        result = match(outcome.events, outcome.alarms[OURS])
        for job in sorted(set(outcome.job_of.values())):
            entry = table.setdefault(job, Abstention())
            about = [a for a in result.remarks if job_of(outcome, a) == job]
            entry.jobs += 1
            entry.accused += any(job_of(outcome, a) == job for a in result.false)
            entry.right += any(_expected(outcome, a) for a in about)
            entry.wrong += any(not _expected(outcome, a) for a in about)
    return table


def _expected(outcome: Outcome, alarm: Alarm) -> bool:
    right = outcome.expected.get(job_of(outcome, alarm) or "", ())
    return any(name in right for name in (alarm.kind, *alarm.causes[:1]))


def _founded(outcome: Outcome, alarm: Alarm) -> bool:
    """Return whether a remark about a job is right: expected, or the job has a fault at that time.

    Failing telemetry of one node does not explain findings about other nodes or the job.
    """
    about = [
        event
        for event in outcome.events
        if event.job_id == job_of(outcome, alarm) and event.fault not in TELEMETRY_FAULTS
    ]
    return _expected(outcome, alarm) or any(in_window(event, alarm.onset) for event in about)


def job_of(outcome: Outcome, alarm: Alarm) -> str | None:
    """Return the job of an alarm, by its place where it has no job id."""
    return alarm.job_id or (outcome.job_of.get(alarm.places[0][0]) if alarm.places else None)
