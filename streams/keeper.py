"""The lanes of a worker: which there are, and how one comes to know the past it did not see."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from aiokafka.errors import KafkaError

from slowrank.telemetry import BadRecord
from streams.dead_letters import STAGE_ERROR, Message
from streams.health import Health
from streams.outlet import until_done
from streams.probe import Place
from streams.watermark import Watermark

log = logging.getLogger(__name__)

T = TypeVar("T")


class Driven(Protocol[T]):
    """A lane as the keeper sees it."""

    name: str
    next_offset: int

    @property
    def watermark(self) -> Watermark: ...

    def process(self, record: Any, /) -> list[T]: ...


D = TypeVar("D", bound=Driven[Any])

Reread = Callable[[str, int, float, int], AsyncIterator[Message]]
"""Yields the messages of (topic, partition) from a time stamp on and below an offset."""


@dataclass(frozen=True, slots=True)
class Course(Generic[D]):
    """How one topic is read: its decoder, its lanes, how many seconds of the past make a lane whole."""

    decode: Callable[[bytes], Any]
    lane: Callable[[str], D]
    window: float


class Keeper(Generic[D]):
    """Lanes by (topic, partition). A lane that is not exactly up to the next message is built anew."""

    def __init__(self, courses: Mapping[str, Course[D]], *, reread: Reread, health: Health) -> None:
        self._courses = courses
        self._reread = reread
        self._health = health
        self._lanes: dict[Place, D] = {}
        self._locks: dict[Place, asyncio.Lock] = {}

    @property
    def lanes(self) -> Mapping[Place, D]:
        """Lanes that are up to date."""
        return self._lanes

    async def lane_at(
        self, place: Place, offset: int, *, timestamp: float, rebuilt: Callable[[list[Any]], None]
    ) -> D:
        """Return the lane of ``place``, with everything before ``offset`` in it.

        ``timestamp`` (Unix seconds) is the log's time at ``offset``; ``rebuilt`` is given what the lane put
        out while it was built.
        """
        async with self._locks.setdefault(place, asyncio.Lock()):
            lane = self._lanes.get(place)
            if lane is None or offset > lane.next_offset:
                lane = await self._build(place, offset, timestamp, rebuilt)
                self._lanes[place] = lane
            return lane

    def step(self, lane: D, message: Message) -> list[Any]:
        """Decode and process one message. Raises ``BadRecord``, also for a record on which a stage fails."""
        record = self._courses[message.topic].decode(message.value)
        try:
            return lane.process(record)
        except Exception as error:
            # Whatever a stage raises is a bug of the stage; the stream must outlive it.
            log.exception("%s:%d:%d made a stage fail", message.topic, message.partition, message.offset)
            raise BadRecord(STAGE_ERROR, f"{type(error).__name__}: {error}"[:300]) from error

    def forget(self, place: Place) -> None:
        """Drop a lane that may have done half a step."""
        self._lanes.pop(place, None)

    def retain(self, places: Iterable[Place]) -> None:
        """Drop the lanes of partitions that are another worker's now."""
        kept = set(places)
        for place in [p for p in self._lanes if p not in kept]:
            del self._lanes[place]

    async def _build(
        self, place: Place, offset: int, timestamp: float, rebuilt: Callable[[list[Any]], None]
    ) -> D:
        topic, partition = place
        name = f"{topic}:{partition}"

        async def attempt() -> D:
            course = self._courses[topic]
            lane = course.lane(name)
            count = 0
            async for message in self._reread(topic, partition, timestamp - course.window, offset):
                rebuilt(self._quietly(lane, message))
                count += 1
                if count % 100 == 0:
                    await asyncio.sleep(0)
            lane.next_offset = offset
            log.info("%s: %d messages read again before offset %d", name, count, offset)
            return lane

        with self._health.waiting(f"rebuild of {name}"):
            return await until_done(attempt, (KafkaError,), health=self._health, what="kafka")

    def _quietly(self, lane: D, message: Message) -> list[Any]:
        try:
            return self.step(lane, message)
        except BadRecord:
            # It was set aside when it was first read.
            return []
