"""A day of coming and going, compressed: what must stay flat in a worker and the fusion behind it.

Pairs of nodes run one job after the other, a thousand in all by default. Between two jobs both nodes leave:
mostly for a minute, every seventh time for a quarter of an hour, and they return with another boot. In every
fifth job a GPU is hot. All goes through a detecting worker and the fusion stage as fast as they take it.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import merge

import msgspec

from alerts.cases.lifecycle import LIVE
from alerts.finding import Finding
from benchmarks.memory import resident_mb
from benchmarks.scale.worker import LocalWorker
from simulator import Cluster, ClusterSpec, Fault, JobSpec
from slowrank.telemetry import NodeEvent, Record, decode_message, encode
from streams.config.settings import Tuning
from streams.config.stages import finding_stage
from streams.runtime.gc_tuning import collect_less_often
from streams.runtime.kafka.record_producer import topic_of
from streams.runtime.partitions.clock_offsets import shifted
from streams.runtime.partitions.partition import FindingPartition

START = 1_795_100_000.0
DAY = 86_400.0

# Of the exporters. Chosen: a fifth of the records for as many jobs, findings and seconds of event time.
SECONDS_A_SAMPLE = 5.0

STEP_SECONDS = 10.0
AWAY, LONG_AWAY = 60.0, 900.0
FAULTY, LONG = 5, 7

# After which nothing may grow any more.
HOURS_BEFORE = 6

GOAL_SPEED = 10.0

# Chosen: what ended findings take, which may be reopened for 24 h; jobs or nodes kept for good take more.
GOAL_GROWTH_MB = 20.0


@dataclass(frozen=True, slots=True)
class Hour:
    """The state after an hour of event time, and how fast it passed."""

    resident_mb: float
    jobs: int
    job_mb: float
    nodes: int
    started: int
    opened: int
    live_now: int
    speed: float


def main(argv: Sequence[str]) -> int:
    """Print the state hour by hour; return 1 when something grows or is slower than ten times the clock."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks soak", description=__doc__)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--pairs", type=int, default=8, help="pairs of nodes")
    parser.add_argument("--hours", type=int, default=24)
    args = parser.parse_args(argv)
    collect_less_often()
    print(
        "| hour | jobs so far | held | MB of jobs | nodes "
        "| findings so far | live | MB resident | times the clock |"
    )
    print("|---:|" + "---:|" * 8)
    hours = asyncio.run(_run(args.jobs, args.pairs, args.hours))
    slowest = min(hour.speed for hour in hours)
    later = hours[HOURS_BEFORE - 1 :] or hours
    growth = max(h.resident_mb for h in later) - later[0].resident_mb
    print(
        f"\nslowest hour {slowest:.0f} times the clock; "
        f"after hour {HOURS_BEFORE} memory grew by {growth:.1f} MB at most"
    )
    return int(slowest < GOAL_SPEED or growth > GOAL_GROWTH_MB)


async def _run(jobs: int, pairs: int, hours: int) -> list[Hour]:
    worker, fusion = LocalWorker(START), FindingPartition("suspicions:0", finding_stage(Tuning()))
    began, until, looked = time.perf_counter(), START + 3600.0, START
    seen: dict[str, bool] = {}
    started: set[str] = set()
    found: list[Hour] = []
    for record in _records(jobs, pairs, hours * 3600.0):
        await worker.take(record.ts, topic_of(record), encode(record))
        started.add(getattr(record, "job_id", None) or "")
        if worker.now < looked + 1.0:
            continue
        looked = worker.now
        worker.look()
        for at, value in worker.sent:
            outputs = fusion.process(decode_message(value), at)
            seen.update((f.id, f.status in LIVE) for f in outputs if isinstance(f, Finding))
        worker.sent.clear()
        if looked >= until:
            found.append(_hour(worker, started, seen, 3600.0 / (time.perf_counter() - began)))
            _print(len(found), found[-1])
            began, until = time.perf_counter(), until + 3600.0
    return found


def _hour(worker: LocalWorker, started: set[str], seen: dict[str, bool], speed: float) -> Hour:
    jobs = worker.jobs
    return Hour(
        resident_mb(),
        jobs.jobs,
        jobs.held / 1e6,
        worker.health.nodes.expected,
        len(started - {""}),
        len(seen),
        sum(seen.values()),
        speed,
    )


def _print(number: int, h: Hour) -> None:
    findings = f"{h.opened} | {h.live_now} | {h.resident_mb:.0f} | {h.speed:.0f}"
    print(f"| {number} | {h.started} | {h.jobs} | {h.job_mb:.1f} | {h.nodes} | {findings} |", flush=True)


def _records(jobs: int, pairs: int, seconds: float) -> Iterator[Record]:
    """Yield the records of all pairs in order of event time."""
    each = seconds * pairs / jobs - LONG_AWAY / LONG
    recorded = [_recorded(each, faulty=faulty) for faulty in (False, True)]
    per_pair = [_of_pair(recorded, pair, pairs, each, seconds) for pair in range(pairs)]
    return merge(*per_pair, key=lambda record: record.ts)


def _recorded(each: float, *, faulty: bool) -> list[Record]:
    """Return what two nodes send in one job; it begins 20 s after their first sample."""
    job = JobSpec(dp=2, tp=8, step_seconds=STEP_SECONDS, begins=20.0)
    spec = ClusterSpec(nodes=2, jobs=(job,), send_seconds=SECONDS_A_SAMPLE, name="soak", start=START)
    hot = Fault(kind="thermal_throttle", node=1, gpu=3, onset=each / 2, magnitude=1.4)
    return list(Cluster(spec, seed=3, faults=(hot,) if faulty else ()).run(each - AWAY))


def _of_pair(
    recorded: Sequence[Sequence[Record]], pair: int, pairs: int, each: float, seconds: float
) -> Iterator[Record]:
    begins, number = pair * each / pairs, pair
    while begins < seconds:
        for record in recorded[number % FAULTY == 0]:
            yield _moved(record, begins, pair, f"job-{pair}-{number}")
        number += pairs
        begins += each + (LONG_AWAY if number % LONG == 0 else 0.0)


def _moved(record: Record, begins: float, pair: int, job: str) -> Record:
    names = {"node": f"{record.node}-{pair}", "boot_id": f"boot-{job}"}
    if not isinstance(record, NodeEvent) and record.job_id is not None:
        names["job_id"] = job
    return msgspec.structs.replace(shifted(record, begins), **names)
