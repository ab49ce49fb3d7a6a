"""One job: rows become steps, detectors see each step, what stands is held against what is open."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from detectors.straggler.core import DecisionCore, HeldSlow, StepResult
from slowrank.telemetry import (
    UNKNOWN_NODE,
    JobNodes,
    JobSteps,
    OpenStep,
    RankPace,
    StepsReported,
    Suspicion,
)
from streams.job.aspect import Key
from streams.job.config import JobStageConfig
from streams.job.core import make_core
from streams.job.detector import JobDetector
from streams.job.detectors.hang import HANG, HangDetector
from streams.job.detectors.lost_time import JobCosts
from streams.job.detectors.pace import Paces
from streams.job.detectors.slow_ranks import open_ranks
from streams.job.memory import JOB_BYTES, RANK_BYTES, ROW_BYTES, STEP_BYTES
from streams.job.node_clocks import NodeClocks
from streams.job.rows.attempts import Attempt, Layout
from streams.job.rows.step_aligner import Step, StepAligner
from streams.job.rows.step_rows import Rows
from streams.job.table import GpuPlace
from streams.job.view import JobView
from streams.open_suspicions import OpenSuspicions

OfJob = Suspicion | RankPace | StepsReported | JobNodes

Out = list[OfJob]
"""What a record gives rise to, in order; what follows the record appends to it."""

# After so long with steps, and then again, a job is reported to the cluster stage. Chosen: before its
# nodes can show a hang (``detectors.node.waiting``); four times in what a stage that is rebuilt reads, an
# hour.
_STEPS_AFTER_SECONDS, _STEPS_REPEAT_SECONDS = 120.0, 900.0

# Time between two reports of the same nodes. Chosen: as ``streams.node.inventory`` announces them.
_NODES_REPEAT_SECONDS = 300.0


class OpenOfJob:
    """The open suspicions of a job and their costs; kept when the job is let go, for it may be back."""

    def __init__(self, config: JobStageConfig) -> None:
        self.costs = JobCosts()
        self.suspicions: OpenSuspicions[Key] = OpenSuspicions(config.update_seconds, self.costs.stamped)


class Job:
    """State of one job.

    ``roster``: its ranks, ascending, once a step was whole; ``open``: its suspicions; ``clocks``: which of
    its nodes' clocks are off, None where step numbers mean nothing.
    """

    def __init__(
        self,
        cluster: str,
        record: JobSteps,
        config: JobStageConfig,
        detectors: Sequence[Callable[[JobStageConfig], JobDetector]],
        open_: OpenOfJob | None = None,
    ) -> None:
        self.attempt = record.attempt
        self.aligner = StepAligner(record.world_size)
        self.clocks: NodeClocks | None = NodeClocks()
        self.roster: tuple[int, ...] = ()
        self.open = open_ or OpenOfJob(config)
        self._cluster, self._job_id = cluster, record.job_id
        self._straggler = config.straggler
        self._hang = HangDetector(config)
        self._detectors: list[JobDetector] = [self.open.costs, self._hang]
        self._detectors += [make(config) for make in detectors]
        self._core: DecisionCore | None = None
        self._steps = 0
        self._ranks: frozenset[int] = frozenset()
        self._layout = Layout()
        self._before: Attempt | None = None
        # The next whole step shows anew which ranks there are.
        self._restarted = True
        self._paces = Paces(record.job_id, ())
        self._report_due, self._nodes_due = math.nan, -math.inf

    @property
    def bytes_held(self) -> int:
        """Bytes that the job takes, counted anew."""
        ranks, waiting = len(self.aligner.last_ts), self.aligner.waiting
        window = 0 if self._core is None else self._core.nbytes
        steps = STEP_BYTES * min(self._steps, self._straggler.history)
        return JOB_BYTES + steps + RANK_BYTES * ranks + ROW_BYTES * waiting + window

    @property
    def places(self) -> set[GpuPlace]:
        """The GPUs that the job works on, as far as its rows name them."""
        known = (self.aligner.identities[rank] for rank in self.roster)
        return {
            (self._cluster, at.node, -1 if at.gpu_index is None else at.gpu_index)
            for at in known
            if at.node != UNKNOWN_NODE
        }

    def advance(self, rows: Rows, out: Out, *, sent: float) -> None:
        """Take that rows of one step have come, sent at ``sent``; a new step ends a stall."""
        number, ts = self.aligner.number(rows), rows.ts[0]
        if number > self._hang.newest:
            # Before the step ends a stall: what it reached by then is emitted whether or not a tick came in
            # between.
            self.tick(ts, out)
            self._hang.new_step(number, ts, sent=sent)
            out += self.open.suspicions.clear(HANG, ts)
            if math.isnan(self._report_due):
                self._report_due = ts + _STEPS_AFTER_SECONDS
            if ts >= self._report_due:
                self._report_due = ts + _STEPS_REPEAT_SECONDS
                out.append(StepsReported(cluster=self._cluster, ts=ts, job_id=self._job_id))

    def clock_ahead(self, node: str, rows: Rows, k: int) -> float:
        """Return by how many seconds the clock of ``node`` is ahead; row ``k`` has its time as sent."""
        if self.clocks is None:
            return 0.0
        if self.clocks.note(node, rows.steps[k], rows.ts[k]):
            self.aligner.forget_times()
        return self.clocks.ahead(node)

    def note_open(self, steps: Iterable[OpenStep], ts: float) -> None:
        """Take what ranks reported at ``ts`` of steps that they have not ended."""
        self._hang.note_open(steps, ts)

    def resume(self, event_time: float) -> None:
        """Count a stop that has not shown yet from ``event_time`` on."""
        self._hang.resume(event_time)

    def go_on(self, ts: float) -> None:
        """Take that the job, which had ended, makes steps again from ``ts`` on: it did not stand still."""
        self._hang.go_on(ts)

    def tick(self, event_time: float, out: Out | list[Suspicion]) -> None:
        """Raise what a stall has reached by ``event_time``."""
        if event_time < self._hang.stalls.due or self._core is None:
            return
        reached, numbered = self.aligner.last_step, self.aligner.window is None
        for vote in self._hang.look(self._view(self._core), event_time, reached, numbered=numbered):
            out.extend(self.open.suspicions.put(HANG, vote, at_once=True))
            out.extend(self.open.suspicions.costing_nothing(event_time))

    def fit_roster(self, step: Step, out: Out) -> bool:
        """Make a core for a changed set of ranks and end the suspicions that end by that; return whether it
        has changed. Who was slow and is still in the job remains so."""
        present, aligner = step.present, self.aligner
        if self._core is not None and not (self._restarted or aligner.changed) and present <= self._ranks:
            return False
        # Ranks are added and never dropped, for one may only be late; a restart shows anew who there is.
        roster = tuple(sorted(present.union(() if self._restarted else self.roster)))
        self._restarted = False
        if self._core is not None and not aligner.changed and roster == self.roster:
            return False
        core, open_ = make_core(roster, aligner.identities, self._straggler), self.open.suspicions
        layout = Layout.of(roster, aligner)
        if self._before is not None and (before := self._before.known_in(layout)) is not None:
            core.take_before(before)
        if self._core is None:
            # Of a job that was let go and is back: slow until seen to have recovered.
            core.resume(open_ranks({key: open_[key].onset for key in open_}, roster))
        else:
            core.resume(_moved(self._core.held(), self.roster, roster))
        self._core, self.roster, self._ranks, self._layout = core, roster, frozenset(roster), layout
        self._paces = Paces(self._job_id, roster)
        self._nodes_due = -math.inf
        aligner.changed = False
        for key in open_:
            if _ends(key, self._ranks):
                out += open_.clear(key, step.closed_at)
        return True

    def step(self, step: Step, out: Out) -> None:
        """Show a whole step to the core and to all detectors; emit what is new, changed or cleared."""
        core, at, open_ = self._core, step.closed_at, self.open.suspicions
        assert core is not None
        self._steps += 1
        result = core.update(step.times(self.roster, numbered=self.aligner.window is None))
        view = self._view(core, result, frozenset(self.aligner.late_for(step)))
        for detector in self._detectors:
            standing = detector.step(view, step)
            own = [key for key in open_ if key[0] in detector.aspects]
            if standing or own:
                out += open_.settle(standing, own, at)
        if at >= self._paces.due:
            out += self._paces.step(view, at)
        if at >= self._nodes_due:
            self._nodes_due = at + _NODES_REPEAT_SECONDS
            out += self._nodes(at)

    def end(self, ts: float) -> list[Suspicion]:
        """Take that the job has ended: what is wrong with it is over, what is with its machines is not, but
        costs nothing."""
        open_ = self.open.suspicions
        over = [s for key in open_ if not key[0].outlast_job for s in open_.clear(key, ts)]
        return over + open_.costing_nothing(ts)

    def restart(self, record: JobSteps) -> None:
        """Gather steps afresh for a new attempt, a resize or a roll-back; suspicions stay open."""
        self.attempt = record.attempt
        # Of an attempt that ends soon, the one before holds.
        if self._core is not None and (learnt := self._core.learnt()) is not None:
            self._before = Attempt(self._layout, learnt)
        fresh = StepAligner(record.world_size)
        fresh.identities.update(self.aligner.identities)
        fresh.changed = self._restarted = True
        if self.clocks is not None:
            self.clocks.renumber()
        self._align(fresh, new_run=True)

    def check_numbers(self) -> None:
        """Gather stretches of time instead of steps from now on, where step numbers mean nothing."""
        if self.aligner.unrelated:
            # Without common steps nothing shows a clock.
            self.clocks = None
            self._align(self.aligner.by_time(), new_run=False)

    def _align(self, aligner: StepAligner, *, new_run: bool) -> None:
        self.aligner = aligner
        for detector in self._detectors:
            detector.restart(new_run=new_run)

    def _nodes(self, ts: float) -> Iterator[JobNodes]:
        """Yield the nodes that the job works on, as far as its rows name them."""
        nodes, most = sorted({node for _, node, _ in self.places}), JobNodes.MAX_NODES
        for k in range(0, len(nodes), most):
            part = tuple(nodes[k : k + most])
            yield JobNodes(cluster=self._cluster, ts=ts, job_id=self._job_id, nodes=part)

    def _view(
        self, core: DecisionCore, result: StepResult | None = None, late: frozenset[int] = frozenset()
    ) -> JobView:
        return JobView(
            cluster=self._cluster,
            job_id=self._job_id,
            attempt=self.attempt,
            roster=self.roster,
            identities=self.aligner.identities,
            core=core,
            open=self.open.suspicions,
            result=result or StepResult(),
            late=late,
            world_size=self.aligner.world_size,
        )


def _moved(held: Iterable[HeldSlow], before: Sequence[int], now: Sequence[int]) -> Iterator[HeldSlow]:
    """Yield those that are still in the roster, by their places in it."""
    place = {rank: i for i, rank in enumerate(now)}
    for slow in held:
        if before[slow.rank] in place:
            yield replace(slow, rank=place[before[slow.rank]])


def _ends(key: Key, ranks: frozenset[int]) -> bool:
    aspect, rank = key
    return aspect.ends_with == "roster" or (aspect.ends_with == "rank" and rank not in ranks)
