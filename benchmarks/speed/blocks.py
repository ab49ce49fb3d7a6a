"""What it would bring to process the nodes of all partitions of a worker in one block (docs/decisions/0029).

The same samples go through a node stage for each partition, as in a worker, and through one stage for all of
them, second by second in turn. What both find must be the same. CPU time of the thread, without decoding.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from benchmarks.capacity.load import UNIT
from simulator import Cluster, ClusterSpec, Fault
from simulator.cluster.layout import one_job
from slowrank.telemetry import NodeSample, Suspicion
from streams.node.stage import NodeStage
from streams.runtime.gc_tuning import collect_less_often
from streams.stage import Output

START = 1_795_160_000.0
# Until the baselines are learnt, and in which is measured.
WARM, MEASURED = 85, 30
GOAL_MICROSECONDS = 36.0
# Early, so that it costs nothing in what is measured: what is found must not be compared on silence.
FAULT = Fault(kind="nic_flap", node=2, gpu=1, onset=3.0, duration=4.0)


@dataclass(frozen=True, slots=True)
class Cost:
    """Microseconds a sample of a stage for each partition and of one for all: medians over the seconds."""

    apart: float
    together: float
    times: float
    """The median of the ratios of single seconds."""


def main(argv: list[str]) -> int:
    """Print the costs; return 1 when a sample costs more than the goal in a stage for each partition."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks blocks", description=__doc__)
    parser.add_argument("--sizes", default="32x16,64x16,96x8,192x4", help="nodes of a partition x partitions")
    args = parser.parse_args(argv)
    collect_less_often()
    print("| nodes of a partition | partitions | µs a sample | in one block | times |")
    print("|---:|---:|---:|---:|---:|")
    reached = True
    for size in args.sizes.split(","):
        nodes, partitions = map(int, size.split("x"))
        cost = measure(nodes, partitions)
        figures = f"{cost.apart:.1f} | {cost.together:.1f} | {cost.times:.2f}"
        print(f"| {nodes} | {partitions} | {figures} |", flush=True)
        reached &= cost.apart <= GOAL_MICROSECONDS
    return int(not reached)


def measure(nodes: int, partitions: int, *, warm: int = WARM, measured: int = MEASURED) -> Cost:
    """Return what so many partitions of so many nodes cost. Raises ``ValueError`` where findings differ."""
    apart, together = [NodeStage() for _ in range(partitions)], [NodeStage()]
    costs: list[tuple[float, float]] = []
    said = 0
    for second, batches in enumerate(_batches(nodes, partitions, warm + measured)):
        every = [[sample for batch in batches for sample in batch]]
        now = START + second + 1.0
        # In turn first and second, as caches are warm for whatever comes second.
        if second % 2:
            one, other = _take(apart, batches, now), _take(together, every, now)
        else:
            other, one = _take(together, every, now), _take(apart, batches, now)
        if _bytes(one[1]) != _bytes(other[1]):
            raise ValueError(f"{partitions} partitions find something else than one in second {second}")
        said += sum(isinstance(output, Suspicion) for output in one[1])
        if second >= warm:
            costs.append((one[0] / len(every[0]), other[0] / len(every[0])))
    if not said:
        raise ValueError("nothing was found, so that nothing was compared")
    found = 1e6 * np.array(costs)
    apart_us, together_us = np.median(found, axis=0)
    return Cost(float(apart_us), float(together_us), float(np.median(found[:, 0] / found[:, 1])))


def _batches(nodes: int, partitions: int, seconds: int) -> Iterator[list[list[NodeSample]]]:
    """Yield the samples of every second, by partition."""
    spec = ClusterSpec(nodes=UNIT, jobs=(one_job(UNIT, 8),), name="blocks", start=START)
    by_second: list[list[NodeSample]] = [[] for _ in range(seconds + 1)]
    for record in Cluster(spec, seed=11, faults=(FAULT,)).run(float(seconds)):
        if isinstance(record, NodeSample):
            by_second[int(record.ts - START)].append(record)
    for samples in by_second[:seconds]:
        yield [_partition(samples, nodes, number) for number in range(partitions)]


def _partition(samples: Sequence[NodeSample], nodes: int, number: int) -> list[NodeSample]:
    copies = -(-nodes // UNIT)
    made = [(sample, copy) for copy in range(copies) for sample in samples]
    return [
        msgspec.structs.replace(sample, node=f"{sample.node}-{copy}-{number}")
        for sample, copy in made
        if copy * UNIT + int(sample.node.rsplit("-", 1)[1]) < nodes
    ]


def _take(
    stages: Sequence[NodeStage], batches: Sequence[Sequence[NodeSample]], now: float
) -> tuple[float, list[Output]]:
    """Return the seconds that the stages took for their batches, and what they found."""
    began, found = time.thread_time(), list[Output]()
    for stage, batch in zip(stages, batches, strict=True):
        found += stage.process_many(batch)
        found += stage.tick(now)
    return time.thread_time() - began, found


def _bytes(found: Sequence[Output]) -> list[bytes]:
    return sorted(msgspec.msgpack.encode(output) for output in found)
