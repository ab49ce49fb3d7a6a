"""Jobs without a new step: one half of a hang, whose nodes must be idle besides where they send samples."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from msgspec.structs import asdict

from detectors.job.progress import Stall, StallWatch
from detectors.job.stopped_rows import StoppedRows
from slowrank.telemetry import Evidence, HangVote, Suspicion
from slowrank.telemetry.records import Suspect
from streams.job.config import JobStageConfig
from streams.job.step_aligner import Step
from streams.job.suspicions import PROGRESS, dated
from streams.job.topic import Key, Topic
from streams.job.view import JobView, spans

HANG: Key = (Topic("hang"), -1)

_AMONG_ABSENT = 0.9
"""Probability that one of the ranks that did not arrive is the one that the job waits for (chosen: that of
the nodes that stand out in a hang, ``alerts.reasoning.hang``)."""

_MOST_NAMED = 16
"""Chosen: two nodes of ranks; the evidence lists the others."""


class HangDetector:
    """A stall of the job, from when it shows until the next new step.

    Rows, and event time without rows, show it before a step is whole: the job calls ``new_step`` and ``look``
    besides.
    """

    topics = (HANG[0],)

    def __init__(self, config: JobStageConfig) -> None:
        self.stalls = StallWatch()
        self.restart(new_run=False)

    def restart(self, *, new_run: bool) -> None:
        """Learn anew how far steps are apart; a new attempt begins with what the one before has shown."""
        self.stalls, self.newest = StallWatch(self.stalls if new_run else None), -1
        self._rows, self._absent = StoppedRows(), list[int]()
        self._stall: Stall | None = None

    def step(self, view: JobView, step: Step) -> Mapping[Key, Suspicion]:
        """Return a stall that stands: a row of a new step ends it, and no whole step does."""
        self._rows.update(step.present)
        return view.standing(*self.topics)

    def new_step(self, number: int, ts: float, *, sent: float) -> None:
        """Note the first row of step ``number``, made at ``ts``, sent at ``sent``."""
        self.newest, self._absent, self._stall = number, [], None
        self.stalls.new_step(number, ts, sent=sent)

    def look(
        self, view: JobView, event_time: float, reached: Mapping[int, int], *, numbered: bool
    ) -> Iterator[HangVote]:
        """Yield what a stall has come to by ``event_time``; ``reached`` is the last step of each rank.

        Ranks that did not arrive count where steps are ``numbered`` alike. Votes come when a stall reaches a
        limit, when such ranks begin to count, and when rows of them come late.
        """
        stalls, due = self.stalls.look(event_time), self.stalls.missing_due
        absent: list[int] = []
        if numbered and event_time >= due:
            absent = self._rows.absent(reached, self.newest, view.roster)
        if absent != self._absent:
            at = event_time if self._absent else due
            held = max((s for s in (self._stall, *stalls) if s and s.at <= at), key=_at, default=None)
            stalls.append(replace(held, at=at) if held else Stall(self.stalls.last, at))
        self._absent = absent
        for stall in sorted(stalls, key=_at):
            self._stall = stall
            behind = [rank for rank in view.roster if reached.get(rank, self.newest) < self.newest]
            yield _vote(view, stall, behind, absent if stall.at >= due else [])


def _at(stall: Stall) -> float:
    return stall.at


def _vote(view: JobView, stall: Stall, behind: Collection[int], absent: Sequence[int]) -> HangVote:
    """Build a job without progress; the ranks ``behind`` have not reached its newest step, which is evidence
    against those ``absent``."""
    age = Evidence(
        metric="job.step_age_seconds",
        unit="s",
        detector=PROGRESS,
        value=stall.at - stall.since,
        note=f"ranks behind: {spans(behind)}" if behind else "no rank is behind the others",
    )
    dates = dated(view, view.job(), "hang.job", catalogue_id="hang", since=stall.since, at=stall.at)
    score = max(1.0, stall.score) if absent else round(stall.score, 4)
    chance = round(_AMONG_ABSENT / max(1, len(absent)), 4)
    more = {
        "family": "job",
        "score": score,
        "evidence": (age,),
        "suspects": tuple(Suspect(subject=view.subject(r), probability=chance) for r in absent[:_MOST_NAMED]),
        "severity": "error" if absent else None,
    }
    return HangVote(
        **(asdict(dates) | more),
        signal="no_progress",
        early=score < 1.0,
        certain=stall.certain,
        alone=stall.alone or bool(absent),
    )
