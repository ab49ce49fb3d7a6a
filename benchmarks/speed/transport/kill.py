"""Kill, stop and start workers at random while they read a topic; count records lost and records read twice.

A worker notes the number of each record in a file 20 ms after it has taken it, and only then are its outputs
durable: what was taken and not noted when the worker was killed must be read again by another one. At the end
every number must be in some file. Needs a Kafka:
`python3 scripts/services.py run -- .venv/bin/python -m benchmarks transport_kill`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import secrets
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import faust
from aiokafka import AIOKafkaProducer

from benchmarks.speed.transport.throughput import PARTITIONS, committed, create, drop
from slowrank.settings import Settings
from streams.runtime.faust_app import build, group
from streams.runtime.kafka.acks import Take
from streams.runtime.kafka.message import Message, PartitionId

NUMBER = struct.Struct(">q")

# From taking a record to its number in the file. Chosen: some hundred records are under way at any time.
NOTED_SECONDS = 0.02

# Records between two pauses, by which a worker takes ``rate`` records a second.
PAUSE_EVERY = 100

# After the last number, until all offsets must be committed. Chosen: several commit intervals.
COMMITTED_SECONDS = 15.0

Action = Literal["kill", "stop", "start"]
START: list[tuple[float, Action]] = [(0.0, "start"), (0.0, "start")]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Numbers of records: sent, in no file, in files more than once; and offsets committed."""

    sent: int
    lost: int
    twice: int
    committed: int


class Noting:
    """The work of a worker that notes the numbers of its records in a file."""

    def __init__(self, topic: str, file: Path, rate: float) -> None:
        self._topic, self._pause = topic, PAUSE_EVERY / rate
        self._file = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._taken: list[bytes] = []
        self._noted: asyncio.Future[None] | None = None
        self._count = 0

    @property
    def takes(self) -> Mapping[str, Take]:
        """The one topic."""
        return {self._topic: self._take}

    async def round(self, assigned: set[PartitionId]) -> None:
        """Nothing is driven by time."""

    def rebalanced(self) -> None:
        """Nothing depends on the assignment."""

    async def stop(self) -> None:
        """Note what is left."""
        if self._noted is not None:
            await self._noted

    async def _take(self, message: Message) -> asyncio.Future[None]:
        self._count += 1
        if self._count % PAUSE_EVERY == 0:
            await asyncio.sleep(self._pause)
        self._taken.append(message.value)
        if self._noted is None:
            loop = asyncio.get_running_loop()
            self._noted = loop.create_future()
            loop.call_later(NOTED_SECONDS, self._note)
        return self._noted

    def _note(self) -> None:
        taken, self._taken = self._taken, []
        noted, self._noted = self._noted, None
        os.write(self._file, b"".join(taken))
        if noted is not None:
            noted.set_result(None)


