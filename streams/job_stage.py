"""JobStage: step rows of jobs in, suspicions out (key = job).

Holds per job an aligner (rows into steps), the straggler detector, the progress watch and the ledger of what
was raised. Works as if row by row in the order of the log; how rows were batched into records changes
nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from detectors.job_wide import JobWide
from detectors.loss import LossConfig
from detectors.replicas import Replicas
from detectors.roles import roles_from_coords
from detectors.shards import Shards
from detectors.straggler import Ints, StepTimes, StragglerConfig, StragglerDetector, Verdict
from slowrank.telemetry import UNKNOWN_NODE, JobSteps, NodeEvent, NodeSample, Suspicion
from streams import job_suspicions as write
from streams.job_comm import Transfers
from streams.job_events import has_ended
from streams.job_memory import JOB_BYTES, RANK_BYTES, ROW_BYTES, JobMemory, Shortage, bytes_needed
from streams.job_table import GpuPlace, JobKey, JobTable
from streams.job_view import JobView, Key
from streams.ledger import Ledger
from streams.losses import Losses
from streams.lost_time import LostTime
from streams.paces import Paces
from streams.progress import Presence, Progress, Stall
from streams.step_rows import COORDS, SQUARES, Identity, Rows, rows_of
from streams.steps import Step, StepAligner

DEFAULT_MEMORY_BYTES = 4 << 30
"""Some 2,600 jobs of 64 ranks on one partition: 170,000 GPUs (docs/operations.md)."""

MAX_LEFT_OPEN = 10_000
"""Jobs let go of which something is open still: a few kB each. What was said of the oldest then expires."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStageConfig:
    """``update_seconds``: event time between two suspicions about the same thing."""

    update_seconds: float = 30.0
    straggler: StragglerConfig = field(default_factory=StragglerConfig)
    loss: LossConfig = field(default_factory=LossConfig)


@dataclass(slots=True)
class _Job:
    """State of one job. ``ranks`` is the set of the ``roster``; ``restarted``: the next whole step tells anew
    which ranks there are."""

    attempt: int
    aligner: StepAligner
    lost: LostTime
    ledger: Ledger[Key]
    losses: Losses
    transfers: Transfers = field(default_factory=Transfers)
    detector: StragglerDetector | None = None
    roster: tuple[int, ...] = ()
    ranks: frozenset[int] = frozenset()
    restarted: bool = True
    progress: Progress = field(default_factory=Progress)
    presence: Presence = field(default_factory=Presence)
    paces: Paces = field(default_factory=Paces)
    newest: int = -1


