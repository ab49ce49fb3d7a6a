"""Reads the last minutes of a partition again, to rebuild its state after a restart or rebalance."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiokafka import AIOKafkaConsumer, TopicPartition

from streams.runtime.kafka.message import Message
from streams.runtime.kafka.placement import message_of


async def reread(
    bootstrap: str, topic: str, partition: int, since: float, upto: int
) -> AsyncIterator[Message]:
    """Yield the messages with a time stamp from ``since`` (Unix seconds) on and an offset below ``upto``.

    Uses a consumer of its own, in no group. Raises ``KafkaError`` when the broker does not answer.
    """
    place = TopicPartition(topic, partition)
    async with _consumer(bootstrap, place) as consumer:
        first = await _first_offset(consumer, place, since)
        if first is not None:
            async for message in _messages(consumer, place, first, upto):
                yield message


async def read_on(
    bootstrap: str, topic: str, partition: int, first: int, upto: int
) -> AsyncIterator[Message]:
    """Yield the messages from offset ``first`` on and below ``upto``.

    A log that begins later or ends before gives those that it has. Raises ``KafkaError`` as ``reread``.
    """
    place = TopicPartition(topic, partition)
    async with _consumer(bootstrap, place) as consumer:
        begins = (await consumer.beginning_offsets([place]))[place]
        ends = (await consumer.end_offsets([place]))[place]
        async for message in _messages(consumer, place, max(first, begins), min(upto, ends)):
            yield message


@asynccontextmanager
async def _consumer(bootstrap: str, place: TopicPartition) -> AsyncIterator[AIOKafkaConsumer]:
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap, enable_auto_commit=False, auto_offset_reset="earliest"
    )
    try:
        await consumer.start()
        consumer.assign([place])
        yield consumer
    finally:
        await consumer.stop()


async def _first_offset(consumer: AIOKafkaConsumer, place: TopicPartition, since: float) -> int | None:
    found = (await consumer.offsets_for_times({place: max(0, int(since * 1000))}))[place]
    return None if found is None else int(found.offset)


async def _messages(
    consumer: AIOKafkaConsumer, place: TopicPartition, first: int, upto: int
) -> AsyncIterator[Message]:
    if first >= upto:
        return
    consumer.seek(place, first)
    # The position moves past gaps that compaction or transactions leave, so that the end is always reached.
    while await consumer.position(place) < upto:
        for batch in (await consumer.getmany(place, timeout_ms=1000)).values():
            for record in batch:
                if record.offset >= upto:
                    return
                yield message_of(record)
