"""Processes the batches of one topic, record by record, and acknowledges what is durable."""

import asyncio
from typing import Protocol

from faust.types import TP

from streams.runtime.kafka.acks import Acks, Take
from streams.runtime.kafka.batches.buffer import Batch, BatchBuffer
from streams.runtime.kafka.placement import message_of


class Consumer(Protocol):
    """What the task uses of the consumer whose batches it processes."""

    def is_current(self, epoch: int) -> bool:
        """Return whether batches of an epoch are still this consumer's to process."""
        ...

    def acknowledge(self, tp: TP, next_offset: int, epoch: int) -> None:
        """Let offsets below ``next_offset`` be committed."""
        ...


async def process(buffer: BatchBuffer, consumer: Consumer, take: Take) -> None:
    """Give the records of a buffer to ``take``, in order, until cancelled. Raises what ``take`` raises."""

    async def acknowledge(place: tuple[TP, int, int]) -> None:
        consumer.acknowledge(*place)

    async with Acks(acknowledge) as acks:
        while True:
            batch = await buffer.get()
            try:
                await _take_all(batch, consumer, take, acks)
            finally:
                buffer.done(batch)


async def _take_all(batch: Batch, consumer: Consumer, take: Take, acks: Acks) -> None:
    await asyncio.sleep(0)
    done: tuple[TP, int, int] | None = None
    waiting: asyncio.Future[None] | None = None
    for record in batch.records:
        # Also within a batch: the partition may have been revoked while ``take`` waited.
        if not consumer.is_current(batch.epoch):
            return
        durable = await take(message_of(record))
        # Records that wait for the same outputs are acknowledged together, as far as they lie in one batch.
        if done is not None and durable is not waiting:
            await acks.put(done, waiting)
        done, waiting = (batch.tp, record.offset + 1, batch.epoch), durable
    if done is not None:
        await acks.put(done, waiting)