class JobStage:
    """Straggler, imbalance and progress detection over every job of a partition.

    ``name`` is what findings about the stage itself call it; ``memory_bytes`` bounds what its jobs need.
    """

    def __init__(
        self,
        config: JobStageConfig | None = None,
        *,
        name: str = "job-steps",
        memory_bytes: int = DEFAULT_MEMORY_BYTES,
    ) -> None:
        self.config = config or JobStageConfig()
        self._jobs: JobTable[_Job] = JobTable(memory_bytes)
        self._left_open: dict[JobKey, tuple[LostTime, Ledger[Key]]] = {}
        self._shortage = Shortage(name)

    def process(self, record: JobSteps | NodeSample | NodeEvent | Suspicion) -> Sequence[Suspicion]:
        """Take one record of step rows; anything else is not for this stage."""
        if not isinstance(record, JobSteps):
            return ()
        key = (record.cluster, record.job_id)
        if has_ended(record):
            return self._end(key, record.ts)
        out: list[Suspicion] = []
        rows, taken = rows_of(record), 0
        while taken < len(rows) and (job := self._job(key, record, rows, taken)) is not None:
            stop = taken + job.aligner.together(rows, taken)
            out.extend(self._rows(key, job, rows.part(taken, stop), sent=record.ts))
            taken = stop
        return out

    def tick(self, event_time: float) -> Sequence[Suspicion]:
        """Let time pass: only jobs that stopped reporting can notice."""
        out: list[Suspicion] = []
        for key, job, ended in self._jobs.let_go(event_time):
            self._leave(key, job, ended=ended)
        for key, job in self._jobs.live():
            out.extend(self._stalls(key, job, job.progress.look(event_time)))
        return out + self._shortage.look(event_time, self._reserved, self._jobs.refused_of)

    @property
    def late_rows(self) -> int:
        """Rows that came after their step was judged, over all jobs held."""
        return sum(job.aligner.late_rows for _, job in self._jobs.items())

    @property
    def memory(self) -> JobMemory:
        """The memory of the jobs held, counted anew."""
        held = sum(_bytes_held(job) for _, job in self._jobs.items())
        return replace(self._reserved, held=held)

    @property
    def _reserved(self) -> JobMemory:
        jobs = self._jobs
        return JobMemory(reserved=jobs.reserved, limit=jobs.limit, jobs=len(jobs), refused=len(jobs.refused))

    def _job(self, key: JobKey, record: JobSteps, rows: Rows, k: int) -> _Job | None:
        """Return the job as row ``k`` finds it, or None where the record is of an attempt that has ended."""
        job = self._jobs.get(key) or self._admit(key, record, rows, k)
        if job is None or record.attempt < job.attempt:
            return None
        # The world size may be told late; 0 is not known yet, and no resize.
        job.aligner.world_size = job.aligner.world_size or record.world_size
        resized = record.world_size not in (0, job.aligner.world_size)
        if record.attempt > job.attempt or resized or job.aligner.rolled_back(rows, k):
            _restart(job, record)
            job.losses = Losses(self.config.loss)
            if resized:
                job.lost.resized()
        self._jobs.touch(key, rows.ts[k])
        return job

    def _admit(self, key: JobKey, record: JobSteps, rows: Rows, k: int) -> _Job | None:
        """Begin a job, where there is room for it; what was said of it before it was let go is still open."""
        seen = len(set(rows.ranks))
        need = bytes_needed(max(record.world_size, seen), self.config.straggler)
        for other, gone in self._jobs.room_for(need):
            self._leave(other, gone, ended=False)
        lost, losses, aligner = LostTime(), Losses(self.config.loss), StepAligner(record.world_size)
        ledger: Ledger[Key] = Ledger(self.config.update_seconds, lost.stamped)
        job = _Job(record.attempt, aligner, lost, ledger, losses)
        if not self._jobs.admit(key, job, ts=rows.ts[k], need=need):
            return None
        # The ranks that it claims must fit as it begins, but only those that sent rows keep others out: a
        # claim may be wrong. Its first step shows how many there are.
        self._jobs.reserve(key, bytes_needed(seen, self.config.straggler))
        job.lost, job.ledger = self._left_open.pop(key, (lost, ledger))
        return job

    def _leave(self, key: JobKey, job: _Job, *, ended: bool) -> None:
        """Forget a job; of one that may come back, keep what it takes to end what is open about it."""
        if not ended and len(job.ledger):
            job.lost.let_go()
            self._left_open[key] = (job.lost, job.ledger)
            if len(self._left_open) > MAX_LEFT_OPEN:
                del self._left_open[next(iter(self._left_open))]

    def _end(self, key: JobKey, ts: float) -> list[Suspicion]:
        """Take that a job has ended: what is wrong with the job is over, what is with its machines is not."""
        job = self._jobs.get(key)
        if job is None or not self._jobs.end(key, ts):
            return []
        over = [about for about in job.ledger if about[0] not in write.ABOUT_MACHINES]
        return [cleared for about in over for cleared in job.ledger.clear(about, ts)]

    def _rows(self, key: JobKey, job: _Job, rows: Rows, *, sent: float) -> list[Suspicion]:
        out: list[Suspicion] = []
        number, ts = job.aligner.number(rows), rows.ts[0]
        if number > job.newest:
            job.newest = number
            # Before the step ends a stall: what it reached by then is told whether or not a tick came in
            # between.
            out.extend(self._stalls(key, job, job.progress.look(ts)))
            job.progress.new_step(number, ts, sent=sent)
            out.extend(job.ledger.clear(("hang", -1), ts))
        for step in job.aligner.add(rows):
            out.extend(self._step(key, job, step))
        if job.aligner.unrelated:
            _align_afresh(job, job.aligner.by_time())
        return out

    def _step(self, key: JobKey, job: _Job, step: Step) -> list[Suspicion]:
        at = step.closed_at
        out = self._fit_roster(key, job, step)
        assert job.detector is not None
        job.lost.step(step, gpus=len(job.roster), in_step=not job.detector.ratios.asynchronous)
        verdict = job.detector.update(_times(step, job.roster))
        view = JobView(key[0], key[1], job.attempt, job.roster, job.aligner.identities, job.detector)
        out += _stragglers(job.ledger, view, verdict, at)
        # A rank that reports late is not missing.
        gone, back = job.presence.step(step.present | job.aligner.heard_beside(step), at)
        for rank in gone:
            out += job.ledger.put(
                ("missing", rank), write.missing(view, rank, job.presence.last_seen(rank), at)
            )
        for rank in back:
            out += job.ledger.clear(("missing", rank), at)
        out += job.transfers.step(job.ledger, view, step)
        out += job.losses.step(job.ledger, view, step)
        return out + job.paces.step(view, at)

    def _fit_roster(self, key: JobKey, job: _Job, step: Step) -> list[Suspicion]:
        """Start the detector afresh for a changed set of ranks; who was slow and stayed remains suspected."""
        present, at = step.present, step.closed_at
        if job.detector is not None and not (job.restarted or job.aligner.changed) and present <= job.ranks:
            return []
        # Ranks are added and never dropped, for one may only be late; a restart tells anew who there is.
        before = () if job.restarted else job.roster
        roster = tuple(sorted(present.union(before)))
        if job.detector is not None and not job.aligner.changed and roster == job.roster:
            job.restarted = False
            return []
        fresh = _detector(roster, job.aligner.identities, self.config.straggler)
        left = [about for about in job.ledger if about[0] in write.ABOUT_RANKS and about[1] not in roster]
        # What the network takes for other ranks is learnt anew.
        left += [about for about in job.ledger if about[0] == "network"]
        if job.detector is not None:
            fresh.inherit(job.detector, [job.roster.index(r) if r in job.roster else -1 for r in roster])
        else:
            left += _resumed(fresh, roster, job.ledger)
        job.detector, job.roster, job.ranks = fresh, roster, frozenset(roster)
        job.restarted = job.aligner.changed = False
        out = [cleared for about in left for cleared in job.ledger.clear(about, at)]
        return out + self._settle(key, job, since=float(step.ts.min()))

    def _settle(self, key: JobKey, job: _Job, *, since: float) -> list[Suspicion]:
        """Note what a job needs and where it works; end the jobs that it has taken the last GPU of."""
        self._jobs.reserve(key, bytes_needed(len(job.roster), self.config.straggler))
        places = _places(key[0], job)
        return [s for other in self._jobs.work_at(key, places, since) for s in self._end(other, since)]

    def _stalls(self, key: JobKey, job: _Job, stalls: list[Stall]) -> list[Suspicion]:
        if not stalls or job.detector is None:
            return []
        view = JobView(key[0], key[1], job.attempt, job.roster, job.aligner.identities, job.detector)
        behind = [r for r in job.roster if job.aligner.last_step.get(r, job.newest) < job.newest]
        told = [write.stalled(view, stall, behind) for stall in stalls]
        return [said for s in told for said in job.ledger.put(("hang", -1), s, news=True)]


