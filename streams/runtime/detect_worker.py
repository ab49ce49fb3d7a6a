"""The detecting worker: telemetry to suspicions, unreadable messages to dead letters."""

import asyncio
import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from slowrank.telemetry import BadRecord, Heartbeat, JobEnded, StageMessage, encode
from slowrank.telemetry.topics import JOB_STEPS, NODE_EVENTS, NODE_SAMPLES, SUSPICIONS
from streams.config.settings import Tuning
from streams.config.stages import job_memory, job_stage, node_stage
from streams.job.memory import JobMemory
from streams.job.stage import DEFAULT_MEMORY_BYTES
from streams.runtime.kafka.decoding import TELEMETRY
from streams.runtime.kafka.message import Message, Outgoing, PartitionId
from streams.runtime.kafka.moved_keys import MovedKeys
from streams.runtime.monitoring.node_counts import NodeTotals
from streams.runtime.partitions.context import WorkerContext
from streams.runtime.partitions.heartbeats import HeartbeatGate
from streams.runtime.partitions.partition import PartitionState
from streams.runtime.partitions.partition_table import PartitionTable, Step, TopicConfig
from streams.runtime.partitions.receive_time import ReceiveTime

# Log that rebuilds a partition of events: their rules count repeats over a day.
EVENT_WINDOW_SECONDS = 86400.0

# How far an idle partition stays behind those that report. Chosen: its records may be seconds late.
IDLE_MARGIN_SECONDS = 5.0

# Time without a message after which a partition counts as idle. Chosen: five ticks of an exporter.
IDLE_SECONDS = 5.0


