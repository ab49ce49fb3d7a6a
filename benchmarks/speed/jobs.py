"""Memory and time of the job stage: live jobs, a large one, many short ones, more than 1,024 in rotation.
What the decision core takes for a step, and the job stage in jobs whose work moves between ranks."""

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import msgspec
import numpy as np

from benchmarks.detection.step_jobs import START, Coords, Floats, StepTable, records, synchronous
from benchmarks.memory import resident_mb
from detectors.peers.step_times import StepTimes
from detectors.straggler.config import StragglerConfig
from slowrank.telemetry import JobSteps, Suspicion, decode_steps, encode
from streams.job.core import make_core
from streams.job.rows.step_rows import Identity
from streams.job.stage import JobStage
from streams.runtime.partitions.clock_offsets import shifted


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Jobs of so many ``ranks``, eight a node, of so many ``steps`` of a second; rank 5 may be slow."""

    ranks: int
    steps: int
    slow_from: int | None = None
    slow_factor: float = 1.5


def main(argv: Sequence[str]) -> int:
    """Run the given parts (by default all) and print a table of each; return 1 when a goal is missed."""
    parser = argparse.ArgumentParser(prog="benchmarks jobs", description=__doc__)
    # argparse also checks an empty list against the choices.
    parser.add_argument("parts", nargs="*", choices=[*_PARTS, []])
    parts = parser.parse_args(argv).parts or list(_PARTS)
    # Imports and compilation for the first job must not count as its memory.
    stage = JobStage()
    for record in _steps(Shape(ranks=64, steps=60, slow_from=30)):
        stage.process(record)
    reached = [_PARTS[part]() for part in parts]
    return int(not all(reached))


def _live() -> bool:
    """Measure live jobs of 64 ranks by their age, as the mean of thirty."""
    print("| live jobs of 64 ranks | MB a job | MB counted | ms a step |\n|---:|---:|---:|---:|")
    sent, names, stage, done = list(_steps(Shape(ranks=64, steps=300))), range(30), JobStage(), 0
    jobs = [[_moved(record, f"job-{i}", f"{i}/{record.node}") for record in sent] for i in names]
    before = resident_mb()
    for steps in (20, 100, 300):
        first, last = (n * len(sent) // 300 for n in (done, steps))
        began = time.process_time()
        for job in jobs:
            for record in job[first:last]:
                stage.process(record)
        spent = 1e3 * (time.process_time() - began) / (steps - done) / len(names)
        held, done = (resident_mb() - before) / len(names), steps
        counted = stage.memory.held / len(names)
        print(f"| {steps} steps | {held:.2f} | {counted / 1e6:.2f} | {spent:.2f} |")
    return True


def _large() -> bool:
    """Measure one job of 8,192 ranks with a full window."""
    shape = Shape(ranks=8192, steps=330)
    source, stage, seconds, most = _steps(shape), JobStage(), 0.0, 0.0
    before = resident_mb()
    for step in range(shape.steps):
        sent = list(islice(source, shape.ranks // 8))
        began = time.process_time()
        for record in sent:
            stage.process(record)
        seconds += time.process_time() - began
        if step % 10 == 0:
            most = max(most, resident_mb() - before)
    print("| one job of 8,192 ranks | MB at most | MB in the end | ms a step |\n|---|---:|---:|---:|")
    print(f"| 330 steps | {most:.0f} | {resident_mb() - before:.0f} | {1e3 * seconds / shape.steps:.1f} |")
    return most <= 250.0


def _short() -> bool:
    """Measure 2,000 jobs of 64 ranks and 40 steps one after the other on the same nodes."""
    print("| short jobs so far | MB | jobs held |\n|---:|---:|---:|")
    sent, stage, before, sizes = list(_steps(Shape(ranks=64, steps=40))), JobStage(), resident_mb(), []
    for i in range(2000):
        begins = 60.0 * i
        for record in sent:
            stage.process(msgspec.structs.replace(shifted(record, begins), job_id=f"job-{i}"))
        stage.tick(START + begins + 50.0)
        if i + 1 in (100, 500, 1000, 1500, 2000):
            sizes.append(resident_mb() - before)
            print(f"| {i + 1:,} | {sizes[-1]:.0f} | {stage.memory.jobs} |")
    return sizes[-1] <= sizes[0] + 20.0


def _rotation() -> bool:
    """Run 1,100 live jobs of 8 ranks in turn; one rank of each becomes 1.5 times as slow at step 30."""
    names = [f"job-{i}" for i in range(1100)]
    sent, stage = list(_steps(Shape(ranks=8, steps=45, slow_from=30))), JobStage()
    found: set[str | None] = set()
    for record in sent:
        for i, name in enumerate(names):
            for s in stage.process(_moved(record, name, f"node-{i}")):
                if isinstance(s, Suspicion) and s.kind == "straggler.fail_slow" and s.subject.rank == 5:
                    found.add(s.subject.job_id)
    print(f"1,100 live jobs in rotation: the slow rank was found in {len(found)}")
    return len(found) == len(names)


def _core() -> bool:
    """Measure a step of the decision core, the 200th to 300th of a job."""
    print("| ranks | ms a step |\n|---:|---:|")
    for ranks in (64, 1024, 8192):
        roster = tuple(range(ranks))
        at = {
            rank: Identity(f"node-{rank // 8}", None, None, (("dp", rank // 8), ("tp", rank % 8)), "")
            for rank in roster
        }
        core, spent = make_core(roster, at, StragglerConfig()), 0.0
        for number, times in enumerate(_times(ranks, 300)):
            began = time.process_time()
            core.update(times)
            spent += (time.process_time() - began) * (number >= 200)
        print(f"| {ranks:,} | {10 * spent:.2f} |")
    return True


def _times(ranks: int, steps: int) -> Iterator[StepTimes]:
    """Yield steps of healthy ranks that report all columns but checkpoints and tokens."""
    rng, nothing = np.random.default_rng(7), np.full(ranks, np.nan)
    for number in range(1000, 1000 + steps):
        compute, comm = np.exp(rng.normal(0, 0.01, ranks)), 0.2 * np.exp(rng.normal(0, 0.05, ranks))
        longest = float((compute + comm).max())
        yield StepTimes(
            number=number,
            ts=np.full(ranks, START + 1.3 * number),
            step=np.full(ranks, longest + 0.02),
            compute=compute,
            wait=longest - compute - comm,
            data=np.full(ranks, 0.01),
            comm=comm,
            checkpoint=nothing,
            tokens=nothing,
        )


def _moving() -> bool:
    """Measure the steps of jobs of which many ranks are suspected at a time, beside a usual one."""
    print("| work | ranks | ms a step, median | P95 | most |\n|---|---:|---:|---:|---:|")
    for ranks, steps in ((64, 400), (1024, 160), (8192, 100)):
        for name, (work, coords) in _WORK.items():
            rng, numbers = np.random.default_rng(0), np.arange(ranks)
            layout: Coords = {"dp": (numbers // 8).tolist(), "tp": (numbers % 8).tolist()}
            table = synchronous(work(rng, steps, ranks), overhead=0.1, coords=layout if coords else None)
            spent = _spent(replace(table, world_size=ranks))[_LEARNT:]
            median, late = np.percentile(spent, [50, 95])
            print(f"| {name} | {ranks:,} | {median:.1f} | {late:.1f} | {max(spent):.1f} |", flush=True)
    return True


def _spent(table: StepTable) -> list[float]:
    """Return what the job stage takes for each step of a job [ms]."""
    source, stage, spent = records(table), JobStage(), list[float]()
    nodes = -(-table.compute.shape[1] // table.ranks_per_node)
    for _ in table.numbers:
        sent = list(islice(source, nodes))
        began = time.process_time()
        for record in sent:
            stage.process(record)
        spent.append(1e3 * (time.process_time() - began))
    return spent


def _usual(rng: np.random.Generator, steps: int, ranks: int) -> Floats:
    return np.exp(rng.normal(0.0, 0.01, (steps, ranks)))


def _by_replica(rng: np.random.Generator, steps: int, ranks: int) -> Floats:
    """Return the work of replicas of a machine each, whose batches are long or short for 70 steps."""
    levels = _dealt(rng, steps, ranks // 8) + rng.normal(0.0, 0.02, (steps, ranks // 8))
    return np.exp(levels.repeat(8, axis=1) + rng.normal(0.0, 0.005, (steps, ranks)))


def _by_rank(rng: np.random.Generator, steps: int, ranks: int) -> Floats:
    return np.exp(_dealt(rng, steps, ranks) + rng.normal(0.0, 0.02, (steps, ranks)))


def _dealt(rng: np.random.Generator, steps: int, readers: int) -> Floats:
    return rng.normal(0.0, 0.15, (steps // 70 + 1, readers)).repeat(70, axis=0)[:steps]


def _experts(rng: np.random.Generator, steps: int, ranks: int) -> Floats:
    """Return the work of ranks at one of eight places that is popular for a while, one of them more so."""
    work, first = _usual(rng, steps, ranks), 0
    while first < steps:
        lasts = int(rng.integers(20, 60))
        work[first : first + lasts, int(rng.integers(8)) :: 8] *= 1.25
        work[first : first + lasts, int(rng.integers(ranks))] *= 1.4
        first += lasts
    return work


# How work is drawn, and whether coordinates are reported.
_WORK: dict[str, tuple[Callable[[np.random.Generator, int, int], Floats], bool]] = {
    "usual": (_usual, True),
    "dealt out anew to replicas": (_by_replica, True),
    "dealt out anew to ranks, no coordinates": (_by_rank, False),
    "experts that are popular in turn": (_experts, True),
}

# Steps until baselines are known.
_LEARNT = 40

_PARTS = {
    "live": _live,
    "large": _large,
    "short": _short,
    "rotation": _rotation,
    "core": _core,
    "moving": _moving,
}


def _steps(shape: Shape) -> Iterator[JobSteps]:
    return map(decode_steps, steps_as_sent(shape))


def steps_as_sent(shape: Shape) -> Iterator[bytes]:
    """Yield the records of a job as they are on the wire, with loading times and tokens."""
    rng = np.random.default_rng(7)
    # A few steps at a time: the whole table of a large job would outweigh the memory to be measured.
    for first in range(0, shape.steps, 10):
        count = min(10, shape.steps - first)
        work = np.exp(rng.normal(0, 0.004, (count, shape.ranks)))
        if shape.slow_from is not None:
            work[np.arange(first, first + count) >= shape.slow_from, 5] *= shape.slow_factor
        ranks = range(shape.ranks)
        coords: Coords = {
            "dp": [r // 8 for r in ranks],
            "tp": [r % 8 for r in ranks],
            "pp": [0] * shape.ranks,
        }
        table = synchronous(work, overhead=0.1, coords=coords)
        whole = replace(
            table,
            data=np.full(work.shape, 0.01),
            tokens=np.full(work.shape, 4096.0),
            numbers=table.numbers + first,
            ts=table.ts + 1.2 * first,
        )
        for record in records(whole):
            yield encode(msgspec.structs.replace(record, world_size=shape.ranks))


def _moved(record: JobSteps, name: str, node: str) -> JobSteps:
    return msgspec.structs.replace(record, job_id=name, node=node)
