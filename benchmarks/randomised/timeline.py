"""A plan carried out: the attempts of a job one after another, each step with its times."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from benchmarks.randomised import workload
from benchmarks.randomised.coupling import Steps, Work, couple
from benchmarks.randomised.faults import COMPUTE_KINDS, strength
from benchmarks.randomised.job import STARTED_AT, Break, JobPlan
from benchmarks.randomised.layout import Floats, Layout, Places, places, slower_class
from benchmarks.randomised.noise import noise_factors, pauses, rank_spread
from benchmarks.randomised.workload import Amounts


class Attempt(NamedTuple):
    """The steps of one attempt. ``positions`` count steps over all attempts, ``step`` is the job's count.

    ``healthy`` is the compute time that ranks would have measured without the fault; ``ends`` [steps] are
    true times; ``checkpoint`` and ``inside`` [steps] are pauses within a step, seen in a column or not.
    """

    number: int
    layout: Layout
    where: Places
    positions: np.ndarray
    step: np.ndarray
    ends: Floats
    steps: Steps
    healthy: Floats
    amounts: Amounts
    checkpoint: Floats
    inside: Floats


class Run(NamedTuple):
    """All attempts of a job, the strength of its fault at each step, and what the job announced."""

    attempts: tuple[Attempt, ...]
    strength: Floats
    announced: tuple[tuple[float, str], ...]

    @property
    def ended_at(self) -> float:
        """Return when the last step ended."""
        return float(self.attempts[-1].ends[-1])


def simulate(plan: JobPlan) -> Run:
    """Return the run of ``plan``; the same plan gives the same run."""
    rng = np.random.default_rng([plan.seed, len(plan.job_id)])
    lasting, stages, faults, *each = rng.spawn(3 + 1 + sum(b.attempt for b in plan.breaks))
    force = strength(plan.fault, plan.steps, faults)
    spread = rank_spread(plan.noise, plan.layout.ranks, lasting)
    by_stage = workload.stage_factors(plan.workload, plan.layout, stages)
    scale = workload.curriculum(plan.workload, plan.steps, stages)
    stop = plan.fault.onset + 1 if plan.fault.kind == "hang" else plan.steps
    attempts: list[Attempt] = []
    announced: list[tuple[float, str]] = []
    now, step = STARTED_AT, 0
    starts = [Break(0, 0.0, True, plan.layout.dp)] + [b for b in plan.breaks if b.attempt and b.at < stop]
    for number, (start, until) in enumerate(zip(starts, [b.at for b in starts[1:]] + [stop], strict=True)):
        if until <= start.at:
            continue
        if start.announced:
            announced.append((now, "job.restart"))
        now, step = now + start.seconds, max(0, step - start.rolled_back)
        index = np.arange(start.at, until)
        layout = Layout(start.dp, *_rest(plan.layout))
        attempt = _attempt(plan, number, layout, index, (spread, by_stage, scale, force), each[number])
        ends, notes = _clock(plan, attempt, now)
        attempts.append(attempt._replace(step=step + np.arange(len(index)), ends=ends))
        announced += notes
        now, step = float(ends[-1]), step + len(index)
    return Run(tuple(attempts), force, tuple(announced))


def _rest(layout: Layout) -> tuple[int, int, int, int, bool]:
    return layout.pp, layout.tp, layout.ep, layout.gpus_per_node, layout.tensor_data_pipe


def _attempt(
    plan: JobPlan,
    number: int,
    layout: Layout,
    index: np.ndarray,
    lasting: tuple[Floats, Floats, Floats, Floats],
    rng: np.random.Generator,
) -> Attempt:
    """Return the steps of one attempt; their times of day come later."""
    spread, by_stage, scale, force = lasting
    where = places(layout)
    steps, ranks = len(index), layout.ranks
    load = workload.amounts(plan.workload, layout, where, scale[index], rng)
    speed = np.where(
        slower_class(plan.machines, where.node), plan.machines.slower if plan.machines else 1.0, 1.0
    )
    own = plan.compute_seconds * load.work * (spread[:ranks] * by_stage[where.p] * speed)
    own = own * noise_factors(plan.noise, where.node, steps, rng) + pauses(plan.noise, steps, ranks, rng)
    data = plan.compute_seconds * plan.data_share * rng.lognormal(0, 0.5, (steps, ranks))
    jitter = rng.lognormal(0, plan.transfer_cv, (steps, layout.pp, layout.tp))
    transfer = plan.compute_seconds * plan.transfer_share * jitter
    healthy = Work(own, data, transfer, np.full(steps, plan.compute_seconds * plan.rest_share))
    faulty = _apply(plan, healthy, where, force[index])
    batches, share = plan.micro_batches, plan.tensor_share
    measured = couple(faulty, where, micro_batches=batches, tensor_share=share)
    clean = couple(healthy, where, micro_batches=batches, tensor_share=share).compute
    zeros = np.zeros((3, steps))
    return Attempt(number, layout, where, index, index, zeros[0], measured, clean, load, zeros[1], zeros[2])


def _apply(plan: JobPlan, work: Work, where: Places, force: Floats) -> Work:
    """Return ``work`` with the fault in it: faults change what ranks do, never what they measure."""
    fault = plan.fault
    compute, data, transfer = work.compute.copy(), work.data.copy(), work.transfer.copy()
    members = [rank for rank in fault.members if rank < compute.shape[1]]
    extra = fault.effect * force
    if fault.kind in COMPUTE_KINDS:
        compute[:, members] *= 1 + extra[:, None]
    elif fault.kind == "slow_data":
        data[:, members] += plan.compute_seconds * extra[:, None]
    elif fault.kind == "slow_ring":
        transfer[:, where.p[fault.culprit], where.t[fault.culprit]] *= 1 + extra
    return Work(compute, data, transfer, work.rest)


def _clock(plan: JobPlan, attempt: Attempt, start: float) -> tuple[Floats, list[tuple[float, str]]]:
    """Return the true end of each step and the announced pauses; enter the pauses inside steps."""
    between = np.zeros(len(attempt.positions))
    marks: list[int] = []
    for pause in plan.breaks:
        at = pause.at - int(attempt.positions[0])
        if pause.attempt or not 0 <= at < len(between):
            continue
        seen = {"column": attempt.checkpoint, "inside": attempt.inside, "between": between}[pause.seen]
        seen[at] += pause.seconds
        if pause.announced:
            marks.append(at)
    whole = attempt.steps.total + attempt.checkpoint + attempt.inside + between
    ends = start + np.cumsum(whole)
    begins = ends - whole
    return ends, [(float(begins[at]), "job.checkpoint") for at in marks]
