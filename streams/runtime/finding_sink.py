"""Suspicions to findings, paces of ranks and declarations of jobs, stored in the database."""

import asyncio
from collections.abc import Callable
from typing import Any

from alerts.finding import Finding
from detectors.fleet.chronic import Pace
from slowrank.telemetry import BadRecord, decode_message
from slowrank.telemetry.topics import SUSPICIONS
from store.error_classes import REFUSED, UNAVAILABLE
from store.telemetry.buckets import JobEvent
from streams.config.settings import Tuning
from streams.config.stages import finding_stage
from streams.runtime.kafka.dead_letters import STORE_REFUSED
from streams.runtime.kafka.message import Message, Outgoing
from streams.runtime.kafka.moved_keys import MovedKeys
from streams.runtime.kafka.producer import until_done
from streams.runtime.partitions.context import WorkerContext
from streams.runtime.partitions.partition import FindingPartition
from streams.runtime.partitions.partition_table import PartitionTable, TopicConfig
from streams.runtime.write_buffer import RowBuffer

# Longer than a detector goes without a report about an open cause; an older finding is in the store.
FINDING_WINDOW_SECONDS = 3600.0

Save = Callable[[Finding], object]
"""Stores one version of a finding; blocks, and raises what ``store`` raises."""


class FindingSink:
    """Takes messages of ``suspicions``. A database that is away delays the messages and loses none."""

    def __init__(
        self,
        context: WorkerContext,
        *,
        save: Save,
        rows: RowBuffer,
        tuning: Tuning,
        moves: MovedKeys | None = None,
    ) -> None:
        self._context = context
        self._save = save
        self._rows = rows
        config = TopicConfig(
            lambda data, _: decode_message(data),
            lambda name: FindingPartition(name, finding_stage(tuning)),
            FINDING_WINDOW_SECONDS,
        )
        self.partitions: PartitionTable[FindingPartition] = PartitionTable(
            {context.name(SUSPICIONS): config}, context, moves=moves
        )

    async def take(self, message: Message) -> None:
        """Fold one message into its findings and store what changed.

        A row is written within a second, or computed again from the log after a restart.
        """
        health = self._context.health
        health.took(message.topic, message.partition, message.timestamp)
        # Findings made during a rebuild were stored before its offset was committed; rows that the last
        # reader had buffered when it ended are stored nowhere else.
        state = await self.partitions.state_of(message, rebuilt=self._buffer_rows)
        if message.offset < state.next_offset:
            return
        if (moved := self.partitions.sent_on(message)) is not None:
            await asyncio.shield(self._context.send_on(moved))
            state.next_offset = message.offset + 1
            return
        try:
            await self._process(state, message)
        except BaseException:
            # Half a step: the next reader of the partition must rebuild its state and take the message again.
            self.partitions.forget((message.topic, message.partition))
            raise
        state.next_offset = message.offset + 1
        health.event_time[state.name] = state.watermark.time
        await self._rows.flush()

    async def _process(self, state: FindingPartition, message: Message) -> None:
        dead_letters: list[Outgoing] = []
        for _, outputs in self.partitions.steps(state, message):
            if isinstance(outputs, BadRecord):
                dead_letters.append(self._context.dead_letter(message, outputs))
                continue
            self._buffer_rows(outputs)
            for output in outputs:
                if isinstance(output, Finding) and (refused := await self._store(output)) is not None:
                    dead_letters.append(self._context.dead_letter(message, refused))
        if dead_letters:
            await asyncio.shield(self._context.producer.post(dead_letters))

    def _buffer_rows(self, outputs: list[Any]) -> None:
        self._rows.add([output for output in outputs if isinstance(output, Pace | JobEvent)])

    async def _store(self, finding: Finding) -> BadRecord | None:
        """Store a finding, however long it takes; return why the database refuses it, None if it does not."""

        async def attempt() -> BadRecord | None:
            try:
                await asyncio.to_thread(self._save, finding)
            except REFUSED as error:
                return BadRecord(STORE_REFUSED, f"finding {finding.id}: {type(error).__name__}: {error}")
            self._context.health.outputs["findings"] += 1
            return None

        return await until_done(attempt, UNAVAILABLE, health=self._context.health, what="database")
