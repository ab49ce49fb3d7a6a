"""The detecting worker: telemetry in, suspicions out, whatever cannot be read into the dead letters."""

import asyncio
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from slowrank.telemetry import BadRecord, Heartbeat, JobEnded, StageMessage, encode
from slowrank.telemetry.topics import DEAD_LETTERS, JOB_STEPS, NODE_EVENTS, NODE_SAMPLES, SUSPICIONS
from streams.config.settings import Tuning
from streams.config.stages import job_memory, job_stage, node_stage
from streams.job.memory import JobMemory
from streams.job.stage import DEFAULT_MEMORY_BYTES
from streams.runtime.kafka.dead_letters import Message, Outgoing, dead_letter
from streams.runtime.kafka.decoding import TELEMETRY
from streams.runtime.kafka.moved_keys import Moves
from streams.runtime.kafka.offsets import Place
from streams.runtime.monitoring.health import Health
from streams.runtime.monitoring.node_counts import Present
from streams.runtime.partitions.heartbeats import HeartbeatGate
from streams.runtime.partitions.partition import PartitionState
from streams.runtime.partitions.partition_table import Course, PartitionTable, Reread, Step
from streams.runtime.partitions.receive_time import ReceiveTime

EVENT_WINDOW_SECONDS = 86400.0
"""Rules count repeats over a day, so that much of the past makes a lane of events whole."""

IDLE_MARGIN_SECONDS = 5.0
"""How far a quiet partition stays behind those that report: its records may still be on the way."""

QUIET_SECONDS = 5.0
"""A partition that brought nothing for so long does not tell the time."""

Name = Callable[[str], str]
"""Topic name on the broker."""


class Postbox(Protocol):
    """Where outputs go."""

    def post(self, messages: Sequence[Outgoing]) -> asyncio.Future[None]:
        """Take messages to send; the future is done when they, and all posted before them, are durable."""
        ...


