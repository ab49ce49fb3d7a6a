"""The storing worker: telemetry into roll-ups, suspicions into findings and paces, all into the
database."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from alerts.finding import Finding
from detectors.fleet.chronic import Pace
from slowrank.telemetry import BadRecord, decode_message
from slowrank.telemetry.topics import DEAD_LETTERS, JOB_STEPS, NODE_SAMPLES, SUSPICIONS
from store.error_classes import REFUSED, UNAVAILABLE
from streams.config.settings import Tuning
from streams.config.stages import finding_stage
from streams.runtime.detect_worker import Name, Postbox
from streams.runtime.kafka.dead_letters import STORE_REFUSED, Message, Outgoing, dead_letter
from streams.runtime.kafka.decoding import TELEMETRY
from streams.runtime.kafka.moved_keys import Moves
from streams.runtime.kafka.offsets import Place
from streams.runtime.kafka.producer import until_done
from streams.runtime.monitoring.health import Health
from streams.runtime.partitions.partition import FindingLane, RollUpLane
from streams.runtime.partitions.partition_table import Course, PartitionTable, Reread, Step
from streams.runtime.write_buffer import RowBuffer

# Longer than any silence of a detector about an open cause; the store knows what is older.
FINDING_WINDOW_SECONDS = 3600.0

Save = Callable[[Finding], object]
"""Stores one version of a finding; blocks, and raises what ``store`` raises."""


class Sink:
    """Takes messages of the telemetry topics and of ``suspicions``.

    Samples and steps that cannot be read are the detecting worker's to report; here they are skipped. A
    database that is away stops the messages, it loses none.
    """

    def __init__(
        self,
        *,
        name: Name,
        reread: Reread,
        outlet: Postbox,
        health: Health,
        now: Callable[[], float],
        window: float,
        save: Save,
        rows: RowBuffer,
        tuning: Tuning,
        telemetry_moves: Moves | None = None,
        suspicion_moves: Moves | None = None,
    ) -> None:
        self._name = name
        self._outlet = outlet
        self._health = health
        self._now = now
        self._save = save
        self._rows = rows
        telemetry: dict[str, Course[RollUpLane]] = {
            name(NODE_SAMPLES): Course(TELEMETRY[NODE_SAMPLES], RollUpLane, window, clocked=True),
            name(JOB_STEPS): Course(TELEMETRY[JOB_STEPS], RollUpLane, window, clocked=True),
        }
        self._rollups: PartitionTable[RollUpLane] = PartitionTable(
            telemetry, reread=reread, health=health, now=now, moves=telemetry_moves
        )
        suspicions = Course(
            lambda data, _: decode_message(data),
            lambda lane: FindingLane(lane, finding_stage(tuning)),
            FINDING_WINDOW_SECONDS,
        )
        self._findings: PartitionTable[FindingLane] = PartitionTable(
            {name(SUSPICIONS): suspicions}, reread=reread, health=health, now=now, moves=suspicion_moves
        )

    async def take_telemetry(self, message: Message) -> None:
        """Roll up one message. Its rows are written within a second, or made again from the log."""
        self._health.took(message.topic)
        # What a lane gives while it is built is written once more: rows that were still gathering when the
        # last reader ended are nowhere else.
        lane = await self._rollups.lane_of(message, rebuilt=self._rows.add)
        if message.offset < lane.next_offset:
            return
        if (moved := self._rollups.sent_on(message)) is not None:
            await self._send_on(moved)
            lane.next_offset, lane.heard = message.offset + 1, self._health.clock()
            return
        self._add(self._rollups.steps(lane, message))
        lane.next_offset, lane.heard = message.offset + 1, self._health.clock()
        self._health.event_time[lane.name] = lane.watermark.time
        await self._rows.flush()

    async def take_suspicion(self, message: Message) -> None:
        """Fold one suspicion into its findings and store what changed.

        A pace is written within a second, like rows of telemetry, or made again from the log.
        """
        self._health.took(message.topic)
        place = (message.topic, message.partition)
        # Findings made while a lane is built were stored before its offset was committed; paces that were
        # still gathering when the last reader ended are nowhere else.
        lane = await self._findings.lane_of(message, rebuilt=self._keep_paces)
        if message.offset < lane.next_offset:
            return
        if (moved := self._findings.sent_on(message)) is not None:
            await self._send_on(moved)
            lane.next_offset = message.offset + 1
            return
        try:
            letters: list[Outgoing] = []
            outputs = self._stepped(lane, message, letters)
            self._keep_paces(outputs)
            for output in outputs:
                if isinstance(output, Finding):
                    await self._store(output, message, letters)
            if letters:
                await asyncio.shield(self._outlet.post(letters))
        except BaseException:
            # Half a step: the next reader of this partition must build the lane anew and take it again.
            self._findings.forget(place)
            raise
        lane.next_offset = message.offset + 1
        self._health.event_time[lane.name] = lane.watermark.time
        await self._rows.flush()

    @property
    def positions(self) -> dict[Place, int]:
        """Next offsets of the partitions that are being read."""
        rollups, findings = self._rollups.lanes.items(), self._findings.lanes.items()
        return {p: x.next_offset for p, x in rollups} | {p: y.next_offset for p, y in findings}

    async def idle(self, assigned: Iterable[Place]) -> None:
        """Write what has gathered although no message came; drop what is another worker's now."""
        places = list(assigned)
        self._rollups.retain(places)
        self._findings.retain(places)
        for place in list(self._rollups.lanes):
            self._add(self._rollups.release(place, self._now()))
        await self._rows.flush()

    async def prepare(self, place: Place, offset: int, *, timestamp: float) -> None:
        """Build the lane of a telemetry partition that may stay quiet: its last bucket may not be written."""
        if place not in self._rollups.lanes:
            await self._rollups.lane_at(place, offset, timestamp=timestamp, rebuilt=self._rows.add)

    async def quiet(self, seconds: float) -> None:
        """Write the buckets still open in partitions that brought nothing for ``seconds``."""
        latest = self._health.clock() - seconds
        for lane in self._rollups.lanes.values():
            if lane.heard <= latest:
                self._rows.add(lane.rollup.flush())
        await self._rows.flush()

    async def has_past(self, place: Place) -> bool:
        """Return whether keys of a telemetry partition were in others before."""
        return await self._rollups.has_past(place)

    async def _send_on(self, moved: Outgoing) -> None:
        self._health.outputs["sent_on"] += 1
        await asyncio.shield(self._outlet.post([moved]))

    def _add(self, done: Iterable[Step]) -> None:
        for _, rows in done:
            if isinstance(rows, BadRecord):
                self._health.outputs["unreadable"] += 1
            else:
                self._rows.add(rows)

    def _keep_paces(self, outputs: list[Any]) -> None:
        self._rows.add([output for output in outputs if isinstance(output, Pace)])

    def _stepped(self, lane: FindingLane, message: Message, letters: list[Outgoing]) -> list[Finding | Pace]:
        try:
            return self._findings.step(lane, message)
        except BadRecord as error:
            letters.append(self._letter(message, error))
            return []

    async def _store(self, finding: Finding, message: Message, letters: list[Outgoing]) -> None:
        async def attempt() -> None:
            try:
                await asyncio.to_thread(self._save, finding)
                self._health.outputs["findings"] += 1
            except REFUSED as error:
                detail = f"finding {finding.id}: {type(error).__name__}: {error}"
                letters.append(self._letter(message, BadRecord(STORE_REFUSED, detail)))

        await until_done(attempt, UNAVAILABLE, health=self._health, what="database")

    def _letter(self, message: Message, error: BadRecord) -> Outgoing:
        self._health.dead_letters[message.topic, error.reason] += 1
        return dead_letter(message, error, topic=self._name(DEAD_LETTERS))
