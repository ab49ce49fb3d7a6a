"""CPU time of roll-ups of samples and step rows: as columns, and one by one as before, on the same records.

Samples of nodes of 8 GPUs and 8 NIC ports at one a second, and step records of 8 ranks of jobs on those
nodes, as one partition of the storing worker takes them. Decoding is included; what it takes alone, with the
event time, is the floor of both ways. The rows of both ways must be equal, bit for bit.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Sequence

from benchmarks.speed.plain_rollup import PlainRollUp
from simulator import Cluster, ClusterSpec, JobSpec
from slowrank.telemetry import JobSteps, NodeSample, decode_sample, decode_steps, encode
from store.telemetry.buckets import SampleRollups, StepRollups
from streams.rollup.rollup import RollUp, Rows
from streams.watermark import Watermark

Decode = Callable[[bytes], NodeSample | JobSteps]
Take = Callable[[Decode, Sequence[bytes]], Rows]

# Samples per CPU-second, times those of the way before, at the number of nodes that a partition has.
GOAL = 10.0

# Nodes of a job, and the length of its steps.
JOB_NODES = 32
STEP_SECONDS = 1.0


def main(argv: Sequence[str]) -> int:
    """Print a table; return 1 when the goal is missed at 32 nodes or more."""
    parser = argparse.ArgumentParser(prog="benchmarks rollups", description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="*", default=[1, 8, 32, 256])
    parser.add_argument("--samples", type=int, default=6_000, help="of all nodes together")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args(argv)
    print(
        "| | nodes of a partition | before, µs a record | as columns | of it decoding "
        "| records per CPU-second | times | times, without decoding |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    reached = []
    for nodes in args.nodes:
        seconds = min(args.samples // nodes, 600)
        times = _compare("samples", nodes, _samples(nodes, seconds), args.rounds)
        reached.append(times >= GOAL or nodes < 32)
        _compare("step rows", nodes, _steps(nodes, seconds), args.rounds)
    return int(not all(reached))


def _compare(what: str, nodes: int, messages: Sequence[bytes], rounds: int) -> float:
    """Print one row; return how many times faster columns are."""
    decode = decode_sample if what == "samples" else decode_steps
    times: dict[Take, list[float]] = {_decoded: [], _before: [], _as_columns: []}
    for _ in range(rounds):
        rows = {}
        for take, taken in times.items():
            began = time.process_time()
            rows[take] = take(decode, messages)
            taken.append(1e6 * (time.process_time() - began) / len(messages))
        assert list(map(repr, rows[_before])) == list(map(repr, _one_by_one(rows[_as_columns])))
    floor, before, now = (statistics.median(taken) for taken in times.values())
    print(
        f"| {what} | {nodes} | {before:.1f} | {now:.1f} | {floor:.1f} | {1e6 / now:,.0f} "
        f"| {before / now:.1f} | {(before - floor) / (now - floor):.1f} |",
        flush=True,
    )
    return before / now


def _decoded(decode: Decode, messages: Sequence[bytes]) -> Rows:
    watermark = Watermark()
    for message in messages:
        watermark.advance(decode(message).ts)
    return []


def _before(decode: Decode, messages: Sequence[bytes]) -> Rows:
    return _rolled(PlainRollUp(), decode, messages)


def _as_columns(decode: Decode, messages: Sequence[bytes]) -> Rows:
    return _rolled(RollUp(), decode, messages)


def _one_by_one(rows: Rows) -> Iterator[object]:
    for row in rows:
        yield from row.rows() if isinstance(row, SampleRollups | StepRollups) else (row,)


def _rolled(rollup: RollUp, decode: Decode, messages: Sequence[bytes]) -> Rows:
    watermark, rows = Watermark(), []
    for message in messages:
        record = decode(message)
        for second in watermark.advance(record.ts):
            rows += rollup.tick(float(second))
        rows += rollup.add(record)
    return rows + rollup.flush()


def _steps(nodes: int, seconds: int) -> list[bytes]:
    sizes = [min(JOB_NODES, nodes - first) for first in range(0, nodes, JOB_NODES)]
    jobs = tuple(
        JobSpec(dp=size, tp=8, job_id=f"job-{i}", first_node=i * JOB_NODES, step_seconds=STEP_SECONDS)
        for i, size in enumerate(sizes)
    )
    spec = ClusterSpec(nodes=nodes, gpus=8, nics=1, jobs=jobs)
    records = Cluster(spec, seed=1).run(float(seconds))
    return [encode(record) for record in records if isinstance(record, JobSteps)]


def _samples(nodes: int, seconds: int) -> list[bytes]:
    spec = ClusterSpec(nodes=nodes, gpus=8, nics=8)
    records = Cluster(spec, seed=1).run(float(seconds))
    return [encode(record) for record in records if isinstance(record, NodeSample)]