class Group:
    """The workers of one consumer group on one topic."""

    def __init__(self, bootstrap: str, folder: Path, *, rate: float, transport: str) -> None:
        self.topic = f"kill-{secrets.token_hex(4)}"
        self.folder = folder
        self._command = [sys.executable, "-m", "benchmarks", "transport_kill", "--bootstrap", bootstrap]
        self._command += ["--topic", self.topic, "--rate", str(rate), "--transport", transport]
        self._workers: list[subprocess.Popen[bytes]] = []
        self._started = 0

    def act(self, action: Action, chance: random.Random) -> None:
        """Start a worker, or kill (SIGKILL) or stop (SIGTERM) one; the last one is never ended."""
        if action == "start":
            file = self.folder / f"{self._started}.numbers"
            self._started += 1
            command = [*self._command, "--worker", str(file)]
            self._workers.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))
        elif len(self._workers) > 1:
            worker = self._workers.pop(chance.randrange(len(self._workers)))
            worker.kill() if action == "kill" else worker.terminate()
            worker.wait()

    def end(self) -> None:
        """Stop all workers."""
        for worker in self._workers:
            worker.terminate()
        for worker in self._workers:
            worker.wait()

    def has_noted(self, count: float) -> bool:
        """Return whether ``count`` numbers are in the files, repeated ones counted again."""
        return sum(f.stat().st_size for f in self.folder.glob("*.numbers")) >= count * NUMBER.size

    def counts(self, total: int) -> list[int]:
        """Return how often each number is in the files."""
        found = [0] * total
        for file in self.folder.glob("*.numbers"):
            data = file.read_bytes()
            for (n,) in NUMBER.iter_unpack(data[: len(data) // NUMBER.size * NUMBER.size]):
                found[n] += 1
        return found


async def send(bootstrap: str, topic: str, total: int) -> None:
    """Write numbered records."""
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, linger_ms=50)
    await producer.start()
    futures = [
        await producer.send(topic, value=NUMBER.pack(n), partition=n % PARTITIONS) for n in range(total)
    ]
    await asyncio.gather(*futures)
    await producer.stop()


def disturb(
    bootstrap: str,
    total: int,
    actions: Iterable[tuple[float, Action]],
    *,
    rate: float,
    transport: str = "batch",
    seconds: float = 900.0,
) -> Outcome:
    """Let two workers read ``total`` records at ``rate`` a second each; return what came of it.

    ``actions`` are done in order, each when that share of the numbers is in the files. What is in none after
    ``seconds`` is lost.
    """
    chance, deadline = random.Random(1), time.monotonic() + seconds
    with tempfile.TemporaryDirectory(prefix="slowrank-bench-") as folder:
        workers = Group(bootstrap, Path(folder), rate=rate, transport=transport)
        held = partial(_committed, bootstrap, workers.topic)
        asyncio.run(create(bootstrap, workers.topic))
        asyncio.run(send(bootstrap, workers.topic, total))
        try:
            for share, action in [*START, *actions]:
                _wait(partial(workers.has_noted, share * total), deadline)
                workers.act(action, chance)
            _wait(lambda: workers.has_noted(total) and 0 not in workers.counts(total), deadline)
            _wait(lambda: held() == total, min(deadline, time.monotonic() + COMMITTED_SECONDS))
        finally:
            workers.end()
        counts, offsets = workers.counts(total), held()
        asyncio.run(drop(bootstrap, workers.topic))
    return Outcome(total, counts.count(0), sum(n > 1 for n in counts), offsets)


def _wait(condition: Callable[[], bool], deadline: float) -> None:
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.5)


def _committed(bootstrap: str, topic: str) -> int:
    return asyncio.run(committed(bootstrap, group(_settings(bootstrap, topic), "detect")))


def _settings(bootstrap: str, topic: str, **more: Any) -> Settings:
    # Six seconds: the shortest session that brokers allow by default.
    return Settings(kafka_bootstrap=bootstrap, topic_prefix=f"{topic}-", streams_session_seconds=6, **more)


def work(settings: Settings, topic: str, file: Path, rate: float) -> None:
    """Be one worker; ends the process."""
    app = build(settings, "detect", Noting(topic, file, rate))
    faust.Worker(app, loglevel="error", redirect_stdouts=False).execute_from_commandline()


def at_random(count: int, seed: int) -> list[tuple[float, Action]]:
    """Return ``count`` actions at random shares of the records; every end is followed by a start."""
    chance = random.Random(seed)
    actions: list[tuple[float, Action]] = []
    for share in sorted(chance.uniform(0.02, 0.9) for _ in range(count)):
        ending: Action = chance.choice(("kill", "stop"))
        actions += [(share, ending), (share + 0.01, "start")]
    return actions


def main(argv: list[str]) -> int:
    """Disturb workers and print what came of it; status 1 when a record was lost."""
    parser = argparse.ArgumentParser(prog="benchmarks transport_kill", description=__doc__)
    parser.add_argument("--bootstrap", default=os.environ.get("SLOWRANK_TEST_KAFKA", "127.0.0.1:9092"))
    parser.add_argument("--records", type=int, default=300_000)
    parser.add_argument("--rate", type=float, default=2500.0, help="records a second of each worker")
    parser.add_argument("--ends", type=int, default=8, help="workers killed or stopped")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--transport", choices=("batch", "agent"), default="batch")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--topic", default="", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.worker:
        transport = {"streams_transport": args.transport, "streams_runtime_dir": args.worker.parent}
        work(_settings(args.bootstrap, args.topic, **transport), args.topic, args.worker, args.rate)
    actions = at_random(args.ends, args.seed)
    started = time.monotonic()
    found = disturb(args.bootstrap, args.records, actions, rate=args.rate, transport=args.transport)
    done = ", ".join(f"{action} at {share:.0%}" for share, action in actions)
    print(f"{args.transport}: {found.sent} records, two workers, then {done}")
    print(f"lost {found.lost}, read more than once {found.twice}, committed {found.committed}")
    print(f"{time.monotonic() - started:.0f} s in all")
    return int(found.lost > 0 or found.committed != found.sent)
