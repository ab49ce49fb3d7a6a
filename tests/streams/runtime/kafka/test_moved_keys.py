"""A detecting worker whose topic grows: keys go on where they are, with the past from where they were."""

import asyncio
from collections import defaultdict

import pytest

from alerts.kinds import UNHEARD_KIND
from slowrank.telemetry import NodeEvent, Suspicion, decode_message, encode
from streams.config.settings import Tuning
from streams.runtime.detect_worker import Detect
from streams.runtime.kafka.message import Message
from streams.runtime.kafka.moved_keys import MovedKeys
from streams.runtime.kafka.placement import MOVED, Counts, home
from streams.runtime.kafka.record_producer import key_of, topic_of
from streams.runtime.monitoring.health import Health
from streams.runtime.partitions.context import WorkerContext
from tests.streams import traffic

NOW = 1_795_160_000.0
TOPICS = ("node-samples", "node-events", "job-steps")


class Brokers:
    """The log of a few topics, whatever their partitions: what is appended can be read again."""

    def __init__(self):
        self.logs: dict[tuple[str, int], list[Message]] = defaultdict(list)
        self.counts = {topic: Counts(4) for topic in TOPICS}
        self.committed: dict[tuple[str, int], int] = {}
        self.now = NOW
        self.suspicions = []

    def append(self, topic, partition, key, value, moved=""):
        log = self.logs[topic, partition]
        log.append(Message(topic, partition, len(log), self.now, value, key, moved))

    def put(self, record, *, partitions):
        key = key_of(record)
        self.append(topic_of(record), home(key, partitions), key, encode(record))

    def grow(self):
        self.counts = {topic: Counts(8, {4: self.now}) for topic in TOPICS}

    async def reread(self, topic, partition, since, upto):
        for message in self.logs[topic, partition][:upto]:
            if message.timestamp >= since:
                yield message

    def post(self, messages):
        for m in messages:
            if m.topic == "suspicions":
                self.suspicions.append(decode_message(m.value))
            else:
                self.append(m.topic, m.partition, m.key, m.value, dict(m.headers)[MOVED].decode())
        done = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done


class Worker:
    """A detecting worker that has all partitions, and reads one after the other to its end."""

    def __init__(self, brokers):
        async def counts(topics):
            return {topic: brokers.counts[topic] for topic in topics}

        async def committed():
            return dict(brokers.committed)

        self.brokers = brokers
        health = Health("detect", lambda: brokers.now)
        self.moves = MovedKeys("detect", counts, committed, health)
        self.detect = Detect(
            WorkerContext(
                name=lambda topic: topic,
                reread=brokers.reread,
                producer=brokers,
                health=health,
                now=lambda: brokers.now,
                window=600.0,
            ),
            tuning=Tuning(),
            moves=self.moves,
        )

    async def read(self, *, commit=True):
        """Take all there is, also what is sent on meanwhile, and let a second pass."""
        while unread := [m for p, log in list(self.brokers.logs.items()) for m in log[self._next(p) :]]:
            for message in unread:
                await self.detect.take(message)
        if commit:
            self.brokers.committed |= self.detect.partitions.positions
        ends = {place: len(log) for place, log in self.brokers.logs.items()}
        self.detect.idle(ends, ends)

    def _next(self, place):
        return self.detect.partitions.positions.get(place, self.brokers.committed.get(place, 0))


def said(brokers):
    found = (s for s in brokers.suspicions if isinstance(s, Suspicion))
    return {(s.kind, s.subject.node) for s in found if s.kind != UNHEARD_KIND}


def raised(brokers):
    found = (s for s in brokers.suspicions if isinstance(s, Suspicion) and s.state == "raise")
    return {(s.kind, s.subject.node, s.ts) for s in found if s.kind != UNHEARD_KIND}


async def play(records, *, learns, grows=NOW + 60, restarts=()):
    """Feed records second by second; each node's exporter learns of the growth after so many seconds."""
    brokers = Brokers()
    worker = Worker(brokers)
    for record in records:
        if int(record.ts) > int(brokers.now):
            await worker.read()
            if int(record.ts) in restarts:
                worker = Worker(brokers)
        if brokers.now < grows <= record.ts:
            brokers.grow()
            worker.moves.rebalanced()
        brokers.now = max(brokers.now, record.ts)
        knows = record.ts >= grows + learns.get(record.node, 0.0)
        brokers.put(record, partitions=8 if knows else 4)
    await worker.read()
    brokers.now += 20.0
    await worker.read()
    return brokers


