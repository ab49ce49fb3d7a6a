"""A fleet larger than this machine carries: cores and memory of its analysis, one partition after the other.

Each partition is analysed in a process of its own by the code of a detecting worker, from the bytes of the
records on; then one fusion stage takes all of their outputs. In every tenth job a GPU is hot, a port flaps, a
GPU is lost and a node falls silent; in the end, as the worst case for the fusion, the whole site does. Not
included: what Kafka and Faust cost a record (``benchmarks transport``), and ``benchmarks rollups``.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import merge
from multiprocessing.connection import Connection

import msgspec

from alerts.finding import Finding
from benchmarks.memory import peak_mb
from benchmarks.scale.worker import LocalWorker, Sent
from simulator import Cluster, ClusterSpec, Fault
from simulator.cluster.layout import one_job
from slowrank.telemetry import Record, decode_message, encode
from streams.config.settings import Tuning
from streams.config.stages import finding_stage
from streams.runtime.gc_tuning import collect_less_often
from streams.runtime.kafka.placement import home
from streams.runtime.kafka.record_producer import key_of, topic_of
from streams.runtime.partitions.partition import FindingPartition

# Nodes of a simulated job of 8 GPUs and 8 NICs each; further nodes are copies of it under other names.
UNIT = 64

# Every so many copies have faults.
FAULTY = 10

ONSET = 60.0

# How long the site is silent in the end: every node has been found silent by then.
SILENCE_SECONDS = 45.0

START = 1_795_160_000.0
GOAL_CORES, GOAL_MB = 1.0, 2000.0


@dataclass(frozen=True, slots=True)
class Analysed:
    """What the analysis of one partition cost, from when the baselines are learnt on, and what it sent."""

    seconds: float
    """CPU seconds of the records after ``ONSET``."""
    records: int
    memory_mb: float
    sent: list[Sent]


@dataclass(slots=True)
class Fused:
    """CPU seconds of the fusion stage by second of event time at which they were spent."""

    by_second: dict[int, float] = field(default_factory=dict)
    messages: int = 0
    findings: set[str] = field(default_factory=set)
    memory_mb: float = 0.0


def main(argv: Sequence[str]) -> int:
    """Print cores and memory of all partitions and of the fusion; return 1 when its goals are missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks fleet", description=__doc__)
    parser.add_argument("--nodes", type=int, default=12_500)
    parser.add_argument("--seconds", type=int, default=100, help="of event time; faults begin at 60")
    parser.add_argument("--partitions", type=int, default=64)
    args = parser.parse_args(argv)
    collect_less_often()
    recorded = [_recorded(args.seconds, faulty=faulty) for faulty in (False, True)]
    # Imports and compilation must not count as the memory of each partition.
    asyncio.run(_take_all(recorded, 8, 0, 1))
    parts = [
        _in_a_process(recorded, args.nodes, partition, args.partitions)
        for partition in range(args.partitions)
    ]
    fused = _fuse(merge(*(part.sent for part in parts), key=lambda sent: sent[0]))
    return _report(args.nodes, args.seconds, parts, fused)


def _recorded(seconds: int, *, faulty: bool) -> list[Record]:
    faults = (
        Fault(kind="thermal_throttle", node=3, gpu=2, onset=ONSET, magnitude=1.3),
        Fault(kind="nic_flap", node=9, gpu=0, onset=ONSET, duration=20.0),
        Fault(kind="gpu_lost", node=14, gpu=5, onset=ONSET + 10.0),
        Fault(kind="node_silent", node=20, onset=ONSET + 5.0),
    )
    spec = ClusterSpec(nodes=UNIT, jobs=(one_job(UNIT, 8),), name="fleet", start=START)
    return list(Cluster(spec, seed=11, faults=faults if faulty else ()).run(float(seconds)))


def _in_a_process(
    recorded: Sequence[Sequence[Record]], nodes: int, partition: int, partitions: int
) -> Analysed:
    """Analyse a partition in a child, so that its memory is its own."""
    context = multiprocessing.get_context("fork")
    receiving, sending = context.Pipe(duplex=False)
    child = context.Process(target=_analyse, args=(sending, recorded, nodes, partition, partitions))
    child.start()
    sending.close()
    found: Analysed = receiving.recv()
    child.join()
    return found


def _analyse(
    sending: Connection, recorded: Sequence[Sequence[Record]], nodes: int, partition: int, partitions: int
) -> None:
    sending.send(asyncio.run(_take_all(recorded, nodes, partition, partitions)))
    sending.close()


