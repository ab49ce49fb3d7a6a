"""All that is drawn of one job, from its seed: the plan that is simulated."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from benchmarks.randomised.delivery import Delivery, draw_delivery
from benchmarks.randomised.faults import Fault, Kind, draw_fault, draw_kind
from benchmarks.randomised.layout import Layout, Machines, draw_layout, draw_machines
from benchmarks.randomised.noise import Noise, draw_noise
from benchmarks.randomised.ranges import chance, log_uniform, pick
from benchmarks.randomised.workload import Workload, draw_workload

MOST_RANKS = 1024
STARTED_AT = 1_790_000_000.0

PauseKind = Literal["column", "inside", "between"]


@dataclass(frozen=True, slots=True)
class Break:
    """An interruption before step ``at``: a new attempt (with ``dp`` replicas), or a pause of all ranks.

    A pause is seen as ``checkpoint_seconds``, only in ``step_seconds``, or only as a gap between rows.
    """

    at: int
    seconds: float
    attempt: bool
    dp: int = 0
    rolled_back: int = 0
    seen: PauseKind = "between"
    announced: bool = False


@dataclass(frozen=True, slots=True)
class JobPlan:
    """One job. Shares are of ``compute_seconds``, the compute time of a step of a rank with average work."""

    seed: int
    job_id: str
    layout: Layout
    machines: Machines | None
    steps: int
    compute_seconds: float
    data_share: float
    transfer_share: float
    rest_share: float
    transfer_cv: float
    micro_batches: int
    tensor_share: float
    noise: Noise
    workload: Workload
    breaks: tuple[Break, ...]
    fault: Fault
    delivery: Delivery
    companion: bool
    hosts: bool


def draw_job(seed: int, *, most_ranks: int = MOST_RANKS, kind: Kind | None = None) -> JobPlan:
    """Draw the job of ``seed``; ``kind`` forces what is at fault."""
    shape, times, noise, load, events, faults, paths = np.random.default_rng(seed).spawn(7)
    layout = draw_layout(shape, most_ranks)
    nodes = -(-layout.ranks // layout.gpus_per_node)
    # Rows bound the file: 15-90 thousand, but 150 to 1,200 steps.
    steps = int(np.clip(log_uniform(times, 15_000, 90_000) / layout.ranks, 150, 1200))
    seconds = log_uniform(times, 0.2, 60)
    at_fault = kind or draw_kind(faults)
    resizable = at_fault in ("none", "slow_rank", "slow_node", "hang", "lost_rank") and layout.ep == 1
    breaks = _draw_breaks(events, layout, steps, resizable)
    fewest = min([layout.dp] + [b.dp for b in breaks if b.attempt]) * layout.pp * layout.tp
    fault = draw_fault(faults, at_fault, layout, fewest, steps)
    plan = JobPlan(
        seed=seed,
        job_id=f"job-{seed}",
        layout=layout,
        machines=draw_machines(shape, nodes),
        steps=steps,
        compute_seconds=seconds,
        data_share=log_uniform(times, 0.0003, 0.05),  # prefetched or nearly (assumption)
        transfer_share=log_uniform(times, 0.01, 0.4),  # exposed: few per cent to a third (MegaScale)
        rest_share=log_uniform(times, 0.0005, 0.03),  # assumption: logging, schedulers
        transfer_cv=log_uniform(times, 0.02, 0.4),  # reduce-scatter 5-40 %, all-gather 2 % (ST trace)
        micro_batches=int(layout.pp * pick(times, (1, 2, 4, 8))),
        tensor_share=times.uniform(0.7, 1.0) if layout.tp > 1 else 0.0,  # assumption
        noise=draw_noise(noise, seconds),
        workload=draw_workload(load),
        breaks=breaks,
        fault=fault,
        delivery=draw_delivery(paths, layout),
        # A silent job advances no clock: only rows of another job show that time has passed since its hang.
        companion=at_fault == "hang" or chance(events, 0.3),
        hosts=False,
    )
    return replace(plan, hosts=chance(paths, 0.35) and layout.ranks * steps * seconds < 100_000)


def draw_companion(seed: int, duration: float) -> JobPlan:
    """Draw a small healthy job that runs beside that of ``seed`` for ``duration`` seconds."""
    _, rng = np.random.default_rng(seed).spawn(8)[6:]
    steps = int(np.clip(duration, 150, 1000))
    layout = Layout(8, 1, 1, 1, 8, True)
    return replace(
        draw_job(seed, kind="none"),
        job_id=f"beside-{seed}",
        layout=layout,
        machines=None,
        steps=steps,
        compute_seconds=duration / steps / 1.1,
        transfer_share=0.08,
        micro_batches=1,
        tensor_share=0.0,
        noise=replace(draw_noise(rng, duration / steps), warm_steps=0, spike_rate=0.0),
        workload=replace(draw_workload(rng), batches="fixed", levels=()),
        breaks=(),
        fault=Fault(),
        delivery=draw_delivery(rng, layout),
        companion=False,
        hosts=False,
    )


def _draw_breaks(rng: np.random.Generator, layout: Layout, steps: int, resizable: bool) -> tuple[Break, ...]:
    """Draw restarts and resizes (30 % of the jobs) and pauses (50 %), in order of their steps.

    Both shares, and the numbers of restarts and pauses of a job, are assumptions.
    """
    breaks = []
    if chance(rng, 0.3):
        for at in rng.integers(40, steps - 20, rng.integers(1, 4)):
            dp = layout.dp
            if resizable and chance(rng, 0.4):
                dp = int(rng.integers(max(2, dp // 2), dp + 1))
            back = int(rng.integers(0, 30)) if chance(rng, 0.6) else 0
            # A restart costs 1-10 minutes at these sizes (Llama 3, ByteRobust).
            breaks.append(
                Break(int(at), log_uniform(rng, 20, 900), True, dp, back, announced=chance(rng, 0.3))
            )
    if chance(rng, 0.5):
        for at in rng.integers(10, steps, rng.integers(1, 6)):
            seen: PauseKind = pick(rng, ("column", "inside", "between"))
            # Checkpoints take seconds to minutes, evaluations minutes (ByteCheckpoint, Llama 3).
            breaks.append(
                Break(int(at), log_uniform(rng, 5, 600), False, seen=seen, announced=chance(rng, 0.3))
            )
    return tuple(sorted(breaks, key=lambda b: b.at))
