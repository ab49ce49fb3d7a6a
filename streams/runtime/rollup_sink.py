"""Telemetry to roll-ups, stored in the database."""

import asyncio
from collections.abc import Iterable

from slowrank.telemetry import BadRecord
from slowrank.telemetry.topics import JOB_STEPS, NODE_SAMPLES
from store.telemetry.buckets import BUCKET_SECONDS
from streams.rollup.rollup import KEEP_SECONDS
from streams.runtime.kafka.decoding import TELEMETRY
from streams.runtime.kafka.message import Message, PartitionId
from streams.runtime.kafka.moved_keys import MovedKeys
from streams.runtime.partitions.context import WorkerContext
from streams.runtime.partitions.partition import RollUpPartition
from streams.runtime.partitions.partition_table import PartitionTable, Step, TopicConfig
from streams.runtime.write_buffer import RowBuffer

# Log that is read again after a restart: that of the buckets that are kept. Chosen: three more, as a record
# is logged seconds after its time. The rows of a bucket that is read in part, or without the reading before
# it, change nothing: the store keeps those with more samples, or the first of as many.
WINDOW_SECONDS = KEEP_SECONDS + 3 * BUCKET_SECONDS


class RollUpSink:
    """Takes samples and steps. Skips what cannot be read: the detecting worker makes the dead letters."""

    def __init__(self, context: WorkerContext, *, rows: RowBuffer, moves: MovedKeys | None = None) -> None:
        self._context = context
        self._rows = rows
        window = min(context.window, WINDOW_SECONDS)
        topics = {
            context.name(topic): TopicConfig(TELEMETRY[topic], RollUpPartition, window, clocked=True)
            for topic in (NODE_SAMPLES, JOB_STEPS)
        }
        self.partitions: PartitionTable[RollUpPartition] = PartitionTable(topics, context, moves=moves)

    async def take(self, message: Message) -> None:
        """Roll up one message. Its rows are written within a second, or made again from the log."""
        health = self._context.health
        health.took(message.topic, message.partition, message.timestamp)
        # What a rebuild puts out is written once more: rows that the last reader had buffered when it ended
        # are stored nowhere else.
        state = await self.partitions.state_of(message, rebuilt=self._rows.add)
        if message.offset < state.next_offset:
            return
        if (moved := self.partitions.sent_on(message)) is not None:
            await asyncio.shield(self._context.send_on(moved))
        else:
            self._add(self.partitions.steps(state, message))
            health.event_time[state.name] = state.watermark.time
        state.next_offset, state.received = message.offset + 1, health.clock()
        await self._rows.flush()

    async def prepare(self, place: PartitionId, offset: int, *, timestamp: float) -> None:
        """Build the state of a partition that may stay quiet: its last bucket may not be written."""
        if place not in self.partitions.states:
            await self.partitions.state_at(place, offset, timestamp=timestamp, rebuilt=self._rows.add)

    async def write_idle(self, seconds: float) -> None:
        """Write rows held back for long enough, and open buckets of partitions idle for ``seconds``."""
        latest = self._context.health.clock() - seconds
        for place, state in list(self.partitions.states.items()):
            self._add(self.partitions.release(place, self._context.now()))
            if state.received <= latest:
                self._rows.add(state.rollup.flush())
        await self._rows.flush()

    def _add(self, done: Iterable[Step]) -> None:
        for _, rows in done:
            if isinstance(rows, BadRecord):
                self._context.health.outputs["unreadable"] += 1
            else:
                self._rows.add(rows)
