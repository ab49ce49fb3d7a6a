"""The same records as the workers take them: cut differently, in another order, over several partitions."""

import asyncio
import itertools
import math
import zlib
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence

import msgspec
import numpy as np

from alerts.finding import Finding
from detectors.fleet.chronic import Pace
from slowrank.telemetry import (
    JobEnded,
    JobSteps,
    MinuteMeans,
    NodeSample,
    Record,
    StageMessage,
    decode_message,
    decode_steps_or_end,
    encode,
)
from slowrank.telemetry.columns import Value, pack, step_schema_of, unpack
from slowrank.telemetry.schema import STEP_SCHEMAS
from store.telemetry.buckets import JobEvent
from streams.config.settings import Tuning
from streams.config.stages import finding_stage, node_stage
from streams.files.replay import as_ndjson, final_versions, findings_of
from streams.pipeline import local_pipeline
from streams.runtime.detect_worker import Detect
from streams.runtime.kafka.message import Message, Outgoing, PartitionId
from streams.runtime.kafka.record_producer import key_of, topic_of
from streams.runtime.monitoring.health import Health
from streams.runtime.partitions.context import WorkerContext
from streams.runtime.partitions.partition import FindingPartition, PartitionState
from streams.runtime.partitions.reorder_buffer import LONGEST_SECONDS
from streams.stage import Output


def in_one(records: Iterable[Record]) -> bytes:
    """The findings of the pipeline in one process, as a backtest writes them."""
    return as_ndjson(final_versions(findings_of(records, local_pipeline())))


