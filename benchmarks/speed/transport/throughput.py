"""CPU time of transport per record: `slowrank streams` beside a bare aiokafka consumer, on the same records.

Every consumer runs in a process of its own, decodes each record and checks its limits. Its CPU time counts
all threads, from the first record until two seconds after the last, when everything is committed. Of each run
it is checked that every record came exactly once and that the group has committed all of them. Needs a Kafka:
`python3 scripts/services.py run -- .venv/bin/python -m benchmarks transport`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import secrets
import statistics
import subprocess
import sys
import threading
import time

from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from benchmarks.speed.transport.consumers import CONSUMERS, consume
from slowrank.telemetry import NodeSample, encode
from slowrank.telemetry.columns import pack
from slowrank.telemetry.schema import GPU_V1, HOST_V1, NIC_V1

PARTITIONS = 8
LABELS = {
    "aiokafka": "bare aiokafka, `getmany(500)`, commit per batch",
    "waiting": "the same, with fetches that wait 250 ms for 1 MiB",
    "faust": "Faust agent, plain loop, Faust's own acks",
    "agent": "`slowrank streams`, `streams_transport = agent`",
    "batch": "`slowrank streams`, `streams_transport = batch` (default)",
}
LIVE = ("aiokafka", "waiting", "agent", "batch")


def record(n: int) -> bytes:
    """One sample of a node with eight GPUs and nine NIC ports."""
    gpus = [{c.name: 1000.0 * i + n for c in GPU_V1.columns} for i in range(8)]
    nics = [{c.name: 1000.0 * i + n for c in NIC_V1.columns} for i in range(9)]
    return encode(
        NodeSample(
            schema=1,
            cluster="bench",
            node=f"node-{n % 512}",
            boot_id="b",
            seq=n,
            ts=1.8e9 + n,
            gpu_ids=tuple(str(i) for i in range(8)),
            nic_ids=tuple(f"mlx5_{i}/1" for i in range(9)),
            gpu=pack(GPU_V1, gpus),
            nic=pack(NIC_V1, nics),
            host=pack(HOST_V1, [{c.name: 1.0 * n for c in HOST_V1.columns}]),
        )
    )


async def create(bootstrap: str, topic: str) -> None:
    """Create a topic."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    await admin.create_topics([NewTopic(topic, PARTITIONS, 1)])
    await admin.close()


async def drop(bootstrap: str, topic: str) -> None:
    """Delete a topic."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    await admin.delete_topics([topic])
    await admin.close()


async def fill(bootstrap: str, topic: str, total: int, rate: float | None = None) -> int:
    """Write ``total`` records, ``rate`` a second or as fast as possible; return the bytes of one."""
    values = [record(n) for n in range(total)]
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, linger_ms=50, compression_type="zstd")
    await producer.start()
    futures, started = [], time.monotonic()
    for n, value in enumerate(values):
        if rate is not None and n % 10 == 0:
            await asyncio.sleep(max(0.0, started + n / rate - time.monotonic()))
        futures.append(await producer.send(topic, value=value, key=f"node-{n % 512}".encode()))
    await asyncio.gather(*futures)
    await producer.stop()
    return len(values[0])


async def committed(bootstrap: str, group: str) -> int:
    """Return the sum of the offsets that a group has committed."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    offsets = await admin.list_consumer_group_offsets(group)
    await admin.close()
    return sum(found.offset for found in offsets.values())


class Run:
    """One consumer in a process of its own."""

    def __init__(self, kind: str, bootstrap: str, topic: str, total: int) -> None:
        self.total, self._bootstrap = total, bootstrap
        command = [sys.executable, "-m", "benchmarks", "transport", "--consume", kind]
        command += ["--bootstrap", bootstrap, "--topic", topic, "--records", str(total)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        # A consumer that gets stuck must not hold up the benchmark.
        self._guard = threading.Timer(180.0, self._process.kill)
        self._guard.daemon = True
        self._guard.start()

    def ready(self) -> None:
        """Wait until it has its partitions."""
        assert self._process.stdout is not None
        # Faust prints its progress before.
        while not (line := self._process.stdout.readline()).endswith("ready\n"):
            assert line, "the consumer ended"

    def result(self) -> dict[str, float]:
        """Wait for its figures. Raises ``AssertionError`` if records are missing, doubled or uncommitted."""
        out, _ = self._process.communicate()
        self._guard.cancel()
        assert self._process.returncode == 0, self._process.returncode
        found = json.loads(out.strip().splitlines()[-1])
        assert found["seen"] == found["distinct"] == self.total, found
        assert asyncio.run(committed(self._bootstrap, found["group"])) == self.total, found
        return {
            "us": 1e6 * found["cpu_seconds"] / self.total,
            "delay": found["delay"],
            "worst": found["worst"],
        }


def catch_up(bootstrap: str, records: int, rounds: int) -> None:
    """Let every consumer read the same full topic; print a table."""
    topic = f"bench-{secrets.token_hex(4)}"
    asyncio.run(create(bootstrap, topic))
    size = asyncio.run(fill(bootstrap, topic, records))
    found: dict[str, list[float]] = {kind: [] for kind in LABELS}
    for _ in range(rounds):
        for kind, times in found.items():
            run = Run(kind, bootstrap, topic, records)
            run.ready()
            times.append(run.result()["us"])
    asyncio.run(drop(bootstrap, topic))
    print(
        f"catch-up: {records} records of {size} bytes, {PARTITIONS} partitions, {rounds} interleaved rounds"
    )
    print("\n| consumer | µs per record | records per CPU-second | of bare |\n|---|---:|---:|---:|")
    reference = statistics.median(found["aiokafka"])
    for kind, times in found.items():
        us = statistics.median(times)
        print(f"| {LABELS[kind]} | {us:.1f} | {1e6 / us:,.0f} | {reference / us:.0%} |")


def live(bootstrap: str, rate: float, seconds: float) -> None:
    """Let every consumer read a topic while it is written; print a table."""
    total = int(rate * seconds)
    print(f"\nlive: {rate:,.0f} records a second for {seconds:.0f} s each")
    print("\n| consumer | µs per record | median delay | longest |\n|---|---:|---:|---:|")
    for kind in LIVE:
        topic = f"bench-{secrets.token_hex(4)}"
        asyncio.run(create(bootstrap, topic))
        run = Run(kind, bootstrap, topic, total)
        run.ready()
        asyncio.run(fill(bootstrap, topic, total, rate))
        got = run.result()
        asyncio.run(drop(bootstrap, topic))
        print(
            f"| {LABELS[kind]} | {got['us']:.1f} | {got['delay']:.2f} s | {got['worst']:.2f} s |", flush=True
        )


def main(argv: list[str]) -> int:
    """Measure all consumers, in catch-up and live."""
    parser = argparse.ArgumentParser(prog="benchmarks transport", description=__doc__)
    parser.add_argument("--bootstrap", default=os.environ.get("SLOWRANK_TEST_KAFKA", "127.0.0.1:9092"))
    parser.add_argument("--records", type=int, default=30_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rate", type=float, default=1000.0)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--consume", choices=CONSUMERS, help=argparse.SUPPRESS)
    parser.add_argument("--topic", default="", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.consume:
        consume(args.consume, args.bootstrap, args.topic, args.records)
    started = time.monotonic()
    catch_up(args.bootstrap, args.records, args.rounds)
    if args.seconds:
        live(args.bootstrap, args.rate, args.seconds)
    print(f"\n{time.monotonic() - started:.0f} s in all")
    return 0
