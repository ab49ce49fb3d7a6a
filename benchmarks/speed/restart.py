"""How long a detecting worker is without state after a restart: from its snapshots, and from the log alone.

A log in memory, in compressed batches as Kafka's, of nodes with 8 GPUs and 8 NIC ports and of jobs of 64
nodes, at one record a second. A worker takes it and writes its snapshots a minute before its end, where it is
killed: that is the worst case of snapshots every minute. Two others build their state, with the snapshots and
without. All three then take the rest, in which a fault ends and another begins; the suspicions of all must be
the same. Times are of the process that builds, CPU and wall clock.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import tempfile
import time
import zlib
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import cramjam
import msgspec

from simulator import Cluster, ClusterSpec, Fault, JobSpec
from slowrank.telemetry import NodeEvent, Suspicion, decode_message, encode
from streams.config.settings import Tuning
from streams.runtime.detect_worker import Detect
from streams.runtime.gc_tuning import collect_less_often
from streams.runtime.kafka.message import Message, Outgoing, PartitionId
from streams.runtime.kafka.record_producer import key_of, topic_of
from streams.runtime.monitoring.health import Health
from streams.runtime.partitions.context import WorkerContext
from streams.runtime.snapshots.identity import identity
from streams.runtime.snapshots.snapshot_folder import SnapshotFolder
from streams.runtime.snapshots.snapshot_writer import SnapshotWriter

PARTITIONS = 4
BATCH = 100
JOB_NODES = 64

# Seconds between snapshots, as by default.
INTERVAL = 60.0

# Of processor time until the state is back, for 256 nodes and ten minutes of log; nothing is waited for.
GOAL_SECONDS = 10.0


class Batches:
    """The log: batches of messages by partition, compressed, and their first offsets."""

    def __init__(self) -> None:
        self._open: dict[PartitionId, list[Message]] = defaultdict(list)
        self._closed: dict[PartitionId, list[tuple[int, float, bytes]]] = defaultdict(list)
        self.ends: dict[PartitionId, int] = defaultdict(int)

    def append(self, place: PartitionId, logged: float, value: bytes) -> None:
        """Add a message."""
        self._open[place].append(Message(*place, self.ends[place], logged, value))
        self.ends[place] += 1
        if len(self._open[place]) == BATCH:
            self.close(place)

    def close(self, place: PartitionId) -> None:
        """Compress what was added since the last batch."""
        batch = self._open.pop(place, [])
        if batch:
            packed = msgspec.msgpack.encode([(m.offset, m.timestamp, m.value) for m in batch])
            data = bytes(cramjam.zstd.compress(packed, level=1))
            self._closed[place].append((batch[0].offset, batch[-1].timestamp, data))

    async def read_on(self, topic: str, partition: int, first: int, upto: int) -> AsyncIterator[Message]:
        """Yield the messages from an offset on."""
        place = topic, partition
        for begins, _, data in self._closed[place]:
            if begins + BATCH <= first or begins >= upto:
                continue
            for offset, timestamp, value in msgspec.msgpack.decode(cramjam.zstd.decompress(data)):
                if first <= offset < upto:
                    yield Message(*place, offset, timestamp, value)

    async def reread(self, topic: str, partition: int, since: float, upto: int) -> AsyncIterator[Message]:
        """Yield the messages from a time on."""
        starts = [begins for begins, last, _ in self._closed[topic, partition] if last >= since]
        async for message in self.read_on(topic, partition, min(starts, default=upto), upto):
            if message.timestamp >= since:
                yield message


@dataclass
class Worker:
    """A detecting worker on the log, with a folder of snapshots or none."""

    log: Batches
    folder: Path | None
    now: float = 0.0
    found: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.health = Health("detect", time.monotonic)
        self.snapshots = None
        if self.folder is not None:
            self.snapshots = SnapshotFolder(
                self.folder,
                identity=identity(Tuning()),
                read_on=self.log.read_on,
                counts=self.health.snapshots,
                now=lambda: self.now,
            )
        context = WorkerContext(
            name=lambda topic: topic,
            reread=self.log.reread,
            producer=self,
            health=self.health,
            now=lambda: self.now,
            window=600.0,
            snapshots=self.snapshots,
        )
        self.detect = Detect(context, tuning=Tuning())

    def post(self, messages: Sequence[Outgoing]) -> asyncio.Future[None]:
        """Keep the suspicions."""
        self.found += [m.value for m in messages if isinstance(decode_message(m.value), Suspicion)]
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done

    async def take(self, upto: dict[PartitionId, int], logged_before: float) -> None:
        """Take what was logged before a time, second by second, one partition after the other."""
        at = self.detect.partitions.positions
        pending = {p: self.log.read_on(*p, at.get(p, 0), upto[p]) for p in sorted(upto)}
        heads = {p: await anext(messages, None) for p, messages in pending.items()}
        while live := [m.timestamp for m in heads.values() if m is not None and m.timestamp < logged_before]:
            self.now = math.floor(min(live)) + 1.0
            for place in sorted(heads):
                while (head := heads[place]) is not None and head.timestamp < min(self.now, logged_before):
                    await self.detect.take(head)
                    heads[place] = await anext(pending[place], None)

    async def build(self, committed: dict[PartitionId, int], now: float) -> None:
        """Build the state of all partitions, as a worker does that has just started."""
        self.now = now
        for place in sorted(committed):
            await self.detect.prepare(place, committed[place], timestamp=now)

    async def save(self) -> None:
        """Write all snapshots."""
        assert self.snapshots is not None
        writer = SnapshotWriter(
            self.detect.partitions,
            self.snapshots,
            durable=lambda: self.post([]),
            counts=self.health.snapshots,
            clock=time.monotonic,
            seconds=INTERVAL,
        )
        await writer.stop()


def main(argv: Sequence[str]) -> int:
    """Print a table; return 1 when the goal is missed or the suspicions differ."""
    parser = argparse.ArgumentParser(prog="benchmarks restart", description=__doc__)
    parser.add_argument("--nodes", type=int, default=256)
    parser.add_argument("--seconds", type=int, default=600, help="of log before the restart")
    args = parser.parse_args(argv)
    collect_less_often()
    return asyncio.run(_run(args.nodes, float(args.seconds)))


async def _run(nodes: int, seconds: float) -> int:
    log, start = _recorded(nodes, seconds + INTERVAL)
    killed = start + seconds
    with tempfile.TemporaryDirectory() as name:
        whole = Worker(log, Path(name))
        await whole.take(log.ends, killed - INTERVAL)
        began = time.process_time()
        await whole.save()
        cost = time.process_time() - began
        await whole.take(log.ends, killed)
        committed, before = whole.detect.partitions.positions, len(whole.found)
        messages = sum(committed.values())
        print(f"{nodes} nodes, {seconds:.0f} s of log, {messages:,} messages, {before} suspicions")
        counts = whole.health.snapshots
        size, share = sum(counts.sizes.values()) / 1e6, cost / INTERVAL
        print(
            f"snapshots: {counts.written} files, {size:.1f} MB, {cost:.2f} s of CPU ({share:.1%} of a core)\n"
        )
        print("| state from | CPU s | wall s | then the same suspicions |")
        print("|---|---:|---:|---|")
        workers = {
            "snapshots and the last minute": Worker(log, Path(name)),
            "the log alone": Worker(log, None),
        }
        spent = {kind: await _built(worker, committed, killed) for kind, worker in workers.items()}
        await whole.take(log.ends, math.inf)
        reached = True
        for kind, worker in workers.items():
            await worker.take(log.ends, math.inf)
            same = worker.found == whole.found[before:]
            reached &= same
            cpu, wall = spent[kind]
            print(
                f"| {kind} | {cpu:.1f} | {wall:.1f} | {'yes' if same else 'NO'}, {len(worker.found)} |",
                flush=True,
            )
        loaded = workers["snapshots and the last minute"].health.snapshots.loaded
        assert loaded == len(committed), f"{loaded} of {len(committed)} snapshots were used"
    cpu, _ = spent["snapshots and the last minute"]
    return int(not reached or cpu > GOAL_SECONDS)


async def _built(worker: Worker, committed: dict[PartitionId, int], now: float) -> tuple[float, float]:
    began = time.process_time(), time.perf_counter()
    await worker.build(committed, now)
    return time.process_time() - began[0], time.perf_counter() - began[1]


def _recorded(nodes: int, seconds: float) -> tuple[Batches, float]:
    """Return the log and when it begins: jobs over all nodes, three faults around the moment of the kill."""
    size = min(JOB_NODES, nodes)
    jobs = tuple(JobSpec(dp=size, tp=8, job_id=f"job-{i}", first_node=i * size) for i in range(nodes // size))
    spec, kill = ClusterSpec(nodes=nodes, gpus=8, nics=8, jobs=jobs), seconds - INTERVAL
    faults = (
        Fault(kind="thermal_throttle", node=3, gpu=2, onset=kill - 150.0, magnitude=1.3),
        Fault(kind="clock_lock", node=9, gpu=1, onset=kill - 20.0, magnitude=1.3),
        Fault(kind="node_silent", node=20, onset=kill - 8.0),
        Fault(kind="nic_flap", node=30, gpu=0, onset=kill + 10.0, duration=30.0),
    )
    log = Batches()
    for record in Cluster(spec, seed=7, faults=faults).run(seconds):
        if not isinstance(record, NodeEvent):
            place = topic_of(record), zlib.crc32(key_of(record)) % PARTITIONS
            log.append(place, record.ts, encode(record))
    for place in list(log.ends):
        log.close(place)
    return log, spec.start
