"""Goal P11: CPU of the whole analysis per node-second, against JSON and one Python object per series.

Decoding and the node, job and finding stages at growing fleets: 8 GPUs and 8 NICs a node, jobs of 64 nodes,
one sample a second and the steps of every rank. Nodes beyond 64 are copies under other names. The run of 64
nodes asserts that ours and the rolling z find the injected fault, and that batches of samples give the same
suspicions as single samples; fast-bocpd is only timed. CPU time of the process without encoding, copying and
timing.
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import msgspec

from alerts.finding import Finding
from benchmarks.speed.plain_pipeline import FastBocpd, PlainPipeline, RollingZ, text_of
from detectors.changepoint.acceptance import ChangeConfig
from simulator import Cluster, ClusterSpec, Fault
from simulator.cluster.layout import one_job
from slowrank.telemetry import (
    JobSteps,
    NodeSample,
    Suspicion,
    decode_sample,
    decode_steps,
    encode,
)
from streams.cluster.stage import FindingStage
from streams.job.stage import JobStage
from streams.node.batching import BatchBySecond
from streams.node.config import NodeConfig
from streams.node.stage import NodeStage
from streams.pipeline import Pipeline
from streams.runtime.gc_tuning import collect_less_often
from streams.stage import Input, Output, Stage

Seconds = Sequence[Sequence[NodeSample | JobSteps]]
"""Records second by second."""

UNIT = 64

# In seconds. The fault is of one GPU, but every other GPU of its job waits for it and changes with it.
SECONDS, WARM, ONSET = 150, 85, 105
WINDOWS = (("learning", 0, WARM), ("steady", WARM, ONSET), ("after the fault", ONSET, SECONDS))

# For large fleets: a baseline of twenty samples, which does not change the cost afterwards.
SHORT_WINDOWS = (("learning", 0, 28), ("steady", 28, 36))

LARGE = 5000
PLAIN_SECONDS = 8
TIMED_CALLS = 20_000
FAULT_NODE, FAULT_GPU = 3, 2
GOAL_NODES, GOAL_TIMES, GOAL_GROWTH = 10_000.0, 60.0, 1.5


@dataclass(slots=True)
class Timed:
    """A stage that measures the CPU seconds of its calls."""

    stage: Stage
    spent: float = 0.0
    calls: int = 0
    outputs: list[Output] = field(default_factory=list)

    def process(self, record: Input) -> Sequence[Output]:
        start = time.process_time()
        found = self.stage.process(record)
        self.spent += time.process_time() - start
        self.calls += 1
        self.outputs += found
        return found

    def tick(self, event_time: float) -> Sequence[Output]:
        start = time.process_time()
        found = self.stage.tick(event_time)
        self.spent += time.process_time() - start
        self.calls += 1
        self.outputs += found
        return found


@dataclass(frozen=True, slots=True)
class Cost:
    """Microseconds per node-second of decoding, each of the three stages, and everything."""

    nodes: int
    parts: tuple[float, ...]

    @property
    def total(self) -> float:
        return self.parts[-1]


@dataclass(frozen=True, slots=True)
class Run:
    """Costs by window, findings and suspicions."""

    costs: dict[str, Cost]
    findings: list[Finding]
    suspicions: list[Suspicion]


def main(argv: list[str]) -> int:
    """Print the figures of every fleet and of the simple pipelines; return 1 when a goal is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks pipeline", description=__doc__)
    parser.add_argument("--nodes", default="1024,12500", help="fleet sizes besides 64, with commas between")
    given = [int(size) for size in parser.parse_args(argv).nodes.split(",")]
    # The assertions are about the fleet of 64, which has no copies.
    sizes = list(dict.fromkeys([UNIT, *given]))
    seconds = _recorded()
    # A worker imports ruptures once, when a finding first needs it.
    importlib.import_module("ruptures")
    collect_less_often()
    # Before and after every fleet, because the speed of a machine drifts.
    runs, plain = [], [_plain(seconds)]
    for size in sizes:
        runs.append(_ours(seconds, size))
        plain.append(_plain(seconds))
    _check(runs[0], seconds)
    return 0 if _report(runs, plain) else 1


