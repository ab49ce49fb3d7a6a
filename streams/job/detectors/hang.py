"""Jobs without a new step: one half of a hang, whose nodes must be idle besides where they send samples."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import msgspec
from msgspec.structs import asdict

from detectors.job.progress import Stall, StallWatch
from detectors.job.stopped_rows import StoppedRows
from detectors.job.waits.arrivals import WAITING, Awaited, awaited
from slowrank.telemetry import Evidence, HangVote, OpenStep, Suspicion
from slowrank.telemetry.records import Suspect
from streams.job.aspect import Aspect, Key
from streams.job.config import JobStageConfig
from streams.job.detectors.missing_ranks import MISSING
from streams.job.rows.step_aligner import Step
from streams.job.suspicions import PROGRESS, WEIGHT_SLOW, dated
from streams.job.view import JobView, spans

HANG: Key = (Aspect("hang"), -1)

# Probability that one of the ranks that did not arrive is the one that the job waits for (chosen: that of the
# nodes that stand out in a hang, ``alerts.reasoning.hang``).
_AMONG_ABSENT = 0.9

# The same of ranks that were missing long before the job stopped (chosen: the others went on without them).
_AMONG_MISSING = 0.5

# Chosen: two nodes of ranks; the evidence lists the others.
_MOST_NAMED = 16

# Chosen: phases, and lines of code, of one rank held while its job stands still.
_MOST_HELD = 8

# Chosen: characters of a note that a page shows without scrolling.
_MAX_NOTE = 500


class HangDetector:
    """A stall of the job, from when it shows until the next new step.

    Rows, and event time without rows, show it before a step is whole: the job calls ``new_step`` and ``look``
    besides.
    """

    aspects = (HANG[0],)

    def __init__(self, config: JobStageConfig) -> None:
        self.stalls, self._rows = StallWatch(), StoppedRows()
        self.restart(new_run=False)

    def restart(self, *, new_run: bool) -> None:
        """Learn anew how far steps are apart, and how many lack rows; a new attempt begins with what the one
        before has shown."""
        self.stalls, self.newest = StallWatch(self.stalls if new_run else None), -1
        self._rows, self._absent = StoppedRows(self._rows if new_run else None), list[int]()
        self._stall: Stall | None = None
        self._open: dict[int, _Reports] = {}
        self._lines: dict[int, _Reports] = {}
        self._heard = 0.0

    def step(self, view: JobView, step: Step) -> Mapping[Key, Suspicion]:
        """Return a stall that stands: a row of a new step ends it, and no whole step does."""
        self._rows.update(step.present)
        return view.standing(*self.aspects)

    def new_step(self, number: int, ts: float, *, sent: float) -> None:
        """Note the first row of step ``number``, made at ``ts``, sent at ``sent``."""
        self.newest, self._absent, self._stall = number, [], None
        self._open, self._lines, self._heard = {}, {}, 0.0
        self.stalls.new_step(number, ts, sent=sent)

    def resume(self, ts: float) -> None:
        """Count a stop that has not shown yet from ``ts`` on: what was sent before it may be lost."""
        if self._stall is None:
            self.stalls.resume(ts)

    def go_on(self, ts: float) -> None:
        """Count a stop from ``ts`` on, whatever has shown: the job had ended."""
        self._stall = None
        self.stalls.resume(ts)

    def note_open(self, steps: Iterable[OpenStep], ts: float) -> None:
        """Note the phases of ranks in the step after the newest; what was sent before it is old."""
        if ts <= self.stalls.last:
            return
        for step in steps:
            if step.phase in WAITING:
                self._heard = max(self._heard, ts)
            _hold(self._open, step.rank, ts, step.phase)
            if step.at:
                _hold(self._lines, step.rank, ts, step.at)

    def look(
        self, view: JobView, event_time: float, reached: Mapping[int, int], *, numbered: bool
    ) -> Iterator[HangVote]:
        """Yield what a stall has come to by ``event_time``; ``reached`` is the last step of each rank.

        Ranks that did not arrive count where steps are ``numbered`` alike, or where ranks report the step
        that they do not end. Votes come when a stall reaches a limit, when such ranks begin to count, and
        when rows of them come late.
        """
        stalls, due = self.stalls.look(event_time), self.stalls.missing_due
        absent, waited_for = list[int](), Awaited()
        phases, reported = self._phases_at(event_time)
        if phases and event_time >= (stalled := max(self.stalls.stalled_due, reported)):
            nodes = {rank: view.identities[rank].node for rank in view.roster}
            waited_for, due = awaited(phases, nodes, view.roster), stalled
        if waited_for.ranks:
            absent = [*waited_for.ranks]
        elif numbered and event_time >= (due := self.stalls.missing_due):
            absent = self._rows.absent(reached, self.newest, view.roster)
        if absent != self._absent:
            at = event_time if self._absent else due
            held = max((s for s in (self._stall, *stalls) if s and s.at <= at), key=_at, default=None)
            stalls.append(replace(held, at=at) if held else Stall(self.stalls.last, at))
        self._absent = absent
        for stall in sorted(stalls, key=_at):
            self._stall = stall
            behind = [rank for rank in view.roster if reached.get(rank, self.newest) < self.newest]
            counted = absent if stall.at >= due else []
            missing = sorted(rank for _, rank in view.standing(MISSING) if rank in behind)
            # User code may keep one rank busy for a minute, as an evaluation does, while the others wait.
            busy = bool(waited_for.elsewhere) and not stall.certain
            named = counted[:_MOST_NAMED] if waited_for.ranks else []
            lines = {rank: line for rank, (_, line) in _last(self._lines, event_time).items()}
            reports = [f"rank {r} {_doing(phases.get(r), lines.get(r))}" for r in named]
            vote = _vote(view, stall, behind, counted, "; ".join(reports), busy=busy)
            if not counted and missing:
                suspects = _suspects(view, missing, _AMONG_MISSING)
                vote = msgspec.structs.replace(vote, suspects=suspects)
            yield msgspec.structs.replace(vote, heard=self._heard)

    def _phases_at(self, event_time: float) -> tuple[dict[int, str], float]:
        """Return the phase that each rank had reported by ``event_time``, and when the last was new."""
        last = _last(self._open, event_time)
        phases = {rank: phase for rank, (_, phase) in last.items()}
        return phases, max((ts for ts, _ in last.values()), default=0.0)


_Reports = list[tuple[float, str]]
"""What a rank has reported, with when, in the order of time."""


def _hold(held: dict[int, _Reports], rank: int, ts: float, text: str) -> None:
    """Hold what ``rank`` reports at ``ts`` where that is new."""
    reports = held.setdefault(rank, [])
    if not reports or reports[-1][1] != text:
        # Sorted, as records of one second come in any order; few, as a rank that stands stays in one.
        held[rank] = sorted([*reports, (ts, text)])[-_MOST_HELD:]


def _last(held: Mapping[int, _Reports], event_time: float) -> dict[int, tuple[float, str]]:
    """Return the last report of each rank by ``event_time``."""
    found = {rank: [r for r in reports if r[0] <= event_time] for rank, reports in held.items()}
    return {rank: reports[-1] for rank, reports in found.items() if reports}


def _at(stall: Stall) -> float:
    return stall.at


def _suspects(view: JobView, ranks: Sequence[int], among: float) -> tuple[Suspect, ...]:
    """Return the first of ``ranks``, one of which is to blame with probability ``among``."""
    chance = round(among / max(1, len(ranks)), 4)
    return tuple(Suspect(subject=view.subject(r), probability=chance) for r in ranks[:_MOST_NAMED])


def _doing(phase: str | None, line: str | None) -> str:
    if phase is None:
        return "reports nothing"
    doing = f"is in its phase {phase}" if phase else "is in code outside any phase"
    return f"{doing}, at {line}" if line else doing


def _vote(
    view: JobView, stall: Stall, behind: Collection[int], absent: Sequence[int], phases: str, *, busy: bool
) -> HangVote:
    """Build a job without progress; the ranks ``behind`` have not reached its newest step.

    Those ``absent`` are suspected; ``phases`` is what they report, and ``busy`` that they still do.
    """
    age = Evidence(
        metric="job.step_age_seconds",
        unit="s",
        detector=PROGRESS,
        value=stall.at - stall.since,
        note=f"ranks behind: {spans(behind)}" if behind else "no rank is behind the others",
    )
    if phases:
        age = msgspec.structs.replace(age, note=f"the others wait in a collective; {phases}"[:_MAX_NOTE])
    dates = dated(view, view.job(), "hang.job", catalogue_id="hang", since=stall.since, at=stall.at)
    score = max(1.0, stall.score) if absent else round(stall.score, 4)
    more = {
        "family": "job",
        "score": score,
        "evidence": (age,),
        "suspects": _suspects(view, absent, _AMONG_ABSENT),
        "severity": "error" if absent and not busy else None,
    }
    if absent and not busy:
        # It opens a finding by itself; a stop at which all arrived may be a pause or the job's end.
        more["log_likelihood_ratio"] = WEIGHT_SLOW
    return HangVote(
        **(asdict(dates) | more),
        signal="no_progress",
        early=score < 1.0,
        certain=stall.certain,
        alone=stall.alone or bool(absent),
    )