class Detect:
    """Takes messages of the telemetry topics, each to the lane of its partition.

    ``take`` never raises but on cancellation. The future it returns is done when everything the message gave
    rise to is durable: only then may the message be acknowledged.
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
        tuning: Tuning,
        job_memory_bytes: int = DEFAULT_MEMORY_BYTES,
        moves: Moves | None = None,
    ) -> None:
        self._name = name
        self._outlet = outlet
        self._health = health
        self._now = now
        self._tuning = tuning
        courses = {
            name(NODE_SAMPLES): Course(
                TELEMETRY[NODE_SAMPLES],
                lambda lane: PartitionState(lane, node_stage(tuning)),
                window,
                in_order=True,
                clocked=True,
            ),
            name(NODE_EVENTS): Course(
                TELEMETRY[NODE_EVENTS],
                lambda lane: PartitionState(lane, node_stage(tuning)),
                # Not in order: event rules take events in any, and none has to wait for another sender.
                EVENT_WINDOW_SECONDS,
                clocked=True,
            ),
            name(JOB_STEPS): Course(
                TELEMETRY[JOB_STEPS],
                lambda lane: PartitionState(
                    lane, job_stage(tuning, name=lane, memory_bytes=job_memory_bytes)
                ),
                window,
                in_order=True,
                clocked=True,
            ),
        }
        self._time = -math.inf
        self._receive = ReceiveTime()
        self._beats = HeartbeatGate()
        self._keeper: PartitionTable[PartitionState] = PartitionTable(
            courses, reread=reread, health=health, now=now, moves=moves
        )

    async def take(self, message: Message) -> asyncio.Future[None]:
        """Process one message and post its outputs."""
        self._health.took(message.topic)
        if message.topic != self._name(NODE_EVENTS):
            # Events are rare and no sign that samples come.
            self._receive.received()
        lane = await self._keeper.lane_of(message, rebuilt=_drop)
        if message.offset < lane.next_offset:
            # Taken before: it is acknowledged when the last of what has been posted by now is durable.
            return self._outlet.post([])
        # Nothing is awaited from here on, so that a cancelled worker leaves no half step in the lane.
        lane.next_offset, lane.heard = message.offset + 1, self._now()
        if (moved := self._keeper.sent_on(message)) is not None:
            self._health.outputs["sent_on"] += 1
            return self._outlet.post([moved])
        outgoing = self._outgoing(self._keeper.steps(lane, message))
        durable = self._outlet.post(outgoing + self._of_clocks((message.topic, message.partition)))
        self._health.event_time[lane.name] = lane.watermark.time
        return durable

    @property
    def positions(self) -> dict[Place, int]:
        """Next offsets of the partitions that are being read."""
        return {place: lane.next_offset for place, lane in self._keeper.lanes.items()}

    def idle(self, assigned: Iterable[Place], ends: Mapping[Place, int]) -> None:
        """Let event time pass for what has fallen quiet; ``ends`` are the end offsets known.

        A job in which no rank makes a step sends nothing that could move its time, nor do the nodes of a
        partition when all of them are silent. Where such a partition is read to its end, the time of the
        nodes that still report holds for it too, or that of the jobs when no node does. Where nothing
        reports, receive time moves it on, as long as the brokers answer and all is read.
        """
        assigned = set(assigned)
        self._keeper.retain(assigned)
        lanes, now = self._keeper.lanes, self._now()
        self._outlet.post(self._suspicions(self._heartbeats(assigned, ends, now)))
        samples, steps = self._name(NODE_SAMPLES), self._name(JOB_STEPS)
        quiet = {place for place, lane in lanes.items() if lane.heard < now - QUIET_SECONDS}
        live = lanes.keys() - quiet
        reporting = {p for p in live if p[0] == samples} or {p for p in live if p[0] == steps}
        time = self._event_time(reporting, self._receive.look(now, listening=self._listening(assigned, ends)))
        counts = [lane.senders.counts(max(time, lane.watermark.time)) for lane in lanes.values()]
        self._health.jobs = sum((job_memory(lane.stage) for lane in lanes.values()), start=JobMemory())
        self._health.nodes = Present(*map(sum, zip(*counts, strict=True))) if counts else Present()
        for place, lane in list(lanes.items()):
            if place not in ends or lane.next_offset < ends[place]:
                continue
            if released := list(self._keeper.release(place, now)):
                # What was held back tells the time as if it had come only now.
                lane.heard = now
                self._outlet.post(self._outgoing(released))
            # Nothing in a lane of events waits for time to pass, and samples that still come bring their own
            # time.
            waits = place[0] == steps or (place[0] == samples and place in quiet)
            if waits and not self._keeper.holds(place):
                self._outlet.post(self._suspicions(lane.reach(time - IDLE_MARGIN_SECONDS)))

    async def has_past(self, place: Place) -> bool:
        """Return whether keys of a partition were in others a moment ago: it may owe a silence or a hang."""
        return await self._keeper.has_past(place)

    async def prepare(self, place: Place, offset: int, *, timestamp: float) -> None:
        """Build the lane of a partition that may stay quiet, up to the committed ``offset``."""
        if place not in self._keeper.lanes:
            await self._keeper.lane_at(place, offset, timestamp=timestamp, rebuilt=_drop)

    def _listening(self, assigned: Collection[Place], ends: Mapping[Place, int]) -> bool:
        """Return whether all there is was read, and what was read last was live."""
        lanes, events = self._keeper.lanes, self._name(NODE_EVENTS)
        read = all(p in ends and self._read(p) >= ends[p] and not self._keeper.holds(p) for p in assigned)
        return read and any(lane.live for place, lane in lanes.items() if place[0] != events)

    def _event_time(self, reporting: Collection[Place], quiet: float) -> float:
        """Return the time of what still reports; where nothing does, what it was and ``quiet`` seconds."""
        lanes = self._keeper.lanes
        times = [lanes[place].watermark.time for place in reporting]
        if not times and math.isinf(self._time):
            # A worker that has just started knows the past of its partitions, and hears nothing more of them.
            times = [max((lane.watermark.time for lane in lanes.values()), default=-math.inf)]
        self._time = min(times, default=self._time)
        return self._time + quiet

    def _read(self, place: Place) -> int:
        """Return up to which offset a partition has been read: one without a lane is at its beginning."""
        lanes = self._keeper.lanes
        return lanes[place].next_offset if place in lanes else 0

    def _heartbeats(self, assigned: set[Place], ends: Mapping[Place, int], now: float) -> Iterator[Heartbeat]:
        """Yield what had to wait for lanes to tell their time, and that of lanes that wait to be read on."""
        if not assigned:
            # Nobody knows yet what there is to read.
            return
        lanes = self._keeper.lanes
        unread = [p for p in assigned if p not in ends or self._read(p) < ends[p]]
        untold = [p for p in unread if p not in lanes or math.isinf(lanes[p].watermark.time)]
        held = self._beats.held
        yield from self._beats.look(untold, now)
        if not self._beats.held:
            waiting = [p for p in unread if p in lanes and lanes[p].heard < now - QUIET_SECONDS]
            # Once they need not be held back all: whoever read these partitions before may have ended so.
            for place in sorted(lanes) if held else waiting:
                yield from lanes[place].heartbeats()

    def _outgoing(self, done: Iterable[Step]) -> list[Outgoing]:
        outgoing: list[Outgoing] = []
        for message, outputs in done:
            if isinstance(outputs, BadRecord):
                self._health.dead_letters[message.topic, outputs.reason] += 1
                outgoing.append(dead_letter(message, outputs, topic=self._name(DEAD_LETTERS)))
            else:
                outgoing += self._suspicions(outputs)
                outgoing += self._ends(outputs)
        return outgoing

    def _ends(self, outputs: Iterable[Any]) -> list[Outgoing]:
        """Return the messages by which events of nodes end jobs: each goes where the job's steps go."""
        topic = self._name(JOB_STEPS)
        ends = (o for o in outputs if isinstance(o, JobEnded))
        return [Outgoing(topic, end.job_id.encode(), encode(end), []) for end in ends]

    def _of_clocks(self, place: Place) -> list[Outgoing]:
        return self._suspicions(map(self._tuning.judged, self._keeper.news(place)))

    def _suspicions(self, outputs: Iterable[Any]) -> list[Outgoing]:
        found = self._beats.pass_on([o for o in outputs if isinstance(o, StageMessage)])
        self._health.outputs["suspicions"] += len(found)
        topic = self._name(SUSPICIONS)
        return [Outgoing(topic, s.cluster.encode(), encode(s), []) for s in found]


def _drop(outputs: list[Any]) -> None:
    """What a lane puts out while it is built was durable before its offset was committed."""
