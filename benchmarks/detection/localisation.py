"""Localisation of faults in large jobs (`python -m benchmarks place`): right GPU or node, number of findings.

Simulated jobs through JobStage and FindingStage with step rows only. Layout, place, size (5-50 %, drawn
log-uniformly) and onset of the faults come from the seed. The ranking is taken when the first finding opens,
open findings before suspected ones. The last table has whole clusters with all telemetry in which a switch of
32 nodes dies or a rail degrades, and one finding is right.
"""

import argparse
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from alerts.cases.lifecycle import NOTIFIED
from alerts.finding import Finding
from simulator.cluster.cluster import Cluster
from simulator.cluster.layout import ClusterSpec, JobSpec
from simulator.faults.fault import Fault
from simulator.jobs.job import RunningJob
from simulator.jobs.step_rows import packed
from slowrank.telemetry import JobSteps, Suspicion
from streams.cluster.stage import FindingStage
from streams.job.stage import JobStage
from streams.pipeline import local_pipeline

GPUS = 8
FIRST_FAULT = 60
STEPS_AFTER = 45
LAYOUTS = ("tp8 dp", "tp8 pp8 dp", "tp8 pp4 dp ep4")


@dataclass(frozen=True, slots=True)
class Draw:
    """One seed: the job and its faults, each of one GPU, or of a node when ``gpu`` is None."""

    layout: str
    job: JobSpec
    faults: tuple[Fault, ...]


@dataclass(slots=True)
class Outcome:
    """Findings of one draw: ``first`` is the order of machines when the first finding opened."""

    first: tuple[str, ...] = ()
    opened: dict[str, Finding] = field(default_factory=dict)
    delays: dict[str, float] = field(default_factory=dict)
    seconds_per_step: float = 0.0
    slowest: float = 0.0


