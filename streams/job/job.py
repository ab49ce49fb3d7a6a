"""One job: rows become steps, detectors see each step, what stands is held against what is open."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec

from detectors.job.progress import Stall, StallWatch
from detectors.straggler.core import DecisionCore
from slowrank.telemetry import UNKNOWN_NODE, Evidence, JobSteps, RankPace, Suspicion
from streams.job.config import JobStageConfig
from streams.job.core import make_core, step_times
from streams.job.detector import JobDetector
from streams.job.detectors.slow_ranks import open_ranks
from streams.job.lost_time import JobCosts
from streams.job.memory import JOB_BYTES, RANK_BYTES, ROW_BYTES
from streams.job.pace import Paces
from streams.job.step_aligner import Step, StepAligner
from streams.job.step_rows import Rows
from streams.job.suspicions import PROGRESS, dated
from streams.job.table import GpuPlace
from streams.job.topic import Key, Topic
from streams.job.view import JobView, spans
from streams.open_suspicions import OpenSuspicions

HANG = Topic("hang")

_HANG: Key = (HANG, -1)


class OpenOfJob:
    """The open suspicions of a job and their costs; kept when the job is let go, for it may be back."""

    def __init__(self, config: JobStageConfig) -> None:
        self.costs = JobCosts()
        self.suspicions: OpenSuspicions[Key] = OpenSuspicions(config.update_seconds, self.costs.stamped)


class Job:
    """State of one job. ``roster``: its ranks, ascending, once a step was whole; ``open``: its suspicions."""

    def __init__(
        self,
        cluster: str,
        record: JobSteps,
        config: JobStageConfig,
        detectors: Sequence[Callable[[JobStageConfig], JobDetector]],
    ) -> None:
        self.attempt = record.attempt
        self.aligner = StepAligner(record.world_size)
        self.roster: tuple[int, ...] = ()
        self.open = OpenOfJob(config)
        self._cluster, self._job_id = cluster, record.job_id
        self._config = config
        self._detectors = [make(config) for make in detectors]
        self._core: DecisionCore | None = None
        self._ranks: frozenset[int] = frozenset()
        # The next whole step shows anew which ranks there are.
        self._restarted = True
        self._stalls = StallWatch()
        self._paces = Paces()
        self._newest = -1

    @property
    def bytes_held(self) -> int:
        """Bytes that the job takes, counted anew."""
        ranks, waiting = len(self.aligner.last_ts), self.aligner.waiting
        window = 0 if self._core is None else self._core.nbytes
        return JOB_BYTES + RANK_BYTES * ranks + ROW_BYTES * waiting + window

    @property
    def places(self) -> set[GpuPlace]:
        """The GPUs that the job works on, as far as its rows name them."""
        known = (self.aligner.identities[rank] for rank in self.roster)
        return {
            (self._cluster, at.node, -1 if at.gpu_index is None else at.gpu_index)
            for at in known
            if at.node != UNKNOWN_NODE
        }

    def advance(self, rows: Rows, *, sent: float) -> list[Suspicion]:
        """Take that rows of one step have come, sent at ``sent``; a new step ends a stall."""
        number, ts = self.aligner.number(rows), rows.ts[0]
        if number <= self._newest:
            return []
        self._newest = number
        # Before the step ends a stall: what it reached by then is emitted whether or not a tick came in
        # between.
        out = self.stalls(ts)
        self._stalls.new_step(number, ts, sent=sent)
        return out + self.open.suspicions.clear(_HANG, ts)

    def stalls(self, event_time: float) -> list[Suspicion]:
        """Return what a stall has reached by ``event_time``."""
        stalls = self._stalls.look(event_time)
        if not stalls or self._core is None:
            return []
        view = self._view(self._core)
        behind = [r for r in self.roster if self.aligner.last_step.get(r, self._newest) < self._newest]
        found = [_stalled(view, stall, behind) for stall in stalls]
        return [s for stall in found for s in self.open.suspicions.put(_HANG, stall, at_once=True)]

    def fit_roster(self, step: Step) -> list[Suspicion] | None:
        """Make a core for a changed set of ranks; return the suspicions that end by that, None where the
        ranks are as before. Who was slow and is still in the job remains so."""
        present, aligner = step.present, self.aligner
        if self._core is not None and not (self._restarted or aligner.changed) and present <= self._ranks:
            return None
        # Ranks are added and never dropped, for one may only be late; a restart shows anew who there is.
        roster = tuple(sorted(present.union(() if self._restarted else self.roster)))
        self._restarted = False
        if self._core is not None and not aligner.changed and roster == self.roster:
            return None
        core, open_ = make_core(roster, aligner.identities, self._config.straggler), self.open.suspicions
        if self._core is None:
            # Of a job that was let go and is back: slow until seen to have recovered.
            core.resume(open_ranks(open_, roster))
        else:
            places = {rank: i for i, rank in enumerate(self.roster)}
            core.inherit(self._core, [places.get(rank, -1) for rank in roster])
        self._core, self.roster, self._ranks = core, roster, frozenset(roster)
        aligner.changed = False
        return [s for key in open_ if _ends(key, self._ranks) for s in open_.clear(key, step.closed_at)]

    def step(self, step: Step) -> list[Suspicion | RankPace]:
        """Show a whole step to all detectors; return what is new, changed or cleared."""
        core, at, open_ = self._core, step.closed_at, self.open.suspicions
        assert core is not None
        self.open.costs.step(step, gpus=len(self.roster), in_step=not core.asynchronous)
        result = core.update(step_times(step, self.roster))
        late = frozenset(self.aligner.late_for(step))
        view = replace(self._view(core), result=result, late=late)
        out: list[Suspicion] = []
        for detector in self._detectors:
            own = [key for key in open_ if key[0] in detector.topics]
            out += open_.settle(detector.step(view, step), own, at)
        return [*out, *self._paces.step(view, at)]

    def end(self, ts: float) -> list[Suspicion]:
        """Take that the job has ended: what is wrong with it is over, what is with its machines is not."""
        open_ = self.open.suspicions
        return [s for key in open_ if not key[0].outlast_job for s in open_.clear(key, ts)]

    def restart(self, record: JobSteps) -> None:
        """Gather steps afresh for a new attempt, a resize or a roll-back; suspicions stay open."""
        self.attempt = record.attempt
        fresh = StepAligner(record.world_size)
        fresh.identities.update(self.aligner.identities)
        fresh.changed = self._restarted = True
        self._align(fresh, new_run=True)

    def check_numbers(self) -> None:
        """Gather stretches of time instead of steps from now on, where step numbers mean nothing."""
        if self.aligner.unrelated:
            self._align(self.aligner.by_time(), new_run=False)

    def _align(self, aligner: StepAligner, *, new_run: bool) -> None:
        self.aligner, self._stalls, self._newest = aligner, StallWatch(), -1
        for detector in self._detectors:
            detector.restart(new_run=new_run)

    def _view(self, core: DecisionCore) -> JobView:
        return JobView(
            cluster=self._cluster,
            job_id=self._job_id,
            attempt=self.attempt,
            roster=self.roster,
            identities=self.aligner.identities,
            core=core,
            open=self.open.suspicions,
        )


def _ends(key: Key, ranks: frozenset[int]) -> bool:
    topic, rank = key
    return topic.ends_with == "roster" or (topic.ends_with == "rank" and rank not in ranks)


def _stalled(view: JobView, stall: Stall, behind: list[int]) -> Suspicion:
    """Build a job without progress: one half of a hang, whose nodes must be idle besides."""
    age = Evidence(
        metric="job.step_age_seconds",
        unit="s",
        detector=PROGRESS,
        value=stall.at - stall.since,
        note=f"ranks behind: {spans(behind)}" if behind else "no rank is behind the others",
    )
    return msgspec.structs.replace(
        dated(view, view.job(), "hang.job", catalogue_id="hang", since=stall.since, at=stall.at),
        family="job",
        score=round(stall.score, 4),
        severity="critical" if stall.certain else "info",
        evidence=(age,),
    )
