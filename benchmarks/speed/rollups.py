"""CPU time of rolling up samples: as columns, and sample by sample as before, in turn on the same records.

Samples of nodes of 8 GPUs and 8 NIC ports at one a second, as one partition of the storing worker takes them;
decoding is included. The rows of both must be equal, bit for bit.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence

from benchmarks.speed.plain_rollup import PlainRollUp
from simulator import Cluster, ClusterSpec
from slowrank.telemetry import NodeSample, decode_sample, encode
from streams.rollup.rollup import RollUp, Rows
from streams.watermark import Watermark

GOAL = 10.0
"""Samples per CPU-second, times those of the way before, at the number of nodes that a partition has."""


def main(argv: Sequence[str]) -> int:
    """Print a table; return 1 when the goal is missed at 32 nodes or more."""
    parser = argparse.ArgumentParser(prog="benchmarks rollups", description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="*", default=[1, 8, 32, 256])
    parser.add_argument("--samples", type=int, default=6_000, help="of all nodes together")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args(argv)
    print("| nodes of a partition | before, µs a sample | as columns | samples per CPU-second | times |")
    print("|---:|---:|---:|---:|---:|")
    reached = [
        _compare(nodes, args.samples // nodes, args.rounds) >= GOAL or nodes < 32 for nodes in args.nodes
    ]
    return int(not all(reached))


def _compare(nodes: int, seconds: int, rounds: int) -> float:
    """Print one row; return how many times faster columns are."""
    messages = _messages(nodes, min(seconds, 600))
    times: dict[type[RollUp], list[float]] = {PlainRollUp: [], RollUp: []}
    for _ in range(rounds):
        rows = {}
        for kind, taken in times.items():
            began = time.process_time()
            rows[kind] = _rolled(kind(), messages)
            taken.append(1e6 * (time.process_time() - began) / len(messages))
        assert list(map(repr, rows[PlainRollUp])) == list(map(repr, rows[RollUp]))
    before, now = (statistics.median(taken) for taken in times.values())
    print(f"| {nodes} | {before:.0f} | {now:.1f} | {1e6 / now:,.0f} | {before / now:.1f} |", flush=True)
    return before / now


def _rolled(rollup: RollUp, messages: Sequence[bytes]) -> Rows:
    watermark, rows = Watermark(), []
    for message in messages:
        sample = decode_sample(message)
        for second in watermark.advance(sample.ts):
            rows += rollup.tick(float(second))
        rows += rollup.add(sample)
    return rows + rollup.flush()


def _messages(nodes: int, seconds: int) -> list[bytes]:
    spec = ClusterSpec(nodes=nodes, gpus=8, nics=8)
    records = Cluster(spec, seed=1).run(float(seconds))
    return [encode(record) for record in records if isinstance(record, NodeSample)]