def _stragglers(ledger: Ledger[Key], view: JobView, verdict: Verdict, at: float) -> list[Suspicion]:
    out: list[Suspicion] = []
    for accusation in verdict.accused:
        key: Key = (accusation.channel, view.roster[accusation.rank])
        out += ledger.put(key, write.slow_rank(view, accusation, at))
    for channel, index in verdict.cleared:
        out += ledger.clear((channel, view.roster[index]), at)
    for accusation in verdict.intermittent:
        key = ("intermittent", view.roster[accusation.rank])
        out += ledger.put(key, write.slow_rank(view, accusation, at))
    if verdict.network is not None:
        out += ledger.put(("network", -1), write.slow_network(view, verdict.network, at))
    elif verdict.network_well:
        out += ledger.clear(("network", -1), at)
    return out + _job_wide(ledger, view, verdict.job_wide, at) + _freshen(ledger, view, at)


def _job_wide(ledger: Ledger[Key], view: JobView, job_wide: JobWide, at: float) -> list[Suspicion]:
    out: list[Suspicion] = []
    shown: list[Key] = []
    for found in job_wide.shown:
        if found.stage is not None:
            shown.append(("stage", found.stage.group))
            out += ledger.put(shown[-1], write.slow_stage(view, found, found.stage, at))
        elif found.wait is not None:
            shown.append((found.kind, -1))
            out += ledger.put(shown[-1], write.shared_wait(view, found, found.wait, at))
        else:
            shown.append((found.kind, -1))
            out += ledger.put(shown[-1], write.uneven_work(view, found, at))
    replaced = {topic for topic, _ in shown}
    for key in ledger:
        if key not in shown and (key[0] in job_wide.gone or key[0] in replaced):
            out += ledger.clear(key, at)
    return out


