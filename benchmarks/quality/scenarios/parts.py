"""Scenarios of the evaluation by part: the clusters, faults and benign changes of one seed.

Layouts, step times, places, sizes and onsets are drawn from the seed; no parameter of a detector was chosen
on a report seed.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from benchmarks.quality.scenarios.groups import groups
from benchmarks.quality.scenarios.quiet import quiet, quiet_1hz, quiet_large
from benchmarks.quality.scenarios.scenario import Scenario, job_of, scenario
from benchmarks.quality.scenarios.telemetry import telemetry
from simulator import ClusterSpec, Fault, JobSpec, Workload
from simulator.cluster.mixes import MIXES
from simulator.cluster.scenarios import draw_fault
from simulator.faults.catalogue import CATALOGUE
from simulator.jobs.benign import BENIGN

GPUS = 8
NODES_PER_JOB = 4

# (dp, pp, tp) of a job of 32 ranks.
LAYOUTS = ((4, 1, 8), (16, 1, 2), (32, 1, 1), (4, 2, 4), (8, 1, 4))

Draw = Callable[[int], Sequence[Scenario]]


def jobs_of(rng: np.random.Generator, jobs: int) -> ClusterSpec:
    """Draw a cluster of ``jobs`` fixed-length jobs of four nodes each, in different layouts and paces.

    Every job has a leaf switch to itself.
    """
    drawn = [job_of(rng, n, LAYOUTS, first_node=NODES_PER_JOB * n, shortest=0.3) for n in range(jobs)]
    nics = int(rng.choice([2, 4, 8]))
    return ClusterSpec(
        nodes=NODES_PER_JOB * jobs,
        gpus=GPUS,
        nics=nics,
        jobs=tuple(drawn),
        nodes_per_switch=NODES_PER_JOB,
        nodes_per_rack=2,
    )


def placed(
    rng: np.random.Generator,
    spec: ClusterSpec,
    kind: str,
    number: int,
    *,
    onset: float,
    magnitude: float | None = None,
) -> Fault:
    """Draw a fault by the catalogue, on a node of the ``number``-th job."""
    fault = draw_fault(spec, kind, rng=rng, onset=onset, magnitude=magnitude)
    return replace(fault, node=NODES_PER_JOB * number + int(rng.integers(NODES_PER_JOB)))


BANDS: dict[str, tuple[float, float]] = {
    "3-5 %": (1.03, 1.05),
    "5-10 %": (1.05, 1.10),
    "10-20 %": (1.10, 1.20),
    "20-100 %": (1.20, 2.00),
}
SLOW = ("silent_slow", "clock_lock", "thermal_throttle", "power_brake", "host_contention")


def slow(seed: int) -> Sequence[Scenario]:
    """Compute fail-slow: four fixed-length jobs, in each one GPU or node slower by one of the bands."""
    rng = np.random.default_rng([seed, 1])
    spec = jobs_of(rng, len(BANDS))
    faults = []
    for number, (job, (low, high)) in enumerate(zip(spec.jobs, BANDS.values(), strict=True)):
        kind, size = str(rng.choice(SLOW)), float(rng.uniform(low, high))
        # At least 40 steps before the onset to learn from, and 30 after it.
        onset = float(rng.uniform(70, 90)) + 40 * job.step_seconds
        fault = placed(rng, spec, kind, number, onset=onset, magnitude=size)
        fault = replace(fault, duration=1e9, shape="step")
        if kind == "thermal_throttle":
            fault = replace(fault, shape="ramp", period=float(rng.uniform(2, 10)))
        faults.append(fault)
    return [scenario("slow", seed, spec, faults, rows=tuple(BANDS), seconds=310)]


FOR_GOOD = ("clock_lock", "silent_slow")
BANDS_FOR_GOOD = {
    "3-5 %": (1.03, 1.05),
    "5-10 %": (1.05, 1.10),
    "10-20 %": (1.10, 1.20),
    "20-50 %": (1.2, 1.5),
}


def from_start(seed: int) -> Sequence[Scenario]:
    """GPUs slow from the start, by a locked clock or without visible cause, and one with recurring slowness.

    Each kind in each of the bands, one GPU in a job; the jobs already run when the telemetry starts.
    """
    rng = np.random.default_rng([seed, 13])
    drawn = [(kind, band) for kind in FOR_GOOD for band in BANDS_FOR_GOOD]
    spec, faults, rows = jobs_of(rng, len(drawn) + 1), [], []
    for number, (kind, band) in enumerate(drawn):
        size = float(rng.uniform(*BANDS_FOR_GOOD[band]))
        faults.append(replace(placed(rng, spec, kind, number, onset=0.0, magnitude=size), duration=1e9))
        rows.append(f"{kind}, {band}")
    faults.append(placed(rng, spec, "lemon_node", len(drawn), onset=0.0))
    rows.append("lemon_node, 2-15 %")
    return [scenario("from-start", seed, spec, faults, rows=rows, seconds=180, compared=False)]


def together(seed: int) -> Sequence[Scenario]:
    """Two to eight GPUs or nodes of one job of 128 ranks that become slow within 30 s of each other."""
    rng = np.random.default_rng([seed, 14])
    dp, pp, tp = ((16, 1, 8), (64, 1, 2), (128, 1, 1), (8, 2, 8), (32, 1, 4))[int(rng.integers(5))]
    job = JobSpec(dp=dp, pp=pp, tp=tp, step_seconds=float(np.clip(rng.lognormal(0.0, 0.6), 0.3, 4.0)))
    spec = ClusterSpec(nodes=16, gpus=GPUS, nics=2, jobs=(job,))
    first, faults = float(rng.uniform(70, 90)) + 40 * job.step_seconds, []
    for node in rng.choice(spec.nodes, 2 + seed % 7, replace=False):
        kind, size = str(rng.choice(SLOW)), 1.0 + float(np.exp(rng.uniform(np.log(0.05), np.log(0.5))))
        onset = first + float(rng.uniform(0, 30))
        fault = draw_fault(spec, kind, rng=rng, onset=onset, magnitude=size)
        fault = replace(fault, node=int(node), duration=1e9, shape="step")
        if kind == "thermal_throttle":
            fault = replace(fault, shape="ramp", period=float(rng.uniform(2, 10)))
        faults.append(fault)
    rows = [f"{len(faults)} at once"] * len(faults)
    return [scenario("together", seed, spec, faults, rows=rows, seconds=first + 110, compared=False)]


def mix(seed: int) -> Sequence[Scenario]:
    """The published mixes, Minder's and Llama 3's in turn: four jobs with a machine's fault each.

    Each runs for five minutes after its fault. Other faults of the mixes are in ``blameless``.
    """
    rng = np.random.default_rng([seed, 2])
    rates = MIXES[("minder", "llama3")[seed % 2]].rates
    machine = [kind for kind in rates if CATALOGUE[kind].machine]
    weights = np.array([rates[kind] for kind in machine])
    spec = jobs_of(rng, 4)
    kinds = [str(kind) for kind in rng.choice(machine, 4, p=weights / weights.sum())]
    faults = [
        placed(rng, spec, kind, number, onset=float(rng.uniform(110, 170)))
        for number, kind in enumerate(kinds)
    ]
    return [scenario("mix", seed, spec, faults, rows=kinds, seconds=480)]


BLAMELESS = ("nan_loss", "loss_spike", "app_crash", "storage_stall")


def blameless(seed: int) -> Sequence[Scenario]:
    """The faults of the mixes that no machine causes, one of each kind: to name a machine is wrong."""
    rng = np.random.default_rng([seed, 10])
    spec = jobs_of(rng, len(BLAMELESS))
    faults = [
        placed(rng, spec, kind, number, onset=float(rng.uniform(110, 170)))
        for number, kind in enumerate(BLAMELESS)
    ]
    return [scenario("blameless", seed, spec, faults, rows=BLAMELESS, seconds=480)]


def comm(seed: int) -> Sequence[Scenario]:
    """Communication fail-slow: a NIC or its link, congestion at once and in steps, and a healthy job."""
    rng = np.random.default_rng([seed, 3])
    spec = jobs_of(rng, 4)
    onset, kind = float(rng.uniform(120, 150)), str(rng.choice(["nic_slow", "link_errors"]))
    link = replace(placed(rng, spec, kind, 0, onset=onset), duration=1e9, shape="step")
    at_once = replace(placed(rng, spec, "congestion", 1, onset=onset), duration=1e9, shape="step")
    ladder = placed(rng, spec, "congestion", 2, onset=onset, magnitude=float(rng.uniform(2.0, 6.0)))
    ladder = replace(ladder, duration=1e9, shape="ladder", period=20.0)
    rows = (kind, "congestion, at once", "congestion, ladder")
    return [scenario("comm", seed, spec, [link, at_once, ladder], rows=rows, seconds=300)]


def waiting(seed: int) -> Sequence[Scenario]:
    """Storage that stalls all ranks of a job, strongly and slightly, and the stalled loader of one node."""
    rng = np.random.default_rng([seed, 9])
    spec = jobs_of(rng, 4)
    onset = float(rng.uniform(70, 90)) + 60 * max(job.step_seconds for job in spec.jobs)
    lasting, short = (
        # As shares of a step: the same stall is large for a step of 0.3 s and small for one of 4 s.
        placed(rng, spec, "storage_stall", n, onset=onset, magnitude=size * spec.jobs[n].step_seconds)
        for n, size in enumerate(rng.uniform((0.15, 0.05), (1.5, 0.10)).tolist())
    )
    loader = placed(rng, spec, "loader_stall", 2, onset=onset)
    faults = [replace(fault, duration=1e9, shape="step") for fault in (lasting, short, loader)]
    rows = ("storage, 15-150 % of a step", "storage, 5-10 %", "loader of one node")
    return [scenario("waiting", seed, spec, faults, rows=rows, seconds=onset + 150, compared=False)]


def hang(seed: int) -> Sequence[Scenario]:
    """A job that hangs, and jobs with checkpoints and evaluations longer than the time to detect a hang."""
    rng = np.random.default_rng([seed, 4])
    spec = jobs_of(rng, 4)
    short = Workload(checkpoint_every=int(rng.integers(20, 40)), checkpoint_seconds=float(rng.uniform(5, 15)))
    long = Workload(eval_every=int(rng.integers(40, 80)), eval_seconds=float(rng.uniform(20, 60)))
    workloads = (Workload(), short, long, replace(long, announced=True))
    jobs = tuple(replace(job, workload=w) for job, w in zip(spec.jobs, workloads, strict=True))
    spec = replace(spec, jobs=jobs)
    fault = replace(placed(rng, spec, "job_hang", 0, onset=float(rng.uniform(100, 160))), duration=1e9)
    return [scenario("hang", seed, spec, [fault], rows=("job_hang",), seconds=240, compared=False)]


EXPLICIT = ("gpu_lost", "ecc_uncorrectable", "gsp_hang", "nic_crash", "switch_down")


def events(seed: int) -> Sequence[Scenario]:
    """Explicit events: a 2 s link flap, two fatal events, and a job without any."""
    rng = np.random.default_rng([seed, 5])
    spec = jobs_of(rng, 4)
    kinds = ["nic_flap", *(str(kind) for kind in rng.choice(EXPLICIT, 2, replace=False))]
    faults = [
        placed(rng, spec, kind, number, onset=float(rng.uniform(60, 120)))
        for number, kind in enumerate(kinds)
    ]
    faults[0] = replace(faults[0], duration=2.0, shape="step")
    return [scenario("events", seed, spec, faults, rows=kinds, seconds=210, compared=False)]


def benign(seed: int) -> Sequence[Scenario]:
    """Half of the benign rows at a time, at 1 Hz: healthy jobs of four nodes, named by their row."""
    rng = np.random.default_rng([seed, 6])
    names = list(BENIGN)[seed % 2 :: 2]
    spec, jobs = jobs_of(rng, len(names)), []
    for job, name in zip(spec.jobs, names, strict=True):
        staged = replace(job, dp=4, pp=2, tp=4) if BENIGN[name].last_stage > 1.2 else job
        jobs.append(replace(staged, job_id=name, workload=BENIGN[name]))
    return [scenario("benign", seed, replace(spec, jobs=tuple(jobs)), [], rows=(), seconds=420)]


def scale(seed: int) -> Sequence[Scenario]:
    """One job of 1,024 GPUs with one slow GPU, 5 to 50 %."""
    rng = np.random.default_rng([seed, 8])
    dp, pp, tp = ((128, 1, 8), (64, 2, 8), (32, 4, 8), (256, 1, 4))[int(rng.integers(4))]
    job = JobSpec(dp=dp, pp=pp, tp=tp, step_seconds=float(rng.uniform(0.8, 2.0)))
    spec = ClusterSpec(nodes=128, gpus=GPUS, nics=2, jobs=(job,))
    size = 1.0 + float(np.exp(rng.uniform(np.log(0.05), np.log(0.5))))
    fault = draw_fault(spec, "silent_slow", rng=rng, onset=float(rng.uniform(90, 120)), magnitude=size)
    fault = replace(fault, duration=1e9, shape="step")
    return [scenario("scale", seed, spec, [fault], rows=("1,024 GPUs",), seconds=200, compared=False)]


PARTS: dict[str, Draw] = {
    "slow": slow,
    "from-start": from_start,
    "together": together,
    "mix": mix,
    "blameless": blameless,
    "comm": comm,
    "groups": groups,
    "waiting": waiting,
    "hang": hang,
    "events": events,
    "telemetry": telemetry,
    "benign": benign,
    "quiet": quiet,
    "quiet-large": quiet_large,
    "quiet-1hz": quiet_1hz,
    "scale": scale,
}
