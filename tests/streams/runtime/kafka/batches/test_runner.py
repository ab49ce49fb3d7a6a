"""Batches are processed in order, and acknowledged once their outputs are durable."""

import asyncio
from contextlib import suppress

import pytest
from aiokafka import ConsumerRecord
from faust.types import TP

from streams.runtime.kafka.batches.buffer import CHUNK, FULL, Batch, BatchBuffer
from streams.runtime.kafka.batches.runner import process
from streams.runtime.kafka.placement import MOVED

PLACE = TP("node-samples", 3)


class Consumer:
    """Notes what is acknowledged; ``epoch`` is the present one."""

    def __init__(self):
        self.epoch = 1
        self.acknowledged = []

    def is_current(self, epoch):
        return epoch == self.epoch

    def acknowledge(self, tp, next_offset, epoch):
        self.acknowledged.append((tp, next_offset, epoch))


def batch(offsets, *, epoch=1, headers=(), value=b"v", place=PLACE, logged=1_500):
    return Batch(
        place,
        [ConsumerRecord(*place, n, logged, 1, b"k", value, None, 1, 1, headers) for n in offsets],
        epoch,
    )


async def run_on(batches, take, consumer):
    """Process batches until nothing moves any more."""
    buffer = BatchBuffer()
    for item in batches:
        buffer.put(item)
    task = asyncio.ensure_future(process(buffer, consumer, take))
    with suppress(TimeoutError):
        await asyncio.wait_for(asyncio.shield(task), 0.05)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def test_records_are_taken_in_order_with_what_the_log_holds_about_them():
    """Time is in seconds, a missing value is empty, and the header names where it was moved from."""
    taken = []

    async def take(message):
        taken.append(message)

    consumer = Consumer()
    batches = [batch([5, 6]), batch([7], headers=((MOVED, b"detect:1:9"),), value=None)]
    asyncio.run(run_on(batches, take, consumer))
    assert [m.offset for m in taken] == [5, 6, 7]
    assert [(m.timestamp, m.value, m.key, m.moved) for m in taken[1:]] == [
        (1.5, b"v", b"k", ""),
        (1.5, b"", b"k", "detect:1:9"),
    ]
    assert consumer.acknowledged[-1] == (PLACE, 8, 1)


def test_nothing_is_acknowledged_before_all_before_it_is_durable():
    """An open output of one record holds back the acknowledgement of all later ones."""
    consumer = Consumer()

    async def scenario():
        loop = asyncio.get_running_loop()
        outputs = {n: loop.create_future() for n in range(4)}
        for n in (0, 1, 3):
            outputs[n].set_result(None)

        async def take(message):
            return outputs[message.offset]

        await run_on([batch(range(4))], take, consumer)

    asyncio.run(scenario())
    assert [offset for _, offset, _ in consumer.acknowledged] == [1, 2]


def test_records_with_one_future_are_acknowledged_together():
    """One acknowledgement for records that wait for the same outputs, at most ``CHUNK`` of them."""
    consumer = Consumer()

    async def take(_):
        return None

    asyncio.run(run_on([batch(range(CHUNK + 50))], take, consumer))
    assert [offset for _, offset, _ in consumer.acknowledged] == [CHUNK, CHUNK + 50]


def test_batches_of_an_earlier_assignment_are_dropped():
    """What was revoked, even in the middle of a batch, is neither taken nor acknowledged."""
    consumer = Consumer()
    taken = []

    async def take(message):
        taken.append(message.offset)
        if message.offset == 2:
            consumer.epoch = 2

    asyncio.run(run_on([batch([0], epoch=0), batch([1, 2, 3]), batch([4])], take, consumer))
    assert taken == [1, 2]
    assert consumer.acknowledged == []


def test_an_error_ends_the_task():
    """Whoever supervises the task sees what was raised."""

    async def take(_):
        raise ValueError("a bug")

    async def scenario():
        buffer = BatchBuffer()
        buffer.put(batch([0]))
        await process(buffer, Consumer(), take)

    with pytest.raises(ValueError, match="a bug"):
        asyncio.run(scenario())


def test_a_full_partition_pauses_until_half_of_it_is_done():
    """``pause`` comes at ``FULL`` records of one partition, ``resume`` when half of them are processed."""
    buffer, calls = BatchBuffer(), []
    buffer.pause = lambda tp: calls.append(("pause", tp))
    buffer.resume = lambda tp: calls.append(("resume", tp))
    half = range(FULL // 2)

    async def scenario():
        buffer.put(batch(half))
        assert calls == []
        buffer.put(batch(half))
        assert calls == [("pause", PLACE)]
        for _ in range(FULL // 2 // CHUNK):
            assert calls == [("pause", PLACE)]
            buffer.done(await buffer.get())

    asyncio.run(scenario())
    assert calls == [("pause", PLACE), ("resume", PLACE)]


def test_a_cleared_buffer_is_empty():
    """Batches that were dropped no longer count."""
    buffer = BatchBuffer()
    paused: list[TP] = []
    buffer.pause = paused.append
    buffer.put(batch(range(FULL - 1)))
    buffer.clear()
    buffer.put(batch(range(2)))
    assert paused == []


def test_the_partition_logged_first_comes_first():
    """Partitions that catch up stay together, whichever was fetched first; each keeps its order."""
    other, buffer = TP("node-samples", 4), BatchBuffer()
    buffer.put(batch(range(CHUNK), logged=10))
    buffer.put(batch(range(CHUNK, 2 * CHUNK), logged=30))
    buffer.put(batch(range(CHUNK), place=other, logged=20))

    async def scenario():
        return [await buffer.get() for _ in range(3)]

    assert [(b.tp.partition, b.records[0].offset) for b in asyncio.run(scenario())] == [
        (3, 0),
        (4, 0),
        (3, CHUNK),
    ]
