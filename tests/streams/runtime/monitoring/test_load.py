import asyncio
import time

from faust.types import TP

from slowrank.settings import Settings
from streams.runtime.kafka.batches.buffer import Batch, BatchBuffer
from streams.runtime.monitoring.load import LoadMeter, Report, group_of, latest, leave


class Task:
    def __init__(self):
        self.idle_seconds = 0.0


def test_the_busiest_topic_is_the_load():
    """Time in which a task waited for messages is free; time for the database is not."""
    clock, idle, busy = [100.0], Task(), Task()
    meter = LoadMeter([idle, busy], lambda: clock[0])
    clock[0], idle.idle_seconds, busy.idle_seconds = 110.0, 9.0, 2.5
    assert meter.measure() == 0.75
    clock[0], idle.idle_seconds, busy.idle_seconds = 120.0, 19.0, 12.5
    assert 0.0 <= meter.measure() < 0.2


def test_computing_is_load():
    """Also where no task of messages does it: ticks, snapshots, rebuilds."""
    begin = time.monotonic()
    meter = LoadMeter([], time.monotonic)
    until = time.thread_time() + 0.05
    while time.thread_time() < until:
        pass
    load = meter.measure()
    # On a busy machine it takes longer than its CPU time.
    assert load > 0.9 * 0.05 / (time.monotonic() - begin)


def test_a_buffer_counts_the_time_without_records():
    """Up to now, while it still waits."""

    async def go():
        buffer = BatchBuffer()
        waiting = asyncio.create_task(buffer.get())
        await asyncio.sleep(0.05)
        assert 0.04 < buffer.idle_seconds < 1.0
        buffer.put(Batch(TP("t", 0), [type("Record", (), {"timestamp": 1})()], 0))
        await waiting
        idle = buffer.idle_seconds
        await asyncio.sleep(0.05)
        assert buffer.idle_seconds == idle
        await asyncio.wait_for(asyncio.shield(asyncio.sleep(0)), 1)

    asyncio.run(go())


class Brokers:
    def __init__(self):
        self.texts = {}

    async def metadata(self, group):
        return self.texts.get(group, {})

    async def store_metadata(self, group, texts):
        self.texts.setdefault(group, {}).update(texts)


def test_the_busiest_worker_counts_for_its_role():
    """Old reports and those of other releases do not."""
    brokers, group = Brokers(), group_of(Settings(topic_prefix="p-"), "detect")

    async def go():
        assert await latest(brokers, group, 1000.0) is None
        await leave(brokers, group, {("t", 3), ("t", 1)}, Report(0.4, 990.0))
        await leave(brokers, group, {("t", 2)}, Report(0.7, 995.0))
        await leave(brokers, group, {("t", 5)}, Report(0.99, 900.0))
        await brokers.store_metadata(group, {("t", 6): "another format"})
        await leave(brokers, group, set(), Report(1.0, 1000.0))
        assert await latest(brokers, group, 1000.0) == Report(0.7, 995.0)

    asyncio.run(go())
    assert group == "p-slowrank-load-detect"
    assert ("t", 1) in brokers.texts[group]
    assert ("t", 3) not in brokers.texts[group]
