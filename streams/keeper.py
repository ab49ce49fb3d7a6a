"""The lanes of a worker: which there are, and how one comes to know the past it did not see."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from aiokafka.errors import KafkaError

from slowrank.telemetry import BadRecord
from streams.dead_letters import STAGE_ERROR, Message
from streams.health import Health
from streams.outlet import until_done
from streams.probe import Place
from streams.reorder import Reorder
from streams.watermark import Watermark

log = logging.getLogger(__name__)

T = TypeVar("T")


class Driven(Protocol[T]):
    """A lane as the keeper sees it."""

    name: str
    next_offset: int

    @property
    def watermark(self) -> Watermark: ...

    def process(self, record: Any, logged: float, /) -> list[T]: ...


D = TypeVar("D", bound=Driven[Any])

Step = tuple[Message, list[Any] | BadRecord]
"""A message and what it gave rise to, or why it could not be used."""

_Read = tuple[Any, Message]

Reread = Callable[[str, int, float, int], AsyncIterator[Message]]
"""Yields the messages of (topic, partition) from a time stamp on and below an offset."""


@dataclass(frozen=True, slots=True)
class Course(Generic[D]):
    """How one topic is read: its decoder, its lanes, how many seconds of the past make a lane whole.

    ``in_order``: records that piled up at their senders are put back in order of event time.
    """

    decode: Callable[[bytes, float], Any]
    lane: Callable[[str], D]
    window: float
    in_order: bool = False


class Keeper(Generic[D]):
    """Lanes by (topic, partition). A lane that is not exactly up to the next message is built anew."""

    def __init__(
        self,
        courses: Mapping[str, Course[D]],
        *,
        reread: Reread,
        health: Health,
        now: Callable[[], float],
    ) -> None:
        self._courses = courses
        self._reread = reread
        self._health = health
        self._now = now
        self._lanes: dict[Place, D] = {}
        self._orders: dict[Place, Reorder[_Read]] = {}
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
        # A message and the worker's round may ask for the same lane at once; the second waits for what the
        # first builds.
        async with self._locks.setdefault(place, asyncio.Lock()):
            lane = self._lanes.get(place)
            if lane is None or offset > lane.next_offset:
                lane = await self._build(place, offset, timestamp, rebuilt)
                self._lanes[place] = lane
            return lane

    def steps(self, lane: D, message: Message) -> Iterator[Step]:
        """Decode a message and process what is its turn now: it, what was held back before it, or nothing."""
        place = (message.topic, message.partition)
        # The log's time, so that an old message reads today as it did then; never later than now, so that a
        # sender whose clock is ahead cannot vouch for itself.
        then = min(message.timestamp, self._now())
        try:
            record = self._courses[message.topic].decode(message.value, then)
        except BadRecord as error:
            yield message, error
            return
        order = self._orders.get(place)
        turn = [(record, message)]
        if order is not None:
            sender = f"{record.cluster}/{record.node}"
            turn = order.take(turn[0], sender=sender, ts=record.ts, logged=message.timestamp)
        yield from self._processed(lane, turn)

    def step(self, lane: D, message: Message) -> list[Any]:
        """Do the same for a lane that takes messages as they come. Raises ``BadRecord``."""
        ((_, outputs),) = self.steps(lane, message)
        if isinstance(outputs, BadRecord):
            raise outputs
        return outputs

    def release(self, place: Place, now: float) -> Iterator[Step]:
        """Process what was held back for long enough by ``now`` (Unix seconds), when no message comes."""
        if place in self._orders and place in self._lanes:
            yield from self._processed(self._lanes[place], self._orders[place].reach(now))

    def holds(self, place: Place) -> bool:
        """Return whether messages of a partition are held back."""
        return place in self._orders and bool(self._orders[place])

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
            # Lane and order are made in each attempt: one that broke off has taken messages already.
            course = self._courses[topic]
            lane = course.lane(name)
            count = 0
            if course.in_order:
                self._orders[place] = Reorder()
            async for message in self._reread(topic, partition, timestamp - course.window, offset):
                for _, outputs in self.steps(lane, message):
                    # What could not be read was set aside when it was first read.
                    rebuilt([] if isinstance(outputs, BadRecord) else outputs)
                count += 1
                # So that the rounds and the heartbeats to the brokers go on.
                if count % 100 == 0:
                    await asyncio.sleep(0)
            lane.next_offset = offset
            log.info("%s: %d messages read again before offset %d", name, count, offset)
            return lane

        # Nothing is taken meanwhile; that is no stall for the watchdog.
        with self._health.waiting(f"rebuild of {name}"):
            return await until_done(attempt, (KafkaError,), health=self._health, what="kafka")

    def _processed(self, lane: D, turn: Iterable["_Read"]) -> Iterator[Step]:
        for record, message in turn:
            try:
                yield message, lane.process(record, message.timestamp)
            except Exception as error:
                # Whatever a stage raises is a bug of the stage; the stream must outlive it.
                log.exception("%s:%d:%d made a stage fail", message.topic, message.partition, message.offset)
                yield message, BadRecord(STAGE_ERROR, f"{type(error).__name__}: {error}"[:300])