def fleet(seconds, **faults):
    return list(traffic.nodes(count=12, seconds=seconds, ends=NOW + seconds, **faults))


LEARNS = {f"node-{n}": 3.0 * n for n in range(12)}


@pytest.mark.slow
@pytest.mark.parametrize("restarts", [(), (NOW + 75, NOW + 95)])
def test_a_node_that_moves_is_not_silent(restarts):
    """Its exporter puts the next record into another partition, at once or half a minute later."""
    assert any(home(b"node-%d" % n, 4) != home(b"node-%d" % n, 8) for n in range(12))
    brokers = asyncio.run(play(fleet(150), learns=LEARNS, restarts=restarts))
    assert said(brokers) == set()


@pytest.mark.slow
def test_a_node_that_dies_as_its_topic_grows_is_missed():
    """Nothing ever comes into its new partition; its past is read where it was."""
    (mover,) = [f"node-{n}" for n in range(12) if is_mover(f"node-{n}")][:1]
    alone = {r.node for r in fleet(1) if home(r.node.encode(), 8) != home(mover.encode(), 8)} | {mover}
    records = [r for r in fleet(150) if r.node in alone and (r.node != mover or r.ts < NOW + 60)]

    async def go():
        brokers = Brokers()
        worker, place = Worker(brokers), ("node-samples", home(mover.encode(), 8))
        for record in records:
            if int(record.ts) > int(brokers.now):
                await worker.read()
                if (
                    await worker.detect.partitions.has_past(place)
                    and place not in worker.detect.partitions.positions
                ):
                    await worker.detect.prepare(place, 0, timestamp=brokers.now)
                    brokers.logs[place] = []
            if brokers.now < NOW + 60 <= record.ts:
                brokers.grow()
                worker.moves.rebalanced()
            brokers.now = max(brokers.now, record.ts)
            brokers.put(record, partitions=8 if record.ts >= NOW + 60 else 4)
        return brokers

    assert said(asyncio.run(go())) == {("exporter.stale", mover), ("node.silent", mover)}


def is_mover(node):
    return home(node.encode(), 4) != home(node.encode(), 8)


@pytest.mark.slow
def test_what_changed_before_the_growth_is_compared_with_after():
    """The level that a detector learnt in the old partition is known in the new one."""
    number = next(n for n in range(12) if is_mover(f"node-{n}"))
    records = fleet(200, low_clock=(number, 1, 125))
    expected = said(asyncio.run(play(records, learns={}, grows=NOW + 1000)))
    assert expected
    assert said(asyncio.run(play(records, learns={}, grows=NOW + 115))) == expected


@pytest.mark.slow
def test_what_was_held_back_when_a_partition_is_built_again_still_counts():
    """Records of moved keys wait for those that are sent on; the worker is replaced meanwhile."""
    number = next(n for n in range(12) if is_mover(f"node-{n}"))
    records = fleet(200, low_clock=(number, 1, 125))
    calm = asyncio.run(play(records, learns={}, grows=NOW + 1000))
    (found,) = {int(ts) for *_, ts in raised(calm)}
    moved = asyncio.run(play(records, learns={}, grows=found - 3.0, restarts=(found + 4,)))
    assert raised(moved) == raised(calm)


@pytest.mark.parametrize("read_first", [True, False])
def test_an_event_that_was_sent_on_is_taken_whatever_was_committed(read_first):
    """The worker that sent it on has committed that, before the new partition is first read."""
    node = next(f"node-{n}" for n in range(12) if is_mover(f"node-{n}"))
    event = NodeEvent(
        cluster="c", node=node, ts=NOW, source="kmsg", code="xid.79", seq=1, subject={"gpu_index": 3}
    )

    async def go():
        brokers = Brokers()
        brokers.grow()
        brokers.put(event, partitions=4)
        first, second = Worker(brokers), Worker(brokers)
        (message,) = brokers.logs["node-events", home(node.encode(), 4)]
        await first.detect.take(message)
        brokers.committed |= first.detect.partitions.positions
        (moved,) = brokers.logs["node-events", home(node.encode(), 8)]
        if read_first:
            await second.detect.prepare(("node-events", moved.partition), 0, timestamp=NOW)
        await second.detect.take(moved)
        return brokers

    assert {node for _, node in said(asyncio.run(go()))} == {node}
