"""The lanes of a worker: which there are, and how one comes to know the past it did not see."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

from aiokafka.errors import KafkaError

from slowrank.telemetry import BadRecord, JobEnded, Suspicion
from slowrank.telemetry.checks import BAD_TIME, MAX_INT
from streams.runtime.kafka.dead_letters import STAGE_ERROR, Message, Outgoing
from streams.runtime.kafka.moved_keys import Cuts, Moves
from streams.runtime.kafka.offsets import Place
from streams.runtime.kafka.producer import until_done
from streams.runtime.monitoring.health import Health
from streams.runtime.partitions.clock_offsets import Clocks, Node
from streams.runtime.partitions.reorder_buffer import Reorder
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

    ``in_order``: records that piled up at their senders are put back in order of event time. ``clocked``:
    records are of nodes, and those of a clock that is far off are set right.
    """

    decode: Callable[[bytes, float | None], Any]
    lane: Callable[[str], D]
    window: float
    in_order: bool = False
    clocked: bool = False


class PartitionTable(Generic[D]):
    """Lanes by (topic, partition). A lane that is not exactly up to the next message is built anew.

    When a topic has grown all its lanes are: without the keys that moved away, and with the past of those
    that moved in, from the partitions where they were (``moves``).
    """

    def __init__(
        self,
        courses: Mapping[str, Course[D]],
        *,
        reread: Reread,
        health: Health,
        now: Callable[[], float],
        moves: Moves | None = None,
    ) -> None:
        self._courses = courses
        self._reread = reread
        self._health = health
        self._now = now
        self._moves = moves
        self._cuts: dict[Place, Cuts] = {}
        self._lanes: dict[Place, D] = {}
        self._orders: dict[Place, Reorder[_Read]] = {}
        self._clocks: dict[Place, Clocks[Message]] = {}
        self._behind: dict[Node, float] = {}
        self._locks: dict[Place, asyncio.Lock] = {}

    @property
    def lanes(self) -> Mapping[Place, D]:
        """Lanes that are up to date."""
        return self._lanes

    async def lane_of(self, message: Message, *, rebuilt: Callable[[list[Any]], None]) -> D:
        """Return the lane of a message, with everything before it in it; see ``lane_at``."""
        place, origin = (message.topic, message.partition), None
        if self._moves is not None and message.moved:
            origin = self._moves.placement.moved_from(message)
        if origin is not None and origin[1] < self._cuts.get(place, {}).get(origin[0], MAX_INT):
            # It was sent on instead of processed: taken for the past of this lane, what follows from it would
            # be lost.
            built_with_it = origin[0] in self._cuts.setdefault(place, {})
            self._cuts[place][origin[0]] = origin[1]
            if built_with_it:
                self.forget(place)
        return await self.lane_at(place, message.offset, timestamp=message.timestamp, rebuilt=rebuilt)

    def sent_on(self, message: Message) -> Outgoing | None:
        """Return what is to be sent instead of processing a message whose key moved to another partition."""
        return None if self._moves is None else self._moves.sent_on(message)

    async def has_past(self, place: Place) -> bool:
        """Return whether keys of a partition were in others a moment ago."""
        await self._settle()
        return self._moves is not None and bool(self._moves.placement.sources(place, self._now()))

    async def lane_at(
        self, place: Place, offset: int, *, timestamp: float, rebuilt: Callable[[list[Any]], None]
    ) -> D:
        """Return the lane of ``place``, with everything before ``offset`` in it.

        ``timestamp`` (Unix seconds) is the log's time at ``offset``; ``rebuilt`` is given what the lane put
        out while it was built.
        """
        await self._settle()
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
        # The log's time, so that an old message reads today as it did then; never later than now, so that a
        # sender whose clock is ahead cannot vouch for itself.
        then = min(message.timestamp, self._now())
        record, refused = self._decoded(message, then)
        if isinstance(record, JobEnded) and refused is None:
            # Its time is that of an event of a node: it measures no clock, and is no sign of a spool. Rows
            # that come after it are of before it.
            yield from self._processed(lane, [(record, message)])
            return
        if record is not None:
            clocks = self._clocks.get((message.topic, message.partition))
            ready = [(record, message)] if refused is None else []
            if clocks is not None:
                ready = clocks.take(record, message, logged=then, fits=refused is None)
                refused = None if any(taken is message for _, taken in ready) else refused
            yield from self._in_order(lane, ready)
        if refused is not None:
            yield message, refused

    def _decoded(self, message: Message, then: float) -> tuple[Any, BadRecord | None]:
        """Return the record of a message, None if it cannot be read, and why it is refused, None if not."""
        decode = self._courses[message.topic].decode
        try:
            return decode(message.value, then), None
        except BadRecord as refused:
            if refused.reason != BAD_TIME or not self._courses[message.topic].clocked:
                return None, refused
            try:
                return decode(message.value, None), refused
            except BadRecord:
                return None, refused

    def _in_order(self, lane: D, ready: Iterable[_Read]) -> Iterator[Step]:
        for record, message in ready:
            order = self._orders.get((message.topic, message.partition))
            turn = [(record, message)]
            if order is not None:
                sender = f"{record.cluster}/{record.node}"
                turn = order.take(turn[0], sender=sender, ts=record.ts, logged=message.timestamp)
            yield from self._processed(lane, turn)

    def news(self, place: Place) -> list[Suspicion]:
        """Return the suspicions about the clocks of a partition's nodes since the last call."""
        return self._clocks[place].news() if place in self._clocks else []

    def step(self, lane: D, message: Message) -> list[Any]:
        """Do the same for a lane that takes messages as they come. Raises ``BadRecord``."""
        ((_, outputs),) = self.steps(lane, message)
        if isinstance(outputs, BadRecord):
            raise outputs
        return outputs

    def release(self, place: Place, now: float) -> Iterator[Step]:
        """Process what was held back for long enough by ``now`` (Unix seconds), when no message comes."""
        if place in self._lanes and place in self._clocks:
            yield from self._in_order(self._lanes[place], self._clocks[place].reach(now))
        if place in self._lanes and place in self._orders:
            yield from self._processed(self._lanes[place], self._orders[place].reach(now))

    def holds(self, place: Place) -> bool:
        """Return whether messages of a partition are held back."""
        ordered = place in self._orders and self._orders[place].holds(self._now())
        return ordered or (place in self._clocks and self._clocks[place].holding)

    def forget(self, place: Place) -> None:
        """Drop a lane that may have done half a step."""
        self._lanes.pop(place, None)

    def retain(self, places: Iterable[Place]) -> None:
        """Drop the lanes of partitions that are another worker's now."""
        kept = set(places)
        for place in [p for p in self._lanes if p not in kept]:
            del self._lanes[place]

    async def _settle(self) -> None:
        if self._moves is not None:
            grown = await self._moves.settle(self._courses.keys())
            for place in [p for p in self._lanes if p[0] in grown]:
                self.forget(place)

    async def _build(
        self, place: Place, offset: int, timestamp: float, rebuilt: Callable[[list[Any]], None]
    ) -> D:
        topic, partition = place
        name, course = f"{topic}:{partition}", self._courses[topic]
        since = timestamp - course.window
        cuts = await self._moves.cuts(place, since) if self._moves is not None else {}
        # What an earlier attempt has learnt of records that were sent on holds for as long as they do.
        cuts = {p: min(cut, self._cuts.get(place, {}).get(p, cut)) for p, cut in cuts.items()}
        self._cuts[place] = cuts

        async def attempt() -> D:
            # State and order are made in each attempt: one that broke off has taken messages already.
            lane = course.lane(name)
            count = 0
            if course.in_order:
                self._orders[place] = Reorder()
            if course.clocked:
                self._clocks[place] = Clocks(self._behind)
            async for message in self._past(place, since, offset):
                for _, outputs in self.steps(lane, message):
                    # What could not be read was set aside when it was first read.
                    rebuilt([] if isinstance(outputs, BadRecord) else outputs)
                count += 1
                # So that the rounds and the heartbeats to the brokers go on.
                if count % 100 == 0:
                    await asyncio.sleep(0)
            lane.next_offset = offset
            # What was said of clocks was said when these messages were first taken.
            self.news(place)
            if cuts and course.in_order:
                # What is sent on from former partitions comes in behind what senders put here directly.
                self._orders[place].pause(self._now())
            log.info("%s: %d messages read again before offset %d", name, count, offset)
            return lane

        # Nothing is taken meanwhile; that is no stall for the watchdog.
        with self._health.waiting(f"rebuild of {name}"):
            return await until_done(attempt, (KafkaError,), health=self._health, what="kafka")

    async def _past(self, place: Place, since: float, offset: int) -> AsyncIterator[Message]:
        """Yield what is the past of a partition's keys, wherever it lies; of former partitions first."""
        topic, partition = place
        for source, cut in self._cuts.get(place, {}).items():
            async for message in self._reread(topic, source, since, cut):
                if self._moves is not None and self._moves.placement.belongs(message, partition):
                    yield replace(message, partition=partition)
        async for message in self._reread(topic, partition, since, offset):
            if self.sent_on(message) is None:
                yield message

    def _processed(self, lane: D, turn: Iterable["_Read"]) -> Iterator[Step]:
        for record, message in turn:
            try:
                yield message, lane.process(record, message.timestamp)
            except Exception as error:
                # Whatever a stage raises is a bug of the stage; the stream must outlive it.
                log.exception("%s:%d:%d made a stage fail", message.topic, message.partition, message.offset)
                yield message, BadRecord(STAGE_ERROR, f"{type(error).__name__}: {error}"[:300])
