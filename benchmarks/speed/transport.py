"""CPU time of transport per record: a Faust agent beside a bare aiokafka consumer, same topic, same records.

Every consumer runs in a process of its own, decodes each record and checks its limits; its CPU time counts
from the first record to the last, all threads. Needs a Kafka: ``make services`` and SLOWRANK_TEST_KAFKA.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import faust
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from slowrank.settings import Settings
from slowrank.telemetry import NodeSample, decode_sample, encode
from slowrank.telemetry.columns import pack
from slowrank.telemetry.schema import GPU_V1, HOST_V1, NIC_V1
from streams.runtime.faust_app import Take, build
from streams.runtime.kafka.dead_letters import Message
from streams.runtime.kafka.offsets import PartitionId

PARTITIONS = 8
CONSUMERS = ("aiokafka", "faust", "slowrank")
LABELS = {
    "aiokafka": "bare aiokafka, `getmany(500)`, commit per batch",
    "faust": "Faust agent, plain loop, Faust's own acks",
    "slowrank": "Faust agent as `slowrank streams` runs it (`streams.runtime.faust_app`)",
}


class Count:
    """Counts to ``total`` and prints what the way there cost."""

    def __init__(self, total: int) -> None:
        self.total, self.seen, self.started = total, 0, 0.0

    def one(self, value: bytes) -> None:
        if not self.seen:
            self.started = cpu_seconds()
        decode_sample(value)
        self.seen += 1
        if self.seen == self.total:
            print(json.dumps({"cpu_seconds": cpu_seconds() - self.started}), flush=True)
            os._exit(0)


class Counting:
    """The work of an app that only counts."""

    def __init__(self, topic: str, count: Count) -> None:
        self._topic, self._count = topic, count

    @property
    def takes(self) -> Mapping[str, Take]:
        return {self._topic: self._take}

    async def round(self, assigned: set[PartitionId]) -> None: ...

    def rebalanced(self) -> None: ...

    async def stop(self) -> None: ...

    async def _take(self, message: Message) -> None:
        self._count.one(message.value)


def cpu_seconds() -> float:
    """CPU time of this process, user and system, all threads."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


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


async def fill(bootstrap: str, topic: str, total: int) -> int:
    """Create the topic, write ``total`` records; return the bytes of one."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    await admin.create_topics([NewTopic(topic, PARTITIONS, 1)])
    await admin.close()
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, linger_ms=50, compression_type="zstd")
    await producer.start()
    futures = []
    for n in range(total):
        value = record(n)
        futures.append(await producer.send(topic, value=value, key=f"node-{n % 512}".encode()))
    await asyncio.gather(*futures)
    await producer.stop()
    return len(value)


async def drop(bootstrap: str, topic: str) -> None:
    """Delete the topic."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    await admin.delete_topics([topic])
    await admin.close()


async def bare(bootstrap: str, topic: str, count: Count) -> None:
    """Consume with aiokafka alone."""
    consumer = AIOKafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        group_id=f"bench-{secrets.token_hex(4)}",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    await consumer.start()
    while True:
        for batch in (await consumer.getmany(timeout_ms=1000, max_records=500)).values():
            for message in batch:
                count.one(message.value)
        await consumer.commit()


def plain_faust(bootstrap: str, topic: str, count: Count, settings: Settings) -> faust.App:
    """Return a Faust app with one agent that leaves the acks to Faust."""
    app = build(settings, "detect", Counting("unused", count))
    app.agents.clear()
    raw = app.topic(topic, key_type=bytes, key_serializer="raw", value_type=bytes, value_serializer="raw")

    async def agent(stream: Any) -> None:
        async for value in stream:
            count.one(value)

    app.agent(raw, name="plain", concurrency=1)(agent)
    return app


def consume(kind: str, bootstrap: str, topic: str, total: int) -> None:
    """Be one consumer; prints its result and ends the process."""
    count = Count(total)
    if kind == "aiokafka":
        asyncio.run(bare(bootstrap, topic, count))
    settings = Settings(
        kafka_bootstrap=bootstrap,
        topic_prefix=f"bench-{secrets.token_hex(4)}-",
        streams_runtime_dir=Path(tempfile.mkdtemp(prefix="slowrank-bench-")),
    )
    if kind == "faust":
        app = plain_faust(bootstrap, topic, count, settings)
    else:
        app = build(settings, "detect", Counting(topic, count))
    faust.Worker(app, loglevel="error", redirect_stdouts=False).execute_from_commandline()


def measure(kind: str, bootstrap: str, topic: str, total: int) -> float:
    """Run one consumer in its own process; return records per CPU second."""
    command = [sys.executable, "-m", "benchmarks", "transport", "--consume", kind]
    command += ["--bootstrap", bootstrap, "--topic", topic, "--records", str(total)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    return float(total / json.loads(done.stdout.strip().splitlines()[-1])["cpu_seconds"])


def main(argv: list[str]) -> int:
    """Measure all consumers in interleaved rounds and print a table."""
    parser = argparse.ArgumentParser(prog="benchmarks transport", description=__doc__)
    parser.add_argument("--bootstrap", default=os.environ.get("SLOWRANK_TEST_KAFKA", "127.0.0.1:9092"))
    parser.add_argument("--records", type=int, default=30_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--consume", choices=CONSUMERS, help=argparse.SUPPRESS)
    parser.add_argument("--topic", default=f"bench-{secrets.token_hex(4)}", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.consume:
        consume(args.consume, args.bootstrap, args.topic, args.records)
    started = time.monotonic()
    size = asyncio.run(fill(args.bootstrap, args.topic, args.records))
    rates: dict[str, list[float]] = {kind: [] for kind in CONSUMERS}
    for _ in range(args.rounds):
        for kind in CONSUMERS:
            rates[kind].append(measure(kind, args.bootstrap, args.topic, args.records))
    asyncio.run(drop(args.bootstrap, args.topic))
    reference = statistics.median(rates["aiokafka"])
    print(
        f"{args.records} records of {size} bytes, {PARTITIONS} partitions, {args.rounds} interleaved rounds"
    )
    print("\n| consumer | records per CPU-second | µs per record | of bare |\n|---|---:|---:|---:|")
    for kind in CONSUMERS:
        rate = statistics.median(rates[kind])
        print(f"| {LABELS[kind]} | {rate:,.0f} | {1e6 / rate:.1f} | {rate / reference:.0%} |")
    print(f"\n{time.monotonic() - started:.0f} s in all")
    return 0