class Workers:
    """A detecting worker on topics of so many partitions, and behind it the lane that makes the findings."""

    def __init__(self, partitions: int, tuning: Tuning | None = None) -> None:
        self._partitions, self._now = partitions, 0.0
        tuning = tuning or Tuning()
        self._ends: dict[PartitionId, int] = defaultdict(int)
        self._sent: list[Outgoing] = []
        self._detect = Detect(
            WorkerContext(
                name=lambda topic: topic,
                reread=_nothing,
                producer=self,
                health=Health("detect", lambda: self._now),
                now=lambda: self._now,
                window=600.0,
            ),
            tuning=tuning,
        )
        self._finding = FindingPartition("suspicions:0", finding_stage(tuning))
        self.versions: list[Finding] = []

    def findings(self, records: Sequence[Record]) -> bytes:
        """Take all records in the order given; return the findings as a backtest writes them."""
        asyncio.run(self._take_all(records))
        return as_ndjson(final_versions(self.versions))

    def findings_in_batches(self, records: Sequence[Record], seconds: float) -> bytes:
        """Take what is logged in each span of so many seconds together, one partition after the other."""
        asyncio.run(self._take_batches(records, seconds))
        return as_ndjson(final_versions(self.versions))

    def findings_in_bulk(self, records: Sequence[Record], at_once: int) -> bytes:
        """Do so where all has been in the topics for long, and comes by so many messages of a partition."""
        asyncio.run(self._take_bulk(records, at_once))
        return as_ndjson(final_versions(self.versions))

    def post(self, messages: Sequence[Outgoing]) -> asyncio.Future[None]:
        """Be the way to the topic of suspicions, which is always there."""
        self._sent += messages
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done

    async def _take_all(self, records: Sequence[Record]) -> None:
        for record in records:
            place = self._place(record)
            looked, self._now = self._now, max(self._now, record.ts)
            message = Message(*place, self._ends[place], self._now, encode(record))
            self._ends[place] += 1
            await self._detect.take(message)
            await self._take_ends()
            if math.floor(self._now) > math.floor(looked):
                self._detect.idle(self._ends, self._ends)
            self._judge()
        self._end(float(math.ceil(self._now)))

    async def _take_batches(self, records: Sequence[Record], seconds: float) -> None:
        for _, fetched in itertools.groupby(records, key=lambda record: record.ts // seconds):
            batches: dict[PartitionId, list[Message]] = defaultdict(list)
            looked = self._now
            for record in fetched:
                place = self._place(record)
                self._now = max(self._now, record.ts)
                batches[place].append(Message(*place, self._ends[place], self._now, encode(record)))
                self._ends[place] += 1
            for place in sorted(batches):
                for message in batches[place]:
                    await self._detect.take(message)
                    await self._take_ends()
            if math.floor(self._now) > math.floor(looked):
                self._detect.idle(self._ends, self._ends)
            self._judge()
        self._end(float(math.ceil(self._now)))

    async def _take_bulk(self, records: Sequence[Record], at_once: int) -> None:
        self._now = logged = records[-1].ts + 1.0
        messages: dict[PartitionId, list[Message]] = defaultdict(list)
        for record in records:
            place = self._place(record)
            messages[place].append(Message(*place, self._ends[place], logged, encode(record)))
            self._ends[place] += 1
        while any(messages.values()):
            for place in sorted(messages):
                batch, messages[place] = messages[place][:at_once], messages[place][at_once:]
                for message in batch:
                    # A thousand messages a second, and a round of the worker in each.
                    looked, self._now = self._now, self._now + 0.001
                    await self._detect.take(message)
                    await self._take_ends()
                    if math.floor(self._now) > math.floor(looked):
                        self._detect.idle(self._ends, self._ends)
                    self._judge()
        # After so many seconds of quiet the slowest partition no longer tells the time of the others.
        for _ in range(20):
            self._now += 1.0
            self._detect.idle(self._ends, self._ends)
            self._judge()
        self._end(float(math.ceil(records[-1].ts)))

    async def _take_ends(self) -> None:
        """Take what events of nodes put into the topic of steps: the ends of jobs."""
        ends = [outgoing for outgoing in self._sent if outgoing.topic == "job-steps"]
        self._sent = [outgoing for outgoing in self._sent if outgoing.topic != "job-steps"]
        for end in ends:
            ended = decode_steps_or_end(end.value)
            place = self._place_of(end.topic, ended.job_id.encode())
            self._ends[place] += 1
            await self._detect.take(Message(*place, self._ends[place] - 1, self._now, end.value))

    def _place(self, record: Record) -> PartitionId:
        return self._place_of(topic_of(record), key_of(record))

    def _place_of(self, topic: str, key: bytes) -> PartitionId:
        return topic, zlib.crc32(key) % self._partitions

    def _end(self, end: float) -> None:
        self._now += LONGEST_SECONDS
        self._detect.idle(self._ends, self._ends)
        # A file ends, a log does not: here alone somebody knows that no more will come.
        for lane in self._detect.partitions.states.values():
            self._sent += [_outgoing(s) for s in lane.reach(end) if not isinstance(s, Finding)]
        self._judge()
        self._keep(self._finding.stage.tick(end))

    def _judge(self) -> None:
        for outgoing in self._sent:
            assert outgoing.topic == "suspicions", outgoing
            self._keep(self._finding.process(decode_message(outgoing.value), self._now))
        self._sent.clear()

    def _keep(self, outputs: Iterable[Output | Pace | JobEvent]) -> None:
        self.versions += [f for f in outputs if isinstance(f, Finding)]


def last_versions(findings: Iterable[Finding]) -> bytes:
    """What became of each finding as it is written, also of those that were only suspected."""
    return as_ndjson({f.id: f for f in findings}.values())


def sent_by_nodes(samples: Iterable[NodeSample], tuning: Tuning, partitions: int) -> list[StageMessage]:
    """The topic of suspicions: what so many node stages send, with their heartbeats; by the last digit of
    the node's name."""
    lanes = [PartitionState(f"node-samples:{n}", node_stage(tuning)) for n in range(partitions)]
    return [
        s
        for r in samples
        for s in lanes[int(r.node[-1]) % partitions].process(r, r.ts)
        if not isinstance(s, Finding | JobEnded)
    ]


def minute_sent_at(message: Message) -> float:
    """When a node's minute in the topic of suspicions was sent; 0 for anything else."""
    sent = decode_message(message.value)
    return sent.ts if isinstance(sent, MinuteMeans) else 0.0


def _outgoing(s: StageMessage) -> Outgoing:
    return Outgoing("suspicions", s.cluster.encode(), encode(s), [])


async def _nothing(topic: str, partition: int, since: float, upto: int) -> AsyncIterator[Message]:
    nothing: tuple[Message, ...] = ()
    for message in nothing:
        yield message


def regrouped(records: Iterable[Record], seconds: float) -> list[Record]:
    """The same step rows, sent every so many seconds by each node; 0: every row by itself."""
    steps = [r for r in records if isinstance(r, JobSteps)]
    rest = [r for r in records if not isinstance(r, JobSteps)]
    return sorted([*rest, *_cut(steps, seconds)], key=lambda r: r.ts)


def _cut(steps: Iterable[JobSteps], seconds: float) -> Iterator[JobSteps]:
    heads: dict[object, JobSteps] = {}
    gathered: dict[object, list[dict[str, Value]]] = defaultdict(list)
    for record in steps:
        for number, row in enumerate(unpack(STEP_SCHEMAS[record.schema].rows, record.rows)):
            when = (record.seq, number) if seconds == 0 else float(str(row["ts"])) // seconds
            key: object = (record.cluster, record.job_id, record.attempt, record.node, when)
            heads.setdefault(key, record)
            gathered[key].append(row)
    for group, rows in gathered.items():
        head = heads[group]
        rows.sort(key=lambda row: float(str(row["ts"])))
        schema = step_schema_of(rows)
        yield msgspec.structs.replace(
            head,
            schema=schema.id,
            row_bytes=schema.row_bytes,
            ts=float(str(rows[-1]["ts"])),
            rows=pack(schema.rows, rows),
        )


def shuffled(records: Sequence[Record], seconds: float, seed: int) -> list[Record]:
    """The records of each sender in order, those of different senders up to so many seconds apart."""
    rng = np.random.default_rng(seed)
    delay = {sender: rng.uniform(0, seconds) for sender in sorted({_sender(r) for r in records})}
    return sorted(records, key=lambda r: r.ts + delay[_sender(r)])


def _sender(record: Record) -> str:
    return f"{type(record).__name__}/{record.cluster}/{record.node}"
