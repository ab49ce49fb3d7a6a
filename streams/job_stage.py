"""JobStage: step rows of jobs in, suspicions out (key = job).

Holds per job an aligner (rows into steps), the straggler detector, the progress watch and the ledger of what
was raised. Works as if row by row in the order of the log; how rows were batched into records changes
nothing.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

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
from streams.job_view import JobView, Key
from streams.ledger import Ledger
from streams.losses import Losses
from streams.paces import Paces
from streams.progress import Presence, Progress, Stall
from streams.step_rows import COORDS, SQUARES, Identity, Rows, rows_of
from streams.steps import Step, StepAligner


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStageConfig:
    """``update_seconds``: event time between two suspicions about the same thing; ``max_jobs`` held at
    once.
    """

    update_seconds: float = 30.0
    max_jobs: int = 1024
    straggler: StragglerConfig = field(default_factory=StragglerConfig)
    loss: LossConfig = field(default_factory=LossConfig)


@dataclass(slots=True)
class _Job:
    """State of one job. ``ranks`` is the set of the ``roster``; ``restarted``: the next whole step tells anew
    which ranks there are."""

    attempt: int
    aligner: StepAligner
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
    """Straggler, imbalance and progress detection over every job of a partition."""

    def __init__(self, config: JobStageConfig | None = None) -> None:
        self.config = config or JobStageConfig()
        self._jobs: OrderedDict[tuple[str, str], _Job] = OrderedDict()

    def process(self, record: JobSteps | NodeSample | NodeEvent | Suspicion) -> Sequence[Suspicion]:
        """Take one record of step rows; anything else is not for this stage."""
        if not isinstance(record, JobSteps):
            return ()
        key = (record.cluster, record.job_id)
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
        for key, job in self._jobs.items():
            out.extend(self._stalls(key, job, job.progress.look(event_time)))
        return out

    @property
    def late_rows(self) -> int:
        """Rows that came after their step was judged, over all jobs held."""
        return sum(job.aligner.late_rows for job in self._jobs.values())

    def _job(self, key: tuple[str, str], record: JobSteps, rows: Rows, k: int) -> _Job | None:
        """Return the job as row ``k`` finds it, or None where the record is of an attempt that has ended."""
        job = self._jobs.get(key)
        if job is None:
            ledger: Ledger[Key] = Ledger(self.config.update_seconds)
            job = self._jobs[key] = _Job(
                record.attempt, StepAligner(record.world_size), ledger, Losses(self.config.loss)
            )
            if len(self._jobs) > self.config.max_jobs:
                self._jobs.popitem(last=False)
        elif record.attempt < job.attempt:
            return None
        # The world size may be told late; 0 is not known yet, and no resize.
        job.aligner.world_size = job.aligner.world_size or record.world_size
        resized = record.world_size not in (0, job.aligner.world_size)
        if record.attempt > job.attempt or resized or job.aligner.rolled_back(rows, k):
            _restart(job, record)
            job.losses = Losses(self.config.loss)
        self._jobs.move_to_end(key)
        return job

    def _rows(self, key: tuple[str, str], job: _Job, rows: Rows, *, sent: float) -> list[Suspicion]:
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

    def _step(self, key: tuple[str, str], job: _Job, step: Step) -> list[Suspicion]:
        at = step.closed_at
        out = self._fit_roster(job, step.present, at)
        assert job.detector is not None
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

    def _fit_roster(self, job: _Job, present: frozenset[int], at: float) -> list[Suspicion]:
        """Start the detector afresh for a changed set of ranks; who was slow and stayed remains suspected."""
        if job.detector is not None and not (job.restarted or job.aligner.changed) and present <= job.ranks:
            return []
        # Ranks are added and never dropped, for one may only be late; a restart tells anew who there is.
        before = () if job.restarted else job.roster
        roster = tuple(sorted(present.union(before)))
        if job.detector is not None and not job.aligner.changed and roster == job.roster:
            job.restarted = False
            return []
        fresh = _detector(roster, job.aligner.identities, self.config.straggler)
        if job.detector is not None:
            fresh.inherit(job.detector, [job.roster.index(r) if r in job.roster else -1 for r in roster])
        job.detector, job.roster, job.ranks = fresh, roster, frozenset(roster)
        job.restarted = job.aligner.changed = False
        left = [key for key in job.ledger if key[0] in write.ABOUT_RANKS and key[1] not in roster]
        # What the network takes for other ranks is learnt anew.
        left += [key for key in job.ledger if key[0] == "network"]
        return [cleared for key in left for cleared in job.ledger.clear(key, at)]

    def _stalls(self, key: tuple[str, str], job: _Job, stalls: list[Stall]) -> list[Suspicion]:
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
        elif topic == "intermittent" and not view.detector.excursions(view.roster.index(rank)):
            out += ledger.clear(key, at)
    return out


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
