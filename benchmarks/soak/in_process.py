"""All of it through one detecting worker and the fusion stage, as fast as they take it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass

from alerts.cases.lifecycle import LIVE
from alerts.finding import Finding
from benchmarks.memory import resident_mb
from benchmarks.scale.worker import LocalWorker
from benchmarks.soak.plan import Plan
from slowrank.telemetry import decode_message, encode
from streams.config.settings import Tuning
from streams.config.stages import finding_stage
from streams.runtime.gc_tuning import collect_less_often
from streams.runtime.kafka.record_producer import topic_of
from streams.runtime.partitions.partition import FindingPartition

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


def report(plan: Plan) -> int:
    """Print the state hour by hour; return 1 when something grows or is slower than ten times the clock."""
    collect_less_often()
    print(
        "| hour | jobs so far | held | MB of jobs | nodes "
        "| findings so far | live | MB resident | times the clock |"
    )
    print("|---:|" + "---:|" * 8)
    hours = asyncio.run(run(plan))
    slowest = min(hour.speed for hour in hours)
    later = hours[HOURS_BEFORE - 1 :] or hours
    growth = max(h.resident_mb for h in later) - later[0].resident_mb
    print(
        f"\nslowest hour {slowest:.0f} times the clock; "
        f"after hour {HOURS_BEFORE} memory grew by {growth:.1f} MB at most"
    )
    return int(slowest < GOAL_SPEED or growth > GOAL_GROWTH_MB)


async def run(plan: Plan) -> list[Hour]:
    """Process all records of a plan and return the state after each hour."""
    worker, fusion = LocalWorker(plan.start), FindingPartition("suspicions:0", finding_stage(Tuning()))
    began, until, looked = time.perf_counter(), plan.start + 3600.0, plan.start
    seen: dict[str, bool] = {}
    started: set[str] = set()
    found: list[Hour] = []

    def note() -> None:
        speed = (looked - until + 3600.0) / (time.perf_counter() - began)
        found.append(_hour(worker, started, seen, speed))
        _print(len(found), found[-1])

    for record in plan.records():
        await worker.take(record.ts, topic_of(record), encode(record))
        started.add(getattr(record, "job_id", None) or "")
        if worker.now < looked + 1.0:
            continue
        looked = worker.now
        worker.look()
        seen.update((f.id, f.status in LIVE) for f in _findings(worker, fusion))
        if looked >= until:
            note()
            began, until = time.perf_counter(), until + 3600.0
    # The last hour ends with the last record, and not after it.
    note()
    return found


def _findings(worker: LocalWorker, fusion: FindingPartition) -> Iterator[Finding]:
    for at, value in worker.sent:
        yield from (f for f in fusion.process(decode_message(value), at) if isinstance(f, Finding))
    worker.sent.clear()


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