def _recorded() -> Seconds:
    """Return the records of one job of 64 nodes, second by second, one GPU losing a quarter of its clock."""
    spec = ClusterSpec(nodes=UNIT, jobs=(one_job(UNIT, 8),))
    fault = Fault(kind="clock_lock", node=FAULT_NODE, gpu=FAULT_GPU, onset=float(ONSET), magnitude=1.3)
    seconds: list[list[NodeSample | JobSteps]] = [[] for _ in range(SECONDS)]
    for record in Cluster(spec, seed=11, faults=(fault,)).run(SECONDS):
        if isinstance(record, NodeSample | JobSteps):
            seconds[min(int(record.ts - spec.start), SECONDS - 1)].append(record)
    return seconds


def _copies(records: Sequence[NodeSample | JobSteps], nodes: int) -> Iterator[tuple[bytes, bool]]:
    """Yield the records of ``nodes`` nodes, encoded, and whether they are steps.

    Every copy of the 64 is a job of its own.
    """
    for copy in range(-(-nodes // UNIT)):
        left = nodes - copy * UNIT
        for record in records:
            if int(record.node.rsplit("-", 1)[1]) < left:
                named = {"node": f"{record.node}-{copy}" if copy else record.node}
                if record.job_id is not None and copy:
                    named["job_id"] = f"{record.job_id}-{copy}"
                yield encode(msgspec.structs.replace(record, **named)), isinstance(record, JobSteps)


def _ours(seconds: Seconds, nodes: int) -> Run:
    large = nodes >= LARGE
    change = replace(ChangeConfig(), warmup=5, baseline=20) if large else ChangeConfig()
    stages = (
        Timed(BatchBySecond(NodeStage(NodeConfig(change=change)))),
        Timed(JobStage()),
        Timed(FindingStage()),
    )
    pipeline = Pipeline(node=stages[0], job=stages[1], finding=stages[2])
    findings: list[Finding] = []
    costs: dict[str, Cost] = {}
    within, timing = _timing_seconds()
    for name, first, last in SHORT_WINDOWS if large else WINDOWS:
        for stage in stages:
            stage.spent, stage.calls = 0.0, 0
        decoding = total = 0.0
        for second in seconds[first:last]:
            data = list(_copies(second, nodes))
            start = time.process_time()
            records = [
                decode_steps(d, now=None) if steps else decode_sample(d, now=None) for d, steps in data
            ]
            decoding += time.process_time() - start
            for record in records:
                findings += pipeline.process(record)
            total += time.process_time() - start
        spent = (stage.spent - within * stage.calls for stage in stages)
        parts = (decoding, *spent, total - timing * sum(stage.calls for stage in stages))
        costs[name] = Cost(nodes, tuple(1e6 * part / (nodes * (last - first)) for part in parts))
    findings += pipeline.finish()
    return Run(costs, findings, [s for s in stages[0].outputs if isinstance(s, Suspicion)])


class _Idle:
    """A stage that does nothing."""

    def process(self, _record: Input) -> Sequence[Output]:
        return ()

    def tick(self, _event_time: float) -> Sequence[Output]:
        return ()


def _timing_seconds() -> tuple[float, float]:
    """Return the cost of timing a call: the part within the measured time of the stage, and all of it.

    Every call of a stage of ours is timed; the simple pipelines are timed a second at a time.
    """
    spent = []
    timed = Timed(_Idle())
    for stage in (timed.stage, timed):
        start = time.process_time()
        for second in range(TIMED_CALLS):
            stage.tick(float(second))
        spent.append(time.process_time() - start)
    return timed.spent / TIMED_CALLS, (spent[1] - spent[0]) / TIMED_CALLS


def _check(run: Run, seconds: Seconds) -> None:
    """Assert that the fault was found, and that batches do not change suspicions."""
    named = {(f.subject.node, f.subject.gpu_index) for f in run.findings if f.kind == "clock.low"}
    assert {(n.rsplit("-", 1)[-1][-4:], gpu) for n, gpu in named if n} == {(f"{FAULT_NODE:04}", FAULT_GPU)}
    stage = NodeStage()
    samples = [r for second in seconds for r in second if isinstance(r, NodeSample)]
    alone = [s for r in samples for s in stage.process(r) if isinstance(s, Suspicion)]
    assert sorted(encode(s) for s in run.suspicions) == sorted(encode(s) for s in alone)


@dataclass(frozen=True, slots=True)
class Plain:
    """Cost of a simple pipeline in microseconds per node-second, and the number of its series in alarm."""

    name: str
    cost: float
    alarms: int


def _plain(seconds: Seconds) -> tuple[Plain, Plain]:
    return _rolling(seconds), _bocpd(seconds)


def _rolling(seconds: Seconds) -> Plain:
    pipeline = PlainPipeline(RollingZ)
    spent = [_fed(pipeline, second) for second in seconds[: ONSET + PLAIN_SECONDS]]
    found = {(n[-4:], i) for n, i, metric in pipeline.alarms if metric == "gpu.clock.sm_hz"}
    assert (f"{FAULT_NODE:04}", str(FAULT_GPU)) in found
    return Plain("RollingZ", statistics.mean(spent[WARM:ONSET]), len(pipeline.alarms))


def _bocpd(seconds: Seconds) -> Plain:
    """Time a detector as strong as ours for some seconds; it is too slow to run until its slots are full."""
    pipeline = PlainPipeline(FastBocpd)
    spent = [_fed(pipeline, second) for second in seconds[: PLAIN_SECONDS + 2]]
    return Plain("FastBocpd", statistics.mean(spent[2:]), 0)


def _fed(pipeline: PlainPipeline, records: Sequence[NodeSample | JobSteps]) -> float:
    texts = [text_of(record) for record in records]
    start = time.process_time()
    for text in texts:
        pipeline.process(text)
    return 1e6 * (time.process_time() - start) / UNIT


def _report(runs: Sequence[Run], plain: Sequence[tuple[Plain, Plain]]) -> bool:
    print("| nodes | | decode | node stage | job stage | finding stage | all, µs | nodes/s on a core |")
    print("|---:|---|---:|---:|---:|---:|---:|---:|")
    for name, c in ((name, c) for run in runs for name, c in run.costs.items()):
        parts = " | ".join(f"{part:.1f}" for part in c.parts)
        print(f"| {c.nodes:,} | {name} | {parts} | {1e6 / c.total:,.0f} |")
    steady = {run.costs["steady"].nodes: run.costs["steady"].total for run in runs}
    sizes = " | ".join(f"times ours at {nodes:,}" for nodes in steady)
    print(f"\n| orjson, named fields, one object per series | µs per node-second | {sizes} | false alarms |")
    print("|---|---:|" + "---:|" * len(steady) + "---:|")
    rolling, bocpd = zip(*plain, strict=True)
    for same in (rolling, bocpd):
        ratios = " | ".join(f"{ratio:.1f}" for ratio in _times(same, steady.values()))
        cost = statistics.median(p.cost for p in same)
        print(f"| {same[0].name} | {cost:,.0f} | {ratios} | {max(same[0].alarms - 1, 0)} |")
    dearest = max(steady.values())
    fast = 1e6 / dearest >= GOAL_NODES and dearest <= GOAL_GROWTH * steady[UNIT]
    return fast and min(_times(bocpd, steady.values())) >= GOAL_TIMES


def _times(plain: Sequence[Plain], ours: Iterable[float]) -> list[float]:
    """Return the cost of a simple pipeline, measured before and after each fleet, over the fleet's cost."""
    return [(a.cost + b.cost) / 2 / cost for (a, b), cost in zip(pairwise(plain), ours, strict=True)]