async def _take_all(
    recorded: Sequence[Sequence[Record]], nodes: int, partition: int, partitions: int
) -> Analysed:
    """Analyse what the fleet sends to a partition, and the silence after it."""
    worker, before, spent, records = LocalWorker(START, partition), peak_mb(), 0.0, 0
    for second in _by_second(recorded, nodes, partition, partitions):
        began = time.process_time()
        for ts, topic, value in second:
            await worker.take(ts, topic, value)
        worker.look()
        if worker.now >= START + ONSET:
            spent += time.process_time() - began
            records += len(second)
    memory = peak_mb() - before
    for _ in range(int(SILENCE_SECONDS)):
        worker.look(1.0)
    return Analysed(spent, records, memory, worker.sent)


def _by_second(
    recorded: Sequence[Sequence[Record]], nodes: int, partition: int, partitions: int
) -> Iterator[list[tuple[float, str, bytes]]]:
    """Yield what the nodes of a fleet send to a partition of each topic, second by second, encoded."""
    copies: dict[tuple[int, str, int], tuple[int, ...]] = {}
    due: list[tuple[float, str, bytes]] = []
    until = START + 1.0
    for record, faulty in merge(*(_tagged(r, i) for i, r in enumerate(recorded)), key=lambda p: p[0].ts):
        if record.ts >= until:
            yield due
            due, until = [], until + 1.0
        kind = faulty, topic_of(record), _number(record)
        if kind not in copies:
            all_of_it = range(0 if faulty else 1, -(-(nodes - kind[2]) // UNIT))
            mine = (c for c in all_of_it if (c % FAULTY == 0) == bool(faulty))
            copies[kind] = tuple(
                c for c in mine if home(key_of(_renamed(record, c)), partitions) == partition
            )
        due += [(record.ts, kind[1], encode(_renamed(record, copy))) for copy in copies[kind]]
    yield due


def _tagged(records: Sequence[Record], which: int) -> Iterator[tuple[Record, int]]:
    return ((record, which) for record in records)


def _number(record: Record) -> int:
    return int(record.node.rsplit("-", 1)[1])


def _renamed(record: Record, copy: int) -> Record:
    changes = {"node": f"{record.node}-{copy}"}
    if getattr(record, "job_id", None) is not None:
        changes["job_id"] = f"job-{copy}"
    return msgspec.structs.replace(record, **changes)


def _fuse(sent: Iterator[Sent]) -> Fused:
    fused, stage = Fused(), FindingPartition("suspicions:0", finding_stage(Tuning()))
    before = peak_mb()
    for at, value in sent:
        began = time.process_time()
        outputs = stage.process(decode_message(value), at)
        second = int(at - START)
        fused.by_second[second] = fused.by_second.get(second, 0.0) + time.process_time() - began
        fused.messages += 1
        fused.findings.update(f.id for f in outputs if isinstance(f, Finding))
    fused.memory_mb = peak_mb() - before
    return fused


def _report(nodes: int, seconds: int, parts: Sequence[Analysed], fused: Fused) -> int:
    cpu, records = sum(part.seconds for part in parts), sum(part.records for part in parts)
    cores = cpu / (seconds - ONSET)
    print(
        f"{nodes:,} nodes of 8 GPUs, {len(parts)} partitions, {records:,} records "
        f"in {seconds - ONSET:.0f} s\n"
    )
    print("| | cores | MB |\n|---|---:|---:|")
    memory = [part.memory_mb for part in parts]
    print(f"| analysis, all partitions | {cores:.2f} | {sum(memory):,.0f} |")
    busiest = max(part.seconds for part in parts) / (seconds - ONSET)
    print(f"| of it the busiest partition | {busiest:.2f} | {max(memory):,.0f} |")
    spans = {
        "before the faults": (0, int(ONSET)),
        f"with faults in every {FAULTY}th job": (int(ONSET), seconds),
        "while the site is silent": (seconds, seconds + int(SILENCE_SECONDS) + 1),
    }
    reached = fused.memory_mb <= GOAL_MB
    for name, (first, last) in spans.items():
        each = [fused.by_second.get(second, 0.0) for second in range(first, last)]
        share = sum(each) / len(each)
        reached &= share <= GOAL_CORES
        print(f"| fusion {name} (its longest second {max(each):.1f} s) | {share:.2f} | |")
    print(f"| fusion, at most | | {fused.memory_mb:,.0f} |")
    print(
        f"\n{1e6 * cores / nodes:.0f} µs a node-second; {fused.messages:,} suspicions, "
        f"{len(fused.findings)} findings"
    )
    return int(not reached)
