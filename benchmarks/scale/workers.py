"""What more workers bring: the rate at which one, two or more work off the same backlog, and the ratio.

The telemetry of a fleet of 8-GPU nodes waits in Kafka; the workers of one role read it. Every worker may
use the same share of a core (a CPU quota), so that broker and database have processors left on a small
machine, where a second worker would otherwise compete with them and not with the first. The clock runs from
when all is in the log, in the order in which it was made, until all is committed: workers whose partitions
hold less wait for the others at the end. Needs root.
"""

from __future__ import annotations

import argparse
import asyncio
import json
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
# Of the quota, while the backlog is sent: enough to stay in the group, too little to read much of it.
HELD = 0.1
# Commits come once a second, which must be little of what is measured.
SHORTEST_SECONDS = 10.0
_PERIOD = 100_000
_LOOK_SECONDS = 0.5
_START_SECONDS = 90.0
_DRAIN_SECONDS = 600.0


class Rate(NamedTuple):
    """Records a second of all workers together, the CPU seconds for each, and of which share of the records
    and of the time each worker took and was busy.
    """

    records: float
    cpu_seconds: float
    taken: tuple[float, ...]
    busy: tuple[float, ...]


class Look(NamedTuple):
    """What was processed of a backlog at a time (monotonic seconds), and each worker's CPU seconds so far."""

    at: float
    done: int
    spent: tuple[float, ...]


def main(argv: list[str]) -> int:
    """Print the rates; return 1 when two workers are not 1.8 times as fast as one."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks workers", description=__doc__)
    parser.add_argument("--nodes", type=int, default=768)
    parser.add_argument("--seconds", type=int, default=90, help="of telemetry in the backlog")
    parser.add_argument("--partitions", type=int, default=16)
    parser.add_argument("--job-nodes", type=int, default=16, help="a job is in one partition: few are uneven")
    parser.add_argument("--quota", type=float, default=0.3, help="share of a core that a worker may use")
    parser.add_argument("--workers", default="1,2", help="numbers of workers, with commas between")
    options = parser.parse_args(argv)
    counts = [int(count) for count in options.workers.split(",")]
    if counts[0] != 1:
        parser.error("argument --workers: begin with 1, which the others are compared with")
    with tempfile.TemporaryDirectory(prefix="slowrank-workers-") as folder:
        file = Path(folder) / "load"
        start = float(int(time.time())) - options.seconds
        load = Load(
            nodes=options.nodes,
            seconds=options.seconds,
            partitions=options.partitions,
            start=start,
            unit=options.job_nodes,
        )
        record(load, file)
        print(
            f"{load.nodes} nodes, {load.seconds} s, {load.partitions} partitions, jobs of {load.unit} nodes"
        )
        print(f"each worker may use {options.quota} of a core")
        print(
            "| role | workers | records/s | times one | µs of CPU a record | % of records | % of quota used |"
        )
        print("|---|---:|---:|---:|---:|---|---|")
        reached = True
        for role in ROLES:
            rates = {
                n: _measured(Path(folder), file, role, n, load.partitions, options.quota) for n in counts
            }
            for number, rate in rates.items():
                times = rate.records / rates[1].records
                taken = ", ".join(f"{100 * share:.0f}" for share in rate.taken)
                busy = ", ".join(f"{100 * share / options.quota:.0f}" for share in rate.busy)
                cells = f"{rate.records:,.0f} | {times:.2f} | {1e6 * rate.cpu_seconds:.0f}"
                print(f"| {role} | {number} | {cells} | {taken} | {busy} |", flush=True)
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
        homes = [home / str(number) for number in range(workers)]
        pids = [stack.enter_context(_worker(folder, role, environment)) for folder in homes]
        # Not before they run: what they import would take most of the time.
        with _quotas(pids, HELD * quota):
            # Of several connections one would get ahead, and the log be out of order by seconds.
            _, refused, _ = asyncio.run(send(file, brokers.bootstrap, 0.0, connections=1))
        assert not refused, "the broker refused records"
        with _quotas(pids, quota):
            looks = asyncio.run(_worked_off(brokers.bootstrap, role, pids))
        # Written once a second.
        time.sleep(2.0)
        return rate(looks, [_taken(folder) for folder in homes])


@contextmanager
def _quotas(pids: Sequence[int], cores: float) -> Iterator[None]:
    with ExitStack() as stack:
        for pid in pids:
            stack.enter_context(cpu_quota(pid, microseconds=int(cores * _PERIOD), period=_PERIOD))
        yield


def _taken(home: Path) -> int:
    """Return how many records a worker has taken."""
    (health,) = home.glob("streams-*.json")
    events: dict[str, int] = json.loads(health.read_text())["events"]
    return sum(count for topic, count in events.items() if topic in SENT)


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


async def _worked_off(bootstrap: str, role: Role, pids: Sequence[int]) -> list[Look]:
    """Look at the backlog until it is worked off."""
    probe = Probe(bootstrap, f"slowrank-{role}")
    try:
        places = await probe.partitions(set(READS[role]) & SENT)
        total = sum((await probe.ends(places)).values())
        looks: list[Look] = []
        deadline = time.monotonic() + _DRAIN_SECONDS
        while not looks or looks[-1].done < total:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{looks[-1].done} of {total} records processed in {_DRAIN_SECONDS:.0f} s")
            committed = await probe.committed(f"slowrank-{role}")
            done = sum(offset for place, offset in committed.items() if place in places)
            looks.append(Look(time.monotonic(), done, tuple(usage(pid).seconds for pid in pids)))
            await asyncio.sleep(_LOOK_SECONDS)
    finally:
        await probe.close()
    return looks


def rate(looks: Sequence[Look], taken: Sequence[int]) -> Rate:
    """Return how fast a backlog was worked off from the first look to the last, and what each of the workers
    had ``taken`` in the end. Raises ``ValueError`` where that was too fast to measure.
    """
    first, last = looks[0], looks[-1]
    seconds, records = last.at - first.at, last.done - first.done
    if seconds < SHORTEST_SECONDS or not records:
        raise ValueError(
            f"{last.done} records were worked off too fast to measure: take more --nodes or --seconds"
        )
    spent = [after - before for before, after in zip(first.spent, last.spent, strict=True)]
    return Rate(
        records / seconds,
        sum(spent) / records,
        tuple(count / sum(taken) for count in taken),
        tuple(cpu / seconds for cpu in spent),
    )
