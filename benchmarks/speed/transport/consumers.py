"""The consumers that `benchmarks transport` compares, each the main function of a process."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import secrets
import shutil
import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import faust
from aiokafka import AIOKafkaConsumer

from slowrank.settings import Settings
from slowrank.telemetry import decode_sample
from streams.runtime.faust_app import build, group
from streams.runtime.kafka.acks import Take
from streams.runtime.kafka.batches.transport import FETCH_BYTES, FETCH_WAIT_SECONDS
from streams.runtime.kafka.message import Message, PartitionId

CONSUMERS = ("aiokafka", "waiting", "faust", "agent", "batch")

# After the last record. Chosen: two of the intervals at which workers commit.
SETTLE_SECONDS = 2.0


class Count:
    """Counts to ``total`` distinct records, then prints what the way there cost and ends the process."""

    def __init__(self, total: int, group_id: str, folder: Path) -> None:
        self.total, self.group, self._folder = total, group_id, folder
        self._seen, self._started = 0, 0.0
        self._delays: list[float] = []
        self._met = bytearray(total)
        self._ready = False

    def ready(self) -> None:
        """Report that partitions are assigned."""
        if not self._ready:
            self._ready = True
            print("ready", flush=True)

    def one(self, value: bytes, timestamp: float) -> None:
        """Count a record that was logged at ``timestamp`` (Unix seconds)."""
        self.ready()
        if not self._seen:
            self._started = cpu_seconds()
        self._met[decode_sample(value).seq] = 1
        self._seen += 1
        if self._seen % 50 == 0:
            self._delays.append(time.time() - timestamp)
        if self._seen == self.total:
            asyncio.get_running_loop().call_later(SETTLE_SECONDS, self._end)

    def _end(self) -> None:
        found = {
            "cpu_seconds": cpu_seconds() - self._started,
            "seen": self._seen,
            "distinct": sum(self._met),
            "group": self.group,
            "delay": statistics.median(self._delays),
            "worst": max(self._delays),
        }
        print(json.dumps(found), flush=True)
        shutil.rmtree(self._folder, ignore_errors=True)
        os._exit(0)


class Counting:
    """The work of an app that only counts."""

    def __init__(self, topic: str, count: Count) -> None:
        self._topic, self._count = topic, count

    @property
    def takes(self) -> Mapping[str, Take]:
        """The one topic."""
        return {self._topic: self._take}

    async def round(self, assigned: set[PartitionId]) -> None:
        """Report the first assignment."""
        if assigned:
            self._count.ready()

    def rebalanced(self) -> None:
        """Nothing depends on the assignment."""

    async def stop(self) -> None:
        """Nothing is open."""

    async def _take(self, message: Message) -> None:
        self._count.one(message.value, message.timestamp)


def cpu_seconds() -> float:
    """CPU time of this process, user and system, all threads."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def bare(bootstrap: str, topic: str, count: Count, *, waiting: bool) -> None:
    """Consume with aiokafka alone; ``waiting``: with fetches like those of `slowrank streams`."""
    fetches = {"fetch_min_bytes": FETCH_BYTES, "fetch_max_wait_ms": int(1000 * FETCH_WAIT_SECONDS)}
    consumer = AIOKafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        group_id=count.group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        **(fetches if waiting else {}),
    )
    await consumer.start()
    while True:
        for batch in (await consumer.getmany(timeout_ms=1000, max_records=500)).values():
            for message in batch:
                count.one(message.value, message.timestamp / 1000.0)
        if consumer.assignment():
            count.ready()
            await consumer.commit()


def plain_faust(topic: str, count: Count, settings: Settings) -> faust.App:
    """Return a Faust app with one agent that leaves the acks to Faust."""
    app = build(settings, "detect", Counting("unused", count))
    app.agents.clear()
    raw = app.topic(topic, key_type=bytes, key_serializer="raw", value_type=bytes, value_serializer="raw")

    async def agent(stream: Any) -> None:
        async for event in stream.events():
            count.one(event.value, event.message.timestamp)

    app.agent(raw, name="plain", concurrency=1)(agent)
    return app


def consume(kind: str, bootstrap: str, topic: str, total: int) -> None:
    """Be one consumer; prints its result and ends the process."""
    folder = Path(tempfile.mkdtemp(prefix="slowrank-bench-"))
    transport: Literal["batch", "agent"] = "batch" if kind == "batch" else "agent"
    settings = Settings(
        kafka_bootstrap=bootstrap,
        topic_prefix=f"bench-{secrets.token_hex(4)}-",
        streams_runtime_dir=folder,
        streams_transport=transport,
    )
    count = Count(total, group(settings, "detect"), folder)
    if kind in ("aiokafka", "waiting"):
        asyncio.run(bare(bootstrap, topic, count, waiting=kind == "waiting"))
    app = (
        plain_faust(topic, count, settings)
        if kind == "faust"
        else build(settings, "detect", Counting(topic, count))
    )
    faust.Worker(app, loglevel="error", redirect_stdouts=False).execute_from_commandline()
