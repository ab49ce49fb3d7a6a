"""What more workers bring: the rate at which one, two or more work off the same backlog, and the ratio.

The telemetry of a fleet of 8-GPU nodes waits in Kafka; the workers of one role read it. Every worker may
use the same share of a core (a CPU quota), so that broker and database have processors left on a small
machine, where a second worker would otherwise compete with them and not with the first. Needs root.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from servers import kafka, timescale
from servers.process import Process, wait_until

from benchmarks.capacity.installation import SLOWRANK
from benchmarks.capacity.load import Load, record, send
from benchmarks.capacity.usage import usage
from benchmarks.rig.cgroup import cpu_quota
from slowrank.telemetry.topics import JOB_STEPS, NODE_EVENTS, NODE_SAMPLES
from streams.runtime.faust_app import READS, Role
from streams.runtime.kafka.offsets import Probe

ROLES: tuple[Role, ...] = ("detect", "sink")
SENT = {NODE_SAMPLES, NODE_EVENTS, JOB_STEPS}
GOAL_TWO = 1.8
# Of the backlog: neither how work begins nor the partitions that are worked off last.
FIRST, LAST = 0.1, 0.6
_PERIOD = 100_000
_LOOK_SECONDS = 0.5
_START_SECONDS = 90.0
_DRAIN_SECONDS = 600.0


class Rate(NamedTuple):
    """Records a second of all workers together, and their CPU seconds for each."""

    records: float
    cpu_seconds: float


def main(argv: list[str]) -> int:
    """Print the rates; return 1 when two workers are not 1.8 times as fast as one."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks workers", description=__doc__)
    parser.add_argument("--nodes", type=int, default=768)
    parser.add_argument("--seconds", type=int, default=90, help="of telemetry in the backlog")
    parser.add_argument("--partitions", type=int, default=16)
    parser.add_argument("--quota", type=float, default=0.3, help="share of a core that a worker may use")
    parser.add_argument("--workers", default="1,2", help="numbers of workers, with commas between")
    options = parser.parse_args(argv)
    counts = [int(count) for count in options.workers.split(",")]
    if counts[0] != 1:
        parser.error("argument --workers: begin with 1, which the others are compared with")
    with tempfile.TemporaryDirectory(prefix="slowrank-workers-") as folder:
        file = Path(folder) / "load"
        start = float(int(time.time())) - options.seconds
        load = Load(nodes=options.nodes, seconds=options.seconds, partitions=options.partitions, start=start)
        record(load, file)
        print(f"{load.nodes} nodes, {load.seconds} s, {load.partitions} partitions")
        print(f"each worker may use {options.quota} of a core")
        print("| role | workers | records/s | µs of CPU a record | times one |")
        print("|---|---:|---:|---:|---:|")
        reached = True
        for role in ROLES:
            rates = {
                n: _measured(Path(folder), file, role, n, load.partitions, options.quota) for n in counts
            }
            for number, rate in rates.items():
                times = rate.records / rates[1].records
                cpu = 1e6 * rate.cpu_seconds
                print(f"| {role} | {number} | {rate.records:,.0f} | {cpu:.0f} | {times:.2f} |")
                reached &= number != 2 or times >= GOAL_TWO
    return int(not reached)


def _measured(folder: Path, file: Path, role: Role, workers: int, partitions: int, quota: float) -> Rate:
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=folder)))
        brokers = stack.enter_context(kafka.KafkaCluster())
        database = stack.enter_context(timescale.Timescale())
        environment = _environment(brokers.bootstrap, database.create_database("workers"), partitions)
        for command in (["topics", "create"], ["migrate"]):
            subprocess.run([*SLOWRANK, *command], env=environment, check=True, capture_output=True)
        pids = [
            stack.enter_context(_worker(home / str(number), role, environment)) for number in range(workers)
        ]
        # Not before they run: what they import would take most of the time.
        for pid in pids:
            stack.enter_context(cpu_quota(pid, microseconds=int(quota * _PERIOD), period=_PERIOD))
        return asyncio.run(_worked_off(file, brokers.bootstrap, role, pids))


def _environment(bootstrap: str, dsn: str, partitions: int) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("SLOWRANK_")}
    return inherited | {
        "SLOWRANK_KAFKA_BOOTSTRAP": bootstrap,
        "SLOWRANK_DATABASE_URL": dsn,
        "SLOWRANK_TOPIC_PARTITIONS": str(partitions),
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }


@contextmanager
def _worker(home: Path, role: Role, environment: dict[str, str]) -> Iterator[int]:
    """Start a worker with a runtime folder of its own and yield its pid when it reads its topics."""
    home.mkdir()
    supervisor = Process.spawn(
        [*SLOWRANK, "streams", "run", "--role", role],
        log=home / "log",
        env=environment | {"SLOWRANK_STREAMS_RUNTIME_DIR": str(home)},
    )
    try:
        wait_until(
            lambda: bool(list(home.glob(f"streams-{role}-*.json"))),
            seconds=_START_SECONDS,
            what=f"a {role} worker, see {home / 'log'}",
        )
        (worker,) = supervisor.children()
        yield worker.pid
    finally:
        supervisor.stop(seconds=30)


async def _worked_off(file: Path, bootstrap: str, role: Role, pids: list[int]) -> Rate:
    """Send the backlog, wait until it is worked off, and return how fast its middle was."""
    probe = Probe(bootstrap, f"slowrank-{role}")
    try:
        places = await probe.partitions(set(READS[role]) & SENT)
        sent = asyncio.create_task(send(file, bootstrap, 0.0))
        looks: list[tuple[float, int, float]] = []
        total = None
        deadline = time.monotonic() + _DRAIN_SECONDS
        while total is None or looks[-1][1] < total:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{looks[-1][1]} of {total} records processed in {_DRAIN_SECONDS:.0f} s")
            await asyncio.sleep(_LOOK_SECONDS)
            committed = await probe.committed(f"slowrank-{role}")
            done = sum(offset for place, offset in committed.items() if place in places)
            looks.append((time.monotonic(), done, sum(usage(pid).seconds for pid in pids)))
            if total is None and sent.done():
                total = sum((await probe.ends(places)).values())
                assert sent.result()[1] == 0, "the broker refused records"
    finally:
        await probe.close()
    return middle(looks, total)


def middle(looks: Sequence[tuple[float, int, float]], total: int) -> Rate:
    """Return how fast the middle of ``total`` records was worked off, by looks at the time, the records
    processed and the CPU seconds spent. Raises ``ValueError`` where they show no progress in it.
    """
    within = [look for look in looks if FIRST * total < look[1] < LAST * total]
    if not within or within[0][1] == within[-1][1]:
        raise ValueError(
            f"{total} records were worked off too fast to measure: take more --nodes or --seconds"
        )
    (began, before, spent), (ended, after, spent_then) = within[0], within[-1]
    count = after - before
    return Rate(count / (ended - began), (spent_then - spent) / count)
