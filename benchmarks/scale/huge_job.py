"""Whether one partition carries a job of 100,000 ranks: memory a rank, processor time and bytes a step.

All records of a job are in one partition, so that one process compares all of its ranks. The records of every
step are decoded and analysed as a worker does it; one rank becomes 1.3 times as slow, and has to be named.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from benchmarks.memory import resident_mb
from benchmarks.speed.jobs import Shape, steps_as_sent
from slowrank.telemetry import Suspicion, decode_steps
from streams.job.stage import JobStage

RANKS_A_NODE = 8
SLOW_RANK, SLOW_FACTOR = 5, 1.3

# Within which the slow rank has to be named. Chosen: half a minute at a step a second.
GOAL_STEPS = 30


@dataclass(slots=True)
class Spent:
    """CPU seconds and bytes of the steps so far."""

    decoding: float = 0.0
    stage: float = 0.0
    longest: float = 0.0
    size: int = 0
    steps: int = 0


def main(argv: Sequence[str]) -> int:
    """Print a table of the job as it grows; return 1 when the slow rank is not named in time."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks huge_job", description=__doc__)
    parser.add_argument("--ranks", type=int, default=100_000)
    parser.add_argument("--steps", type=int, default=100, help="a window is full at 256")
    args = parser.parse_args(argv)
    slow_from = args.steps // 2
    shape = Shape(ranks=args.ranks, steps=args.steps, slow_from=slow_from, slow_factor=SLOW_FACTOR)
    # Imports and compilation must not count as the memory of the job.
    _warm_up()
    print(f"one job of {args.ranks:,} ranks, {args.ranks // RANKS_A_NODE:,} records a step\n")
    print(
        "| steps | MB | kB a rank | kB a rank counted "
        "| decode, s a step | stage, s a step | longest | MB a step |"
    )
    print("|---:|---:|---:|---:|---:|---:|---:|---:|")
    named = _run(shape)
    if named is None:
        print("\nthe slow rank was not named")
        return 1
    print(f"\nthe slow rank was named {named - slow_from + 1} steps after it became slow")
    return int(named - slow_from >= GOAL_STEPS)


def _warm_up() -> None:
    stage = JobStage()
    for data in steps_as_sent(Shape(ranks=64, steps=60, slow_from=30)):
        stage.process(decode_steps(data))


def _run(shape: Shape) -> int | None:
    """Process the job; return the step in which the slow rank was named."""
    stage, source, before = JobStage(), steps_as_sent(shape), resident_mb()
    spent, named = Spent(), None
    for step in range(shape.steps):
        sent = list(islice(source, -(-shape.ranks // RANKS_A_NODE)))
        found = _step(stage, sent, spent)
        if named is None and any(s.subject.rank == SLOW_RANK for s in found):
            named = step
        # In the middle of a job the cost of its steps is steady.
        if (step + 1) % max(1, shape.steps // 5) == 0:
            _print(step + 1, shape.ranks, resident_mb() - before, stage.memory.held, spent)
            spent = Spent()
    return named


def _step(stage: JobStage, sent: Sequence[bytes], spent: Spent) -> list[Suspicion]:
    began = time.process_time()
    records = [decode_steps(data) for data in sent]
    decoded = time.process_time()
    outputs = [output for record in records for output in stage.process(record)]
    taken = time.process_time() - decoded
    spent.decoding += decoded - began
    spent.stage += taken
    spent.longest = max(spent.longest, taken)
    spent.size += sum(map(len, sent))
    spent.steps += 1
    return [o for o in outputs if isinstance(o, Suspicion) and o.kind.startswith("straggler.")]


def _print(steps: int, ranks: int, held: float, counted: int, spent: Spent) -> None:
    each = (spent.decoding / spent.steps, spent.stage / spent.steps, spent.longest)
    times = " | ".join(f"{seconds:.2f}" for seconds in each)
    memory = f"{held:,.0f} | {1e3 * held / ranks:.1f} | {counted / 1e3 / ranks:.1f}"
    print(f"| {steps} | {memory} | {times} | {spent.size / spent.steps / 1e6:.1f} |", flush=True)
