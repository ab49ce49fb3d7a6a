"""Confounders, healthy behaviour that resembles a fault: each by name, and random jobs with several."""

import math
from collections.abc import Iterator
from dataclasses import fields, replace

import numpy as np

from simulator.cluster.layout import ClusterSpec, JobSpec, Planned, Workload

# Share of samples missing in recorded telemetry during the life of a pod (docs/simulator.md).
LOST_SHARE = 3e-4

# One workload for each confounder; times of planned changes suit a run of some minutes.
BENIGN: dict[str, Workload] = {
    "plain": Workload(),
    "garbage collection": Workload(gc_share=0.02),
    "planned garbage collection": Workload(gc_every=50),
    "packed sequences": Workload(packing_cv=0.1),
    "short noisy steps": Workload(jitter_cv=0.01),
    "shared hardware": Workload(spread_cv=0.065, wander_cv=0.02),
    "long last stage": Workload(last_stage=1.6),
    "checkpoints": Workload(checkpoint_every=40, checkpoint_seconds=12.0),
    "evaluation": Workload(eval_every=60, eval_seconds=45.0),
    "recompiles": Workload(recompiles=(41_030, 41_090), spike_factor=8.0),
    "shard spikes": Workload(spike_every=53, spike_factor=3.0),
    "alternation": Workload(alternation=0.04),
    "every fourth step": Workload(alternation=0.06, alternate_every=4),
    "deploy": Workload(planned=(Planned(onset=100.0, factor=1.18),)),
    "deploy, faster": Workload(planned=(Planned(onset=100.0, factor=0.8),)),
    "schedule ramp": Workload(planned=(Planned(onset=90.0, factor=1.2, ramp_seconds=120.0),)),
    "schedule ramp, faster": Workload(planned=(Planned(onset=90.0, factor=0.7, ramp_seconds=90.0),)),
    "batch stages": Workload(planned=tuple(Planned(onset=80.0 + 40.0 * i, factor=1.15) for i in range(4))),
    "hot days": Workload(diurnal=0.02),
}


def draw_spec(
    nodes: int,
    *,
    seed: int,
    duration: float,
    gpus: int = 8,
    send_seconds: float = 1.0,
    largest: int | None = None,
) -> ClusterSpec:
    """Return a healthy cluster with several concurrent jobs and idle nodes, with all confounders.

    Jobs differ in size (to ``largest`` nodes, by default half of the cluster), layout (data, tensor,
    pipeline, expert parallel), step time and workload; some are of reinforcement learning, some end within
    ``duration`` seconds and are followed by a resized attempt.
    """
    # A random stream of its own, independent of schedules of the same seed (scenarios.draw_faults).
    rng = np.random.default_rng([seed, 0xBE9])
    places = _places(nodes, largest or max(2, nodes / 2), rng)
    jobs = tuple(job for place in places for job in _jobs(place, gpus, duration, rng))
    return ClusterSpec(
        nodes=nodes, gpus=gpus, nics=gpus, jobs=jobs, send_seconds=send_seconds, lost_share=LOST_SHARE
    )


def draw_workload(rng: np.random.Generator, duration: float) -> Workload:
    """Return a workload with random confounders; planned changes are within ``duration`` seconds."""

    def at(share: float) -> bool:
        return bool(rng.random() < share)

    return Workload(
        drift_cv=float(rng.uniform(0.007, 0.018)),
        jitter_cv=float(rng.uniform(0.002, 0.01)) if at(0.3) else 0.0,
        noise_cv=float(rng.uniform(0.0035, 0.005)),
        spread_cv=float(rng.uniform(0.001, 0.006)),
        packing_cv=float(rng.uniform(0.08, 0.12)) if at(0.2) else 0.0,
        # Tuned pipelines had 3 to 16 % more in the last stage, untuned ones up to 63 %.
        last_stage=float(rng.uniform(1.02, 1.16) if at(0.8) else rng.uniform(1.2, 1.65)),
        gc_share=float(rng.uniform(0.005, 0.02)) if at(0.5) else 0.0,
        # Every 500 steps, as reported for a large job with planned collections.
        gc_every=500 if at(0.3) else 0,
        # Recorded: every 212 steps or so, at the end of a data shard, a step took 2.5 to 4 times as long.
        spike_every=int(rng.integers(180, 260)) if at(0.4) else 0,
        spike_factor=float(rng.uniform(2.5, 4.0)),
        alternation=float(rng.uniform(0.0, 0.08)) if at(0.2) else 0.0,
        alternate_every=int(rng.integers(2, 6)),
        checkpoint_every=int(rng.integers(100, 600)) if at(0.8) else 0,
        checkpoint_seconds=float(rng.uniform(4.0, 40.0)),
        eval_every=int(rng.integers(200, 1500)) if at(0.5) else 0,
        eval_seconds=float(rng.uniform(20.0, 180.0)),
        comm_seconds=float(rng.uniform(0.03, 0.3)),
        # Throughput was seen to fall by 1 to 2 % in the heat of the day.
        diurnal=float(rng.uniform(0.0, 0.02)),
        planned=tuple(_plans(rng, duration)),
        announced=at(0.5),
    )


