"""A storing worker whose topics grow: whatever is under way at that moment, each record counts once."""

import asyncio
import random

import pytest

from benchmarks.chaos.story import roll_up_rows
from simulator import Cluster, ClusterSpec
from simulator.cluster.layout import JobSpec
from store.telemetry.buckets import SampleRollups, StepRollups
from streams.runtime.kafka.moved_keys import MovedKeys
from streams.runtime.kafka.placement import Counts
from streams.runtime.kafka.record_producer import topic_of
from streams.runtime.monitoring.health import Health
from streams.runtime.partitions.context import WorkerContext
from streams.runtime.rollup_sink import RollUpSink
from streams.runtime.write_buffer import RowBuffer
from tests.roll_ups import unpacked
from tests.streams.runtime.kafka.test_moved_keys import NOW, Brokers

TOPICS = ("node-samples", "job-steps")
TABLES = {"gpu": "samples_10s", "nic": "nic_10s", "host": "host_10s"}
START, SECONDS, GROWS = NOW - 105.0, 160.0, 70.0

# Node -> seconds of the clock after which its exporter sees that the topics grew.
KNOWS = (0.0, 0.0, 10.0, 0.0, 25.0, 50.0)


def fleet():
    job = JobSpec(dp=6, tp=2, step_seconds=1.0, job_id="llm")
    spec = ClusterSpec(nodes=6, gpus=2, nics=1, name="grown", jobs=(job,), start=START)
    records = [r for r in Cluster(spec, seed=7).run(SECONDS) if topic_of(r) in TOPICS]
    return sorted(records, key=lambda r: r.ts), {spec.node_name(n): after for n, after in enumerate(KNOWS)}


class Worker:
    """A storing worker in a group of its own: a task for each topic, as in ``batch_runner``.

    ``chance`` decides how often it is interrupted, and whether the commit of a rebalance comes through.
    """

    def __init__(self, brokers, chance):
        self.brokers, self.chance, self.stored = brokers, chance, dict[tuple[object, ...], int]()
        health = Health("sink", lambda: brokers.now)
        self.moves = MovedKeys("sink", self._counts, self._committed, health)
        self.rows = RowBuffer(self._write, health, lambda: brokers.now)
        context = WorkerContext(
            name=lambda topic: topic,
            reread=brokers.reread,
            producer=brokers,
            health=health,
            now=lambda: brokers.now,
            window=600.0,
        )
        self.sink = RollUpSink(context, rows=self.rows, moves=self.moves)
        self.assigned = {(topic, p) for topic in TOPICS for p in range(4)}
        self.position: dict[tuple[str, int], int] = {}
        self.done: dict[tuple[str, int], int] = {}
        self.epoch, self.flows = 0, True

    async def run(self, topic):
        """Take batches of a topic until cancelled."""
        while True:
            await asyncio.sleep(0)
            waiting = [p for p in sorted(self.assigned) if p[0] == topic and self._unread(p)]
            if not self.flows or not waiting:
                continue
            place = min(waiting, key=lambda p: self._unread(p)[0].timestamp)
            epoch, batch = self.epoch, self._unread(place)[: self.chance.randint(1, 100)]
            self.position[place] = batch[-1].offset + 1
            for message in batch:
                if epoch != self.epoch:
                    break
                await self.sink.take(message)
            else:
                self.done[place] = batch[-1].offset + 1

    async def rebalance(self, partitions):
        """Give all partitions up and take them again, of topics with so many."""
        self.flows, self.epoch = False, self.epoch + 1
        await self._turns(3)
        if self.chance.random() < 0.3:
            self.commit()
        self.done.clear()
        self.moves.rebalanced()
        await self._turns(10)
        self.assigned = {(topic, p) for topic in TOPICS for p in range(partitions)}
        self.position.clear()
        self.moves.rebalanced()
        self.flows = True

    async def round(self):
        """Do what the worker does each second beside the messages."""
        assigned = set(self.assigned)
        for place in sorted(assigned.difference(self.sink.partitions.states)):
            if place in self.brokers.committed or await self.sink.partitions.has_past(place):
                offset = self.brokers.committed.get(place, 0)
                await self.sink.prepare(place, offset, timestamp=self.brokers.now)
        self.sink.partitions.retain(assigned)
        await self.sink.write_idle(10.0)

    def commit(self):
        self.brokers.committed |= self.done

    def _unread(self, place):
        return self.brokers.logs[place][self.position.get(place, self.brokers.committed.get(place, 0)) :]

    def _write(self, rows):
        for row in unpacked([r for r in rows if isinstance(r, SampleRollups | StepRollups)]):
            key = (TABLES[row.block], row.node, row.instance) if hasattr(row, "block") else (
                "steps_10s", row.job_id, str(row.rank)
            )  # fmt: skip
            n = row.n if hasattr(row, "block") else row.n_steps
            self.stored[(*key, row.bucket)] = max(n, self.stored.get((*key, row.bucket), 0))

    async def _counts(self, topics):
        await asyncio.sleep(0)
        return {topic: self.brokers.counts[topic] for topic in topics}

    async def _committed(self):
        await asyncio.sleep(0)
        return dict(self.brokers.committed)

    async def _turns(self, most):
        for _ in range(self.chance.randint(0, most)):
            await asyncio.sleep(0)


async def play(chance):
    """Send at twice the pace of the clock; topics grow, and a second rebalance follows. Return the rows."""
    records, knows = fleet()
    brokers = Brokers()
    worker = Worker(brokers, chance)
    tasks = [asyncio.create_task(worker.run(topic)) for topic in TOPICS]
    left, grew, beside, again = list(reversed(records)), 0.0, None, chance.randint(1, 8)
    while left or any(brokers.committed.get(p, 0) < len(log) for p, log in brokers.logs.items()):
        brokers.now += 0.25
        while left and left[-1].ts <= START + 2.0 * (brokers.now - NOW):
            record = left.pop()
            if not grew and record.ts >= START + GROWS:
                grew = brokers.now
            learnt = grew and brokers.now >= grew + knows[record.node]
            brokers.put(record, partitions=8 if learnt else 4)
        if grew and brokers.counts["node-samples"].now == 4 and chance.random() < 0.2:
            brokers.counts = {topic: Counts(8, {4: brokers.now}) for topic in TOPICS}
            await worker.rebalance(8)
        elif len(worker.assigned) > 8 and again and not (again := again - 1):
            await worker.rebalance(8)
        if (beside is None or beside.done()) and chance.random() < 0.25:
            beside = asyncio.create_task(worker.round())
        for _ in range(chance.randint(0, 40)):
            await asyncio.sleep(0)
        if brokers.now % 1.0 == 0.0:
            worker.commit()
    for task in tasks:
        task.cancel()
    brokers.now += 20.0
    await worker.round()
    await worker.rows.flush(force=True)
    return worker.stored, dict(roll_up_rows(records))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_records_around_a_growth_count_once(seed):
    """Whatever was committed, being processed or being rebuilt when the partitions were given up."""
    stored, expected = asyncio.run(play(random.Random(seed)))
    assert stored == expected
