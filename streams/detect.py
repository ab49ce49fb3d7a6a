"""The detecting worker: telemetry in, suspicions out, whatever cannot be read into the dead letters."""

import asyncio
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from slowrank.telemetry import BadRecord, Suspicion, decode_event, decode_sample, decode_steps, encode
from slowrank.telemetry.topics import DEAD_LETTERS, JOB_STEPS, NODE_EVENTS, NODE_SAMPLES, SUSPICIONS
from streams.dead_letters import Message, Outgoing, dead_letter
from streams.health import Health
from streams.job_stage import JobStage
from streams.keeper import Course, Keeper, Reread, Step
from streams.lanes import Lane
from streams.node_stage import NodeStage
from streams.probe import Place

EVENT_WINDOW_SECONDS = 86400.0
IDLE_MARGIN_SECONDS = 5.0

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
    ) -> None:
        self._name = name
        self._outlet = outlet
        self._health = health
        self._now = now
        courses = {
            name(NODE_SAMPLES): Course(
                lambda data, then: decode_sample(data, now=then),
                lambda lane: Lane(lane, NodeStage()),
                window,
                in_order=True,
            ),
            name(NODE_EVENTS): Course(
                lambda data, then: decode_event(data, now=then),
                lambda lane: Lane(lane, NodeStage()),
                EVENT_WINDOW_SECONDS,
            ),
            name(JOB_STEPS): Course(
                lambda data, then: decode_steps(data, now=then),
                lambda lane: Lane(lane, JobStage()),
                window,
                in_order=True,
            ),
        }
        self._keeper: Keeper[Lane] = Keeper(courses, reread=reread, health=health, now=now)

    async def take(self, message: Message) -> asyncio.Future[None]:
        """Process one message and post its outputs."""
        self._health.took(message.topic)
        place = (message.topic, message.partition)
        lane = await self._keeper.lane_at(place, message.offset, timestamp=message.timestamp, rebuilt=_drop)
        if message.offset < lane.next_offset:
            return self._outlet.post([])
        lane.next_offset = message.offset + 1
        durable = self._outlet.post(self._outgoing(self._keeper.steps(lane, message)))
        self._health.event_time[lane.name] = lane.watermark.time
        return durable

    @property
    def positions(self) -> dict[Place, int]:
        """Next offsets of the partitions that are being read."""
        return {place: lane.next_offset for place, lane in self._keeper.lanes.items()}

    def idle(self, assigned: Iterable[Place], ends: Mapping[Place, int]) -> None:
        """Let event time pass for jobs that have fallen quiet; ``ends`` are the end offsets known.

        A job in which no rank makes a step sends nothing that could move its time. Where its partition is
        read to the end, the nodes' time holds for it too.
        """
        self._keeper.retain(assigned)
        lanes = self._keeper.lanes
        samples, steps = self._name(NODE_SAMPLES), self._name(JOB_STEPS)
        time = min((lane.watermark.time for (t, _), lane in lanes.items() if t == samples), default=-math.inf)
        for place, lane in list(lanes.items()):
            if place not in ends or lane.next_offset < ends[place]:
                continue
            self._outlet.post(self._outgoing(self._keeper.release(place, self._now())))
            if place[0] == steps and not self._keeper.holds(place):
                self._outlet.post(self._suspicions(lane.reach(time - IDLE_MARGIN_SECONDS)))

    async def prepare(self, place: Place, offset: int, *, timestamp: float) -> None:
        """Build the lane of a partition that may stay quiet, up to the committed ``offset``."""
        if place not in self._keeper.lanes:
            await self._keeper.lane_at(place, offset, timestamp=timestamp, rebuilt=_drop)

    def _outgoing(self, done: Iterable[Step]) -> list[Outgoing]:
        outgoing: list[Outgoing] = []
        for message, outputs in done:
            if isinstance(outputs, BadRecord):
                self._health.dead_letters[message.topic, outputs.reason] += 1
                outgoing.append(dead_letter(message, outputs, topic=self._name(DEAD_LETTERS)))
            else:
                outgoing += self._suspicions(outputs)
        return outgoing

    def _suspicions(self, outputs: Iterable[Any]) -> list[Outgoing]:
        found = [s for s in outputs if isinstance(s, Suspicion)]
        self._health.outputs["suspicions"] += len(found)
        topic = self._name(SUSPICIONS)
        return [Outgoing(topic, s.cluster.encode(), encode(s), []) for s in found]


def _drop(outputs: list[Any]) -> None:
    """What a lane puts out while it is built was durable before its offset was committed."""