def with_row(job: JobSpec, row: str, *, duration: float, rng: np.random.Generator) -> JobSpec:
    """Return a job with the confounder ``row`` of ``BENIGN`` besides its own.

    Planned changes are within ``duration`` seconds, recompiles within a few hundred steps; a long last stage
    requires pipeline stages.
    """
    plain, special = Workload(), BENIGN[row]
    values = {f.name: getattr(special, f.name) for f in fields(Workload)}
    changed = {name: value for name, value in values.items() if value != getattr(plain, name)}
    if special.planned:
        stretch = duration / 600.0 * float(rng.uniform(0.5, 2.0))
        changed["planned"] = tuple(
            replace(p, onset=p.onset * stretch, ramp_seconds=p.ramp_seconds * stretch)
            for p in special.planned
        )
    if special.recompiles:
        steps = job.first_step + np.sort(rng.integers(20, 400, len(special.recompiles)))
        changed["recompiles"] = tuple(steps.tolist())
    load = replace(job.workload, **changed)
    if "last_stage" in changed and job.pp == 1 and not job.rollout_dp and job.dp % (2 * job.ep) == 0:
        return replace(job, dp=job.dp // 2, pp=2, workload=load)
    return replace(job, workload=load)


def _plans(rng: np.random.Generator, duration: float) -> Iterator[Planned]:
    """Yield a few planned changes a day, at once or along a ramp, to slower or faster."""
    for _ in range(int(rng.poisson(0.3 + 2.0 * duration / 86400.0))):
        onset, ramp = float(rng.uniform(0.0, duration)), float(rng.uniform(10.0, 600.0))
        factor = float(math.exp(rng.uniform(math.log(0.75), math.log(1.35))))
        yield Planned(onset=onset, factor=factor, ramp_seconds=ramp if rng.random() < 0.5 else 0.0)


def _places(nodes: int, largest: float, rng: np.random.Generator) -> Iterator[range]:
    """Yield ranges of nodes for one job each; about a tenth of the cluster stays idle."""
    first = 0
    while first < nodes:
        size = min(int(2 ** rng.uniform(0.0, math.log2(largest))), nodes - first)
        if rng.random() < 0.9:
            yield range(first, first + size)
        first += size


def _jobs(place: range, gpus: int, duration: float, rng: np.random.Generator) -> Iterator[JobSpec]:
    """Yield the job of some nodes, and further attempts on fewer nodes if it is resized."""
    load = draw_workload(rng, duration)
    step_seconds = float(np.clip(rng.lognormal(math.log(2.5), 0.6), 0.6, 12.0))
    step, sizes = int(rng.integers(0, 200_000)), [len(place)]
    if len(place) > 1 and rng.random() < 0.15:
        sizes.append(int(rng.integers(1, len(place))))
    cuts = [0.0, *sorted((rng.uniform(0.2, 0.8, len(sizes) - 1) * duration).tolist()), math.inf]
    # A resized job keeps its layout as far as its new size allows.
    layout_seed = int(rng.integers(2**31))
    for attempt, size in enumerate(sizes):
        shape = _layout(size * gpus, gpus, np.random.default_rng(layout_seed))
        pause = float(rng.uniform(30.0, 120.0)) if attempt else 0.0
        yield JobSpec(
            **shape,
            job_id=f"job-{place.start}",
            first_node=place.start,
            step_seconds=step_seconds,
            first_step=step + int(cuts[attempt] / step_seconds),
            begins=cuts[attempt] + pause,
            ends=max(cuts[attempt + 1], cuts[attempt] + pause + 1.0),
            attempt=attempt,
            workload=load,
        )


def _layout(world: int, gpus: int, rng: np.random.Generator) -> dict[str, int]:
    """Return a layout of ``world`` ranks that fills whole nodes."""
    tp = int(rng.choice([t for t in (1, 2, 4, 8) if gpus % t == 0]))
    replicas = world // tp
    pp = int(rng.choice([p for p in (1, 1, 2, 4, 8) if replicas % p == 0 and replicas // p >= 2] or [1]))
    dp = replicas // pp
    ep = int(rng.choice([e for e in (1, 1, 2, 4, 8) if dp % e == 0]))
    rolls_out = pp == 1 and rng.random() < 0.1 and world >= 4 * gpus
    rollout = max(1, world // gpus // 3) * gpus // tp if rolls_out else 0
    return {"dp": dp, "pp": pp, "tp": tp, "ep": ep, "rollout_dp": rollout}
