"""Jobs without a new step: one half of a hang, whose nodes must be idle besides."""

from collections.abc import Collection, Mapping

from msgspec.structs import asdict

from detectors.job.progress import Stall, StallWatch
from slowrank.telemetry import Evidence, HangVote, Suspicion
from streams.job.config import JobStageConfig
from streams.job.step_aligner import Step
from streams.job.suspicions import PROGRESS, dated
from streams.job.topic import Key, Topic
from streams.job.view import JobView, spans

HANG: Key = (Topic("hang"), -1)


class HangDetector:
    """A stall of the job, from when it shows until the next new step.

    Rows, and event time without rows, show it before a step is whole: the job calls ``new_step`` and looks at
    ``stalls`` besides.
    """

    topics = (HANG[0],)

    def __init__(self, config: JobStageConfig) -> None:
        self.restart(new_run=True)

    def restart(self, *, new_run: bool) -> None:
        """Learn anew how far steps are apart."""
        self.stalls, self.newest = StallWatch(), -1

    def step(self, view: JobView, step: Step) -> Mapping[Key, Suspicion]:
        """Return a stall that stands: a row of a new step ends it, and no whole step does."""
        return view.standing(*self.topics)

    def new_step(self, number: int, ts: float, *, sent: float) -> None:
        """Note the first row of step ``number``, made at ``ts``, sent at ``sent``."""
        self.newest = number
        self.stalls.new_step(number, ts, sent=sent)


def stalled(view: JobView, stall: Stall, behind: Collection[int]) -> HangVote:
    """Build a job without progress; the ranks ``behind`` have not reached its newest step."""
    age = Evidence(
        metric="job.step_age_seconds",
        unit="s",
        detector=PROGRESS,
        value=stall.at - stall.since,
        note=f"ranks behind: {spans(behind)}" if behind else "no rank is behind the others",
    )
    dates = dated(view, view.job(), "hang.job", catalogue_id="hang", since=stall.since, at=stall.at)
    score = round(stall.score, 4)
    more = {"family": "job", "score": score, "evidence": (age,)}
    return HangVote(**(asdict(dates) | more), signal="no_progress", early=score < 1.0, certain=stall.certain)