class Detect:
    """Takes messages of the telemetry topics, each into the state of its partition.

    ``take`` never raises except on cancellation. The future it returns is done when all outputs of the
    message are durable: only then may the message be acknowledged.
    """

    def __init__(
        self,
        context: WorkerContext,
        *,
        tuning: Tuning,
        job_memory_bytes: int = DEFAULT_MEMORY_BYTES,
        moves: MovedKeys | None = None,
    ) -> None:
        self._context = context
        self._samples, self._events, self._steps = map(context.name, (NODE_SAMPLES, NODE_EVENTS, JOB_STEPS))
        self._tuning = tuning

        def of_nodes(name: str) -> PartitionState:
            return PartitionState(name, node_stage(tuning))

        def of_jobs(name: str) -> PartitionState:
            return PartitionState(name, job_stage(tuning, name=name, memory_bytes=job_memory_bytes))

        samples, events, steps = (TELEMETRY[topic] for topic in (NODE_SAMPLES, NODE_EVENTS, JOB_STEPS))
        topics = {
            self._samples: TopicConfig(samples, of_nodes, context.window, in_order=True, clocked=True),
            # Not put in order: event rules take events in any order, and none has to wait for another sender.
            self._events: TopicConfig(events, of_nodes, EVENT_WINDOW_SECONDS, clocked=True),
            self._steps: TopicConfig(steps, of_jobs, context.window, in_order=True, clocked=True),
        }
        self._time = -math.inf
        self._receive = ReceiveTime()
        self._beats = HeartbeatGate()
        self.partitions: PartitionTable[PartitionState] = PartitionTable(topics, context, moves=moves)

    async def take(self, message: Message) -> asyncio.Future[None]:
        """Process one message and post its outputs."""
        health, post = self._context.health, self._context.producer.post
        health.took(message.topic, message.partition, message.timestamp)
        if message.topic != self._events:
            # Events are too rare to show whether samples arrive.
            self._receive.received()
        state = await self.partitions.state_of(message, rebuilt=_drop)
        if message.offset < state.next_offset:
            # Taken before: acknowledged when the last of what has been posted by now is durable.
            return post([])
        # Nothing is awaited from here on, so that a cancelled worker leaves no half step in the state.
        self.partitions.took(state, message)
        state.received = self._context.now()
        if (moved := self.partitions.sent_on(message)) is not None:
            return self._context.send_on(moved)
        outgoing = self._outgoing(self.partitions.steps(state, message))
        clocks = self.partitions.clock_suspicions((message.topic, message.partition))
        durable = post(outgoing + self._suspicions(map(self._tuning.judged, clocks)))
        health.event_time[state.name] = state.watermark.time
        return durable

    def idle(self, assigned: Iterable[PartitionId], ends: Mapping[PartitionId, int]) -> None:
        """Advance event time in idle partitions; ``ends`` are the end offsets known.

        A job in which no rank makes a step sends nothing that could advance its time, nor do the nodes of a
        partition when all of them are silent. Where such a partition is read to its end, it follows the time
        of the nodes that still report, or that of the jobs when no node does. Where nothing reports, receive
        time advances it, as long as the brokers answer and all is read.
        """
        assigned = set(assigned)
        self.partitions.retain(assigned)
        states, now, health = self.partitions.states, self._context.now(), self._context.health
        post = self._context.producer.post
        post(self._suspicions(self._heartbeats(assigned, ends, now)))
        idle = {place for place, state in states.items() if state.received < now - IDLE_SECONDS}
        # Where nothing reports any more, those that did last: this may be the first look since.
        latest = max((state.received for state in states.values()), default=now)
        since = min(now, latest) - IDLE_SECONDS
        live = {place for place, state in states.items() if state.received and state.received >= since}
        reporting = {p for p in live if p[0] == self._samples} or {p for p in live if p[0] == self._steps}
        time = self._event_time(reporting, self._receive.look(now, listening=self._listening(assigned, ends)))
        counts = [state.senders.counts(max(time, state.watermark.time)) for state in states.values()]
        health.jobs = sum((job_memory(state.stage) for state in states.values()), start=JobMemory())
        health.nodes = NodeTotals(*map(sum, zip(*counts, strict=True))) if counts else NodeTotals()
        for place, state in list(states.items()):
            if place not in ends or state.next_offset < ends[place]:
                continue
            if released := list(self.partitions.release(place, now)):
                # What was held back advances time as if it had come only now.
                state.received = now
                post(self._outgoing(released))
            # The state of events has nothing that waits for a tick, and samples that still come advance
            # their time themselves.
            waits = place[0] == self._steps or (place[0] == self._samples and place in idle)
            if waits and not self.partitions.holds(place):
                post(self._suspicions(state.reach(time - IDLE_MARGIN_SECONDS)))

    async def prepare(self, place: PartitionId, offset: int, *, timestamp: float) -> None:
        """Build the state of a partition that may stay idle, up to the committed ``offset``."""
        if place in self.partitions.states:
            return
        state = await self.partitions.state_at(place, offset, timestamp=timestamp, rebuilt=_drop)
        if math.isfinite(state.watermark.time):
            # It counts as read just now: how far its nodes have come is the time of jobs that hang meanwhile.
            state.received = max(state.received, self._context.now())

    def _listening(self, assigned: Collection[PartitionId], ends: Mapping[PartitionId, int]) -> bool:
        """Return whether all there is was read, and what was read last was live."""
        states, holds = self.partitions.states, self.partitions.holds
        read = all(p in ends and self._read(p) >= ends[p] and not holds(p) for p in assigned)
        return read and any(state.live for place, state in states.items() if place[0] != self._events)

    def _event_time(self, reporting: Collection[PartitionId], idle_seconds: float) -> float:
        """Return the time of what still reports; where nothing does, the last one and ``idle_seconds``."""
        states = self.partitions.states
        times = [states[place].watermark.time for place in reporting]
        if not times and math.isinf(self._time):
            # A worker that has just started has rebuilt its partitions, and no message has come since.
            times = [max((state.watermark.time for state in states.values()), default=-math.inf)]
        self._time = min(times, default=self._time)
        return self._time + idle_seconds

    def _read(self, place: PartitionId) -> int:
        """Return up to which offset a partition has been read: one without state is at its beginning."""
        states = self.partitions.states
        return states[place].next_offset if place in states else 0

    def _heartbeats(
        self, assigned: set[PartitionId], ends: Mapping[PartitionId, int], now: float
    ) -> Iterator[Heartbeat]:
        """Yield heartbeats that were held back until every partition had a time, and those of partitions
        that are not read on for now.
        """
        if not assigned:
            # What there is to read is not known yet.
            return
        states = self.partitions.states
        unread = [p for p in assigned if p not in ends or self._read(p) < ends[p]]
        held = self._beats.held
        # The stage does not wait for events: when there is much to read, they are read before time passes.
        timeless = [
            p
            for p in unread
            if p not in states or math.isinf(states[p].watermark.time) or (held and p[0] == self._events)
        ]
        yield from self._beats.look(timeless, now)
        if not self._beats.held:
            waiting = [p for p in unread if p in states and states[p].received < now - IDLE_SECONDS]
            # On release those of all partitions: the previous reader may have stopped at any of them.
            for place in sorted(states) if held else waiting:
                yield from states[place].heartbeats()

    def _outgoing(self, done: Iterable[Step]) -> list[Outgoing]:
        outgoing: list[Outgoing] = []
        for message, outputs in done:
            if isinstance(outputs, BadRecord):
                outgoing.append(self._context.dead_letter(message, outputs))
            else:
                outgoing += self._suspicions(outputs)
                outgoing += self._ends(outputs)
        return outgoing

    def _ends(self, outputs: Iterable[Any]) -> list[Outgoing]:
        """Return the messages by which events of nodes end jobs: each goes where the job's steps go."""
        ends = (o for o in outputs if isinstance(o, JobEnded))
        return [Outgoing(self._steps, end.job_id.encode(), encode(end), []) for end in ends]

    def _suspicions(self, outputs: Iterable[Any]) -> list[Outgoing]:
        found = self._beats.pass_on([o for o in outputs if isinstance(o, StageMessage)])
        self._context.health.outputs["suspicions"] += len(found)
        topic = self._context.name(SUSPICIONS)
        return [Outgoing(topic, s.cluster.encode(), encode(s), []) for s in found]


def _drop(outputs: list[Any]) -> None:
    """Outputs of messages read again were durable before the offset was committed."""