def _freshen(ledger: Ledger[Key], view: JobView, at: float) -> list[Suspicion]:
    """Update open accusations when due or believed at last; end those of ranks no longer slow on and off."""
    out: list[Suspicion] = []
    for key in ledger:
        topic, rank = key
        if topic == "compute" or topic == "data" or topic == "rest":
            index = view.roster.index(rank)
            escalates = not ledger.is_believed(key) and view.detector.is_alone(topic, index)
            accusation = None
            if escalates or ledger.is_due(key, at):
                accusation = view.detector.describe(topic, index)
            if accusation is not None:
                out += ledger.put(key, write.slow_rank(view, accusation, at))
        elif topic == "intermittent":
            on_and_off = view.detector.excursions(view.roster.index(rank))
            out += ledger.repeat(key, at) if on_and_off else ledger.clear(key, at)
    return out


def _resumed(fresh: StragglerDetector, roster: tuple[int, ...], open_: Ledger[Key]) -> list[Key]:
    """Take up what was open about a job that was let go and is back; return what is over by that.

    Ranks that were slow are accused until they are seen not to be; ranks that were missing report again.
    """
    for topic, rank in open_:
        if topic in ("compute", "data", "rest") and rank in roster:
            fresh.channels[topic].raised[roster.index(rank)] = True
    return [about for about in open_ if about[0] == "missing" and about[1] in roster]


def _places(cluster: str, job: _Job) -> set[GpuPlace]:
    """Return the GPUs that a job works on, as far as its rows name them."""
    known = (job.aligner.identities[rank] for rank in job.roster)
    return {
        (cluster, at.node, -1 if at.gpu_index is None else at.gpu_index)
        for at in known
        if at.node != UNKNOWN_NODE
    }


def _bytes_held(job: _Job) -> int:
    ranks, waiting = len(job.aligner.last_ts), job.aligner.waiting
    window = 0 if job.detector is None else job.detector.ratios.history.nbytes
    return JOB_BYTES + RANK_BYTES * ranks + ROW_BYTES * waiting + window


def _restart(job: _Job, record: JobSteps) -> None:
    """A new attempt, a resize or a roll-back: steps are gathered afresh, suspicions stay open."""
    job.attempt = record.attempt
    fresh = StepAligner(record.world_size)
    fresh.identities.update(job.aligner.identities)
    fresh.changed = True
    job.restarted = True
    _align_afresh(job, fresh)


def _align_afresh(job: _Job, aligner: StepAligner) -> None:
    job.aligner = aligner
    job.progress, job.presence, job.newest = Progress(), Presence(), -1


def _detector(
    roster: tuple[int, ...], identities: dict[int, Identity], config: StragglerConfig
) -> StragglerDetector:
    """Return one that knows who does the same work from coordinates, where every rank has them."""
    places = [dict(identities[r].coords) for r in roster]
    nodes = _nodes(roster, identities)
    if sum("pp" in p or "dp" in p for p in places) < len(places):
        return StragglerDetector(len(roster), None, config, nodes=nodes)
    coords = {c: np.array([p.get(c, -1) for p in places], dtype=np.intp) for c in COORDS}
    return StragglerDetector(
        len(roster),
        roles_from_coords(coords, [identities[r].model for r in roster]),
        config,
        replicas=Replicas.from_coords(coords, nodes),
        shards=Shards.from_coords(coords, nodes),
        nodes=nodes,
    )


def _nodes(roster: tuple[int, ...], identities: dict[int, Identity]) -> Ints:
    """Number the nodes; a rank whose node is not known has one of its own."""
    names = [identities[r].node for r in roster]
    known = {name: i for i, name in enumerate(dict.fromkeys(names))}
    # Below zero, where no known node is numbered.
    alone = [-1 - i if name == UNKNOWN_NODE else known[name] for i, name in enumerate(names)]
    return np.array(alone, dtype=np.intp)


def _times(step: Step, roster: tuple[int, ...]) -> StepTimes:
    """Spread a step over the roster; ranks without a row are NaN."""
    ts, values = step.over(roster)
    seconds, compute, wait, data, comm, checkpoint, tokens = values[:7]
    return StepTimes(
        number=step.number, ts=ts, step=seconds, compute=compute, wait=wait, data=data, comm=comm,
        checkpoint=checkpoint, tokens=tokens, squares=values[SQUARES] if len(values) > SQUARES else None,
    )  # fmt: skip