def draw(gpus: int, seed: int, *, faults: int) -> Draw:
    """Draw a job on ``gpus`` GPUs and ``faults`` faults in nodes of their own, beginning within 30 steps."""
    rng = np.random.default_rng([seed, gpus, faults])
    layout = LAYOUTS[int(rng.integers(len(LAYOUTS)))]
    pp = {LAYOUTS[0]: 1, LAYOUTS[1]: 8, LAYOUTS[2]: 4}[layout]
    job = JobSpec(dp=gpus // (8 * pp), pp=pp, tp=8, ep=4 if "ep4" in layout else 1)
    nodes = rng.choice(gpus // GPUS, faults, replace=False)
    return Draw(layout, job, tuple(_fault(rng, int(node), job, alone=faults == 1) for node in nodes))


def _fault(rng: np.random.Generator, node: int, job: JobSpec, *, alone: bool) -> Fault:
    whole = rng.random() < 0.25
    late = 0.0 if alone else float(rng.uniform(0, 30))
    return Fault(
        kind="power_brake" if whole else "silent_slow",
        node=node,
        gpu=None if whole else int(rng.integers(GPUS)),
        onset=(FIRST_FAULT + late) * job.step_seconds,
        magnitude=math.exp(float(rng.uniform(math.log(1.05), math.log(1.5)))),
    )


def name_of(spec: ClusterSpec, fault: Fault) -> str:
    """Return the machine at fault: ``node``, or ``node/gpu``."""
    node = spec.node_name(fault.node)
    return node if fault.gpu is None else f"{node}/{fault.gpu}"


def named(finding: Finding) -> str:
    """Return the machine a finding names, in the form of ``name_of``; a job is named by itself."""
    subject = finding.subject
    if subject.node is None:
        return f"job {subject.job_id}"
    return subject.node if subject.gpu_index is None else f"{subject.node}/{subject.gpu_index}"


def run(drawn: Draw, seed: int) -> tuple[ClusterSpec, Outcome]:
    """Run one draw and return its findings."""
    spec = ClusterSpec(nodes=drawn.job.world // GPUS, jobs=(drawn.job,))
    running = RunningJob(spec, drawn.job, drawn.faults, np.random.default_rng(seed))
    last = max(fault.onset for fault in drawn.faults) + STEPS_AFTER * drawn.job.step_seconds
    job_stage, finding_stage, outcome = JobStage(), FindingStage(), Outcome()
    spent: list[float] = []
    held: dict[str, Finding] = {}
    for step in steps_of(spec, running, last):
        begun = time.process_time()
        found: list[Finding] = []
        for record in step:
            for suspicion in job_stage.process(record):
                if isinstance(suspicion, Suspicion):
                    found += finding_stage.process(suspicion)
        found += finding_stage.tick(math.ceil(step[0].ts))
        spent.append(time.process_time() - begun)
        _note(outcome, held, found)
    for name, finding in outcome.opened.items():
        onset = next((f.onset for f in drawn.faults if name_of(spec, f) == name), None)
        if onset is not None:
            outcome.delays[name] = finding.detected_at - spec.start - onset
    outcome.seconds_per_step, outcome.slowest = float(np.mean(spent)), max(spent)
    return spec, outcome


def steps_of(spec: ClusterSpec, running: RunningJob, until: float) -> Iterator[list[JobSteps]]:
    """Yield the records of a simulated job until ``until`` seconds, step by step, one a node."""
    for rows in running.advance(until):
        yield [
            JobSteps(
                schema=1,
                cluster=spec.name,
                job_id=running.job.job_id,
                node=spec.node_name(node),
                boot_id="place",
                seq=0,
                ts=spec.start + rows.end,
                world_size=running.job.world,
                labels=running.labels(node),
                rows=packed([rows], slice(i * GPUS, (i + 1) * GPUS), skew=0.0),
            )
            for i, node in enumerate(running.nodes)
        ]


def _note(outcome: Outcome, held: dict[str, Finding], found: Sequence[Finding]) -> None:
    held |= {f.id: f for f in found}
    shown = [f for f in held.values() if f.status in NOTIFIED and f.subject.node is not None]
    for finding in shown:
        outcome.opened.setdefault(named(finding), finding)
    if shown and not outcome.first:
        # Suspected findings after open ones: a second suspect, or the next rank of a faulty node.
        suspected = [
            f for f in held.values() if f.status == "suspected" and not f.group_key and f.subject.node
        ]
        order = [
            named(f)
            for group in (shown, suspected)
            for f in sorted(group, key=lambda f: (-f.confidence, -f.score, f.dedup_key))
        ]
        outcome.first = tuple(dict.fromkeys(order))


def localisation(gpus: int, seeds: Sequence[int]) -> str:
    """Return the table row of single faults."""
    top1, top3, found, wrong, delays, speed, slowest = 0, 0, 0, 0, [], [], []
    for seed in seeds:
        drawn = draw(gpus, seed, faults=1)
        spec, outcome = run(drawn, seed)
        node = spec.node_name(drawn.faults[0].node)
        machine = name_of(spec, drawn.faults[0])
        places = [name.partition("/")[0] for name in outcome.first]
        top1 += outcome.first[:1] == (machine,) or (drawn.faults[0].gpu is None and places[:1] == [node])
        top3 += node in places[:3]
        found += any(name.partition("/")[0] == node for name in outcome.opened)
        wrong += sum(name.partition("/")[0] != node for name in outcome.opened)
        delays += [f.detected_at - spec.start - drawn.faults[0].onset for f in outcome.opened.values()][:1]
        speed.append(outcome.seconds_per_step)
        slowest.append(outcome.slowest)
    n = len(seeds)
    middle, late = (f"{x:.1f}" for x in np.percentile(delays, [50, 95])) if delays else ("-", "-")
    return (
        f"| {gpus} | {n} | {found} | {top1} | {top3} | {wrong} | {middle}, {late} "
        f"| {1000 * float(np.mean(speed)):.0f} | {1000 * max(slowest):.0f} |"
    )


def concurrent(gpus: int, seeds: Sequence[int]) -> str:
    """Return the table row of 2 to 8 faults at a time: how many are named, and with one finding each."""
    causes, one_each, named_right, wrong = 0, 0, 0, 0
    for seed in seeds:
        count = 2 + seed % 7
        drawn = draw(gpus, seed, faults=count)
        spec, outcome = run(drawn, seed)
        machines = {name_of(spec, fault) for fault in drawn.faults}
        nodes = {machine.partition("/")[0] for machine in machines}
        opened = [name.partition("/")[0] for name in outcome.opened]
        causes += count
        named_right += len(nodes & set(opened))
        one_each += sum(opened.count(node) == 1 for node in nodes)
        wrong += sum(node not in nodes for node in opened)
    return f"| {gpus} | {len(seeds)} | {causes} | {named_right} | {one_each} | {wrong} |"


def domain(kind: str, seeds: Sequence[int], *, nodes: int = 128) -> str:
    """Return the table row of a fault of a whole switch or rail, about which one finding is right."""
    right, others, delays = 0, 0, []
    for seed in seeds:
        rng = np.random.default_rng([seed, nodes])
        onset, node = float(rng.uniform(40, 50)), int(rng.integers(nodes))
        fault = Fault(kind=kind, node=node, gpu=int(rng.integers(GPUS)), onset=onset, magnitude=3.0)
        spec = ClusterSpec(nodes=nodes, jobs=(JobSpec(dp=nodes, tp=8),))
        opened: dict[str, Finding] = {}
        pipeline = local_pipeline()
        for record in Cluster(spec, seed=seed, faults=[fault]).run(onset + 25.0):
            for finding in pipeline.process(record):
                if finding.status in NOTIFIED and finding.subject.type != "job":
                    opened.setdefault(finding.id, finding)
        mine = [f for f in opened.values() if f.subject.switch == spec.labels(node)["switch"]]
        right += len(mine) == 1
        others += len(opened) - len(mine)
        delays += [mine[0].detected_at - spec.start - onset] if mine else []
    middle, worst = (f"{x:.1f}" for x in (np.median(delays), max(delays))) if delays else ("-", "-")
    return f"| {kind} | {len(seeds)} | {right} | {others} | {middle}, {worst} |"


def main(argv: list[str]) -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks place", description=__doc__)
    parser.add_argument("--gpus", type=int, nargs="+", default=[1024], help="sizes of the job")
    parser.add_argument("--seeds", type=int, default=30, help="jobs per size and table")
    parser.add_argument("--clusters", type=int, default=10, help="clusters per fault of a whole switch")
    parser.add_argument("--first-seed", type=int, default=1000)
    options = parser.parse_args(argv)
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    print("| GPUs | faults | found | top-1 | top-3 | findings about others | delay s (median, P95) ", end="")
    print("| CPU ms per step | slowest step |\n" + "|---" * 9 + "|")
    for gpus in options.gpus:
        print(localisation(gpus, seeds), flush=True)
    print("\n| GPUs | jobs with 2-8 faults | faults | found | one finding each | findings about others |")
    print("|---" * 6 + "|")
    for gpus in options.gpus:
        print(concurrent(gpus, seeds), flush=True)
    print("\n| fault of 32 of 128 nodes | clusters | one finding about its switch | about others ", end="")
    print("| delay s (median, worst) |\n" + "|---" * 5 + "|")
    for kind in ("switch_down", "rail_degraded"):
        print(domain(kind, seeds[: options.clusters]), flush=True)
    return 0
