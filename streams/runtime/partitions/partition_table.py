"""State by partition: which partitions a worker has, and how the state of one is rebuilt from the log."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

from aiokafka.errors import KafkaError

from slowrank.telemetry import BadRecord, JobEnded, Suspicion
from slowrank.telemetry.checks import BAD_TIME, MAX_INT
from streams.runtime.kafka.dead_letters import STAGE_ERROR
from streams.runtime.kafka.message import Message, Outgoing, PartitionId
from streams.runtime.kafka.moved_keys import Cuts, MovedKeys
from streams.runtime.kafka.producer import until_done
from streams.runtime.partitions.clock_offsets import ClockCorrector, Node
from streams.runtime.partitions.context import WorkerContext
from streams.runtime.partitions.partition import PartitionState
from streams.runtime.partitions.reorder_buffer import LONGEST_SECONDS, ReorderBuffer
from streams.runtime.partitions.saved_state import Parts, Wanted, rest_of_log
from streams.runtime.snapshots.snapshot_file import Mark, Refused, Snapshot
from streams.runtime.snapshots.snapshot_folder import mark_of
from streams.watermark import Watermark

log = logging.getLogger(__name__)

T = TypeVar("T")


class Processor(Protocol[T]):
    """The state of one partition, as far as the table uses it."""

    name: str
    next_offset: int

    @property
    def watermark(self) -> Watermark: ...

    def process(self, record: Any, logged: float, /) -> list[T]: ...


S = TypeVar("S", bound=Processor[Any])

Step = tuple[Message, list[Any] | BadRecord]
"""A message and what it gave rise to, or why it could not be used."""

_Read = tuple[Any, Message]


@dataclass(frozen=True, slots=True)
class TopicConfig(Generic[S]):
    """How one topic is read: its decoder, the state of its partitions, the seconds of log that rebuild it.

    ``in_order``: records that a sender held back are put back in order of event time. ``clocked``: records
    are of nodes, and the times of a node whose clock is far off are corrected.
    """

    decode: Callable[[bytes, float | None], Any]
    new_state: Callable[[str], S]
    window: float
    in_order: bool = False
    clocked: bool = False


class PartitionTable(Generic[S]):
    """State by (topic, partition). A state that does not end exactly before the next message is rebuilt.

    When a topic has grown, the states of all its partitions are: without the keys that moved away, and with
    the past of those that moved in, read from the partitions where they were (``moves``).
    """

    def __init__(
        self,
        topics: Mapping[str, TopicConfig[S]],
        context: WorkerContext,
        *,
        moves: MovedKeys | None = None,
    ) -> None:
        self._topics = topics
        self._context = context
        self._moves = moves
        self._cuts: dict[PartitionId, Cuts] = {}
        self._states: dict[PartitionId, S] = {}
        self._orders: dict[PartitionId, ReorderBuffer[_Read]] = {}
        self._clocks: dict[PartitionId, ClockCorrector[Message]] = {}
        self._behind: dict[Node, float] = {}
        self._last: dict[PartitionId, Message | Mark] = {}
        # Where a stage has failed: the state may be the cause, and must not outlive the process.
        self._failed: set[PartitionId] = set()
        self._locks: dict[PartitionId, asyncio.Lock] = {}

    @property
    def states(self) -> Mapping[PartitionId, S]:
        """States that are up to date."""
        return self._states

    @property
    def positions(self) -> dict[PartitionId, int]:
        """Next offsets of the partitions that are being read."""
        return {place: state.next_offset for place, state in self._states.items()}

    async def state_of(self, message: Message, *, rebuilt: Callable[[list[Any]], None]) -> S:
        """Return the state of a message's partition as of just before it; see ``state_at``."""
        place, origin = (message.topic, message.partition), None
        if self._moves is not None and message.moved:
            origin = self._moves.placement.moved_from(message)
        if origin is not None and origin[1] < self._cuts.get(place, {}).get(origin[0], MAX_INT):
            # It was sent on instead of processed: if the rebuild read it as past, its outputs would be lost.
            built_with_it = origin[0] in self._cuts.setdefault(place, {})
            self._cuts[place][origin[0]] = origin[1]
            if built_with_it:
                self.forget(place)
        return await self.state_at(place, message.offset, timestamp=message.timestamp, rebuilt=rebuilt)

    def sent_on(self, message: Message) -> Outgoing | None:
        """Return what is to be sent instead of processing a message whose key moved to another partition."""
        return None if self._moves is None else self._moves.sent_on(message)

    async def has_past(self, place: PartitionId) -> bool:
        """Return whether keys of a partition were in others a moment ago."""
        await self._settle()
        return self._has_past(place, self._context.now())

    async def state_at(
        self, place: PartitionId, offset: int, *, timestamp: float, rebuilt: Callable[[list[Any]], None]
    ) -> S:
        """Return the state of ``place`` as of just before ``offset``.

        ``timestamp`` (Unix seconds) is the log's time at ``offset``; ``rebuilt`` takes the outputs of the
        messages that are read again.
        """
        await self._settle()
        # A message and the worker's round may ask for the same state at once; the second waits for what the
        # first builds. Where nobody builds, as for almost every message, there is nothing to wait for.
        lock, state = self._locks.setdefault(place, asyncio.Lock()), self._states.get(place)
        if state is not None and offset <= state.next_offset and not lock.locked():
            return state
        async with lock:
            state = self._states.get(place)
            if state is None or offset > state.next_offset:
                # Meanwhile nothing that the new state holds back may be processed in the one it replaces.
                self.forget(place)
                state = await self._build(place, offset, timestamp, rebuilt)
                self._states[place] = state
            return state

    def steps(self, state: S, message: Message) -> Iterator[Step]:
        """Decode a message and process what is due now: it, what was held back before it, or nothing."""
        # The log's time, so that an old message is judged as it was then; never later than now, as a sender
        # may stamp messages with a clock that is ahead.
        then = min(message.timestamp, self._context.now())
        record, refused = self._decoded(message, then)
        if isinstance(record, JobEnded) and refused is None:
            # Its time is that of an event of a node: it says nothing about the clock or the spool of the
            # job's senders. Rows that arrive after it are older than it.
            yield from self._processed(state, [(record, message)])
            return
        if record is not None:
            clocks = self._clocks.get((message.topic, message.partition))
            ready = [(record, message)] if refused is None else []
            if clocks is not None:
                ready = clocks.take(
                    record, message, logged=then, fits=refused is None, sent_on=bool(message.moved)
                )
                refused = None if any(taken is message for _, taken in ready) else refused
            yield from self._in_order(state, ready)
        if refused is not None:
            yield message, refused

    def _decoded(self, message: Message, then: float) -> tuple[Any, BadRecord | None]:
        """Return the record of a message, None if it cannot be read, and why it is refused, None if not."""
        decode = self._topics[message.topic].decode
        try:
            return decode(message.value, then), None
        except BadRecord as refused:
            if refused.reason != BAD_TIME or not self._topics[message.topic].clocked:
                return None, refused
            try:
                return decode(message.value, None), refused
            except BadRecord:
                return None, refused

    def _in_order(self, state: S, ready: Iterable[_Read]) -> Iterator[Step]:
        for record, message in ready:
            order = self._orders.get((message.topic, message.partition))
            turn = [(record, message)]
            if order is not None:
                sender = f"{record.cluster}/{record.node}"
                turn = order.take(turn[0], sender=sender, ts=record.ts, logged=message.timestamp)
            yield from self._processed(state, turn)

    def took(self, state: S, message: Message) -> None:
        """Note that all of the log up to and with ``message`` is in a state, or sent on."""
        state.next_offset = message.offset + 1
        self._last[message.topic, message.partition] = message

    def snapshot(self, place: PartitionId) -> Snapshot | None:
        """Return a snapshot of a partition as it is now; None where there is nothing to take one of.

        Raises ``BadState``. It may be written when all outputs posted until now are durable.
        """
        folder, state, last = self._context.snapshots, self._states.get(place), self._last.get(place)
        if folder is None or not isinstance(state, PartitionState) or last is None:
            return None
        if place in self._failed or self._has_past(
            place, self._context.now() - self._topics[place[0]].window
        ):
            return None
        if (kept := state.snapshot()) is None:
            return None
        return folder.frozen(
            place,
            Parts(kept, self._orders.get(place), self._clocks.get(place)),
            last=last if isinstance(last, Mark) else mark_of(last),
            next_offset=state.next_offset,
            partitions=self._partitions(place),
        )

    def clock_suspicions(self, place: PartitionId) -> list[Suspicion]:
        """Return the suspicions about the clocks of a partition's nodes since the last call."""
        return self._clocks[place].suspicions() if place in self._clocks else []

    def release(self, place: PartitionId, now: float) -> Iterator[Step]:
        """Process what was held back for long enough by ``now`` (Unix seconds), when no message comes."""
        if place in self._states and place in self._clocks:
            yield from self._in_order(self._states[place], self._clocks[place].reach(now))
        if place in self._states and place in self._orders:
            yield from self._processed(self._states[place], self._orders[place].reach(now))

    def holds(self, place: PartitionId) -> bool:
        """Return whether messages of a partition are held back."""
        ordered = place in self._orders and self._orders[place].holds(self._context.now())
        return ordered or (place in self._clocks and self._clocks[place].holding)

    def forget(self, place: PartitionId) -> None:
        """Drop a state that may have processed half a message."""
        self._states.pop(place, None)
        self._last.pop(place, None)
        self._failed.discard(place)

    def retain(self, places: Iterable[PartitionId]) -> None:
        """Drop the states of partitions that are assigned to another worker now."""
        kept = set(places)
        for place in [p for p in self._states if p not in kept]:
            self.forget(place)

    def _has_past(self, place: PartitionId, since: float) -> bool:
        return self._moves is not None and bool(self._moves.placement.sources(place, since))

    async def _settle(self) -> None:
        if self._moves is not None and self._moves.unsettled:
            grown = await self._moves.settle(self._topics.keys())
            for place in [p for p in self._states if p[0] in grown]:
                self.forget(place)

    async def _build(
        self, place: PartitionId, offset: int, timestamp: float, rebuilt: Callable[[list[Any]], None]
    ) -> S:
        topic, _ = place
        since = timestamp - self._topics[topic].window
        cuts = await self._moves.cuts(place, since) if self._moves is not None else {}
        # Cuts lowered by messages that were sent on hold for later rebuilds, too.
        cuts = {p: min(cut, self._cuts.get(place, {}).get(p, cut)) for p, cut in cuts.items()}
        self._cuts[place] = cuts

        wanted = Wanted(place, offset, timestamp, since)

        async def attempt() -> S:
            # State and order are made in each attempt: a failed one has taken messages already.
            resumed = await self._resumed(wanted, rebuilt) if not cuts else None
            return resumed or await self._reread(wanted, rebuilt)

        # No message is taken meanwhile: the watchdog must not count that as a stall.
        with self._context.health.waiting(f"rebuild of {topic}:{place[1]}"):
            return await until_done(attempt, (KafkaError,), health=self._context.health, what="kafka")

    async def _resumed(self, wanted: Wanted, rebuilt: Callable[[list[Any]], None]) -> S | None:
        """Return a state from its snapshot and the rest of the log, None where no snapshot can be used."""
        folder, place = self._context.snapshots, wanted.place
        state = self._new_state(place)
        if folder is None or not isinstance(state, PartitionState):
            return None
        saved = await asyncio.to_thread(folder.load, place, partitions=self._partitions(place))
        if saved is None:
            return None
        self._failed.discard(place)
        try:
            self._restore(place, state, saved.state)
            state.next_offset, self._last[place] = saved.header.next_offset, saved.header.last
            await self._read_again(state, rest_of_log(folder.read_on, saved.header, wanted), wanted, rebuilt)
            if place in self._failed:
                raise Refused("unreadable", "the stage fails on what follows")
        except Refused as refused:
            folder.refuse(place, refused)
            return None
        except (KafkaError, asyncio.CancelledError):
            # The log could not be read, or the worker is stopped: the snapshot is as good as before.
            folder.put_back(place)
            raise
        folder.used(place)
        return state

    def _restore(self, place: PartitionId, state: PartitionState, parts: Parts) -> None:
        try:
            state.restore(parts.state)
        except (AttributeError, KeyError, TypeError) as error:
            raise Refused("unreadable", f"{type(error).__name__}: {error}") from error
        if parts.order is not None:
            self._orders[place] = parts.order
        if parts.clock is not None:
            self._clocks[place] = parts.clock
            parts.clock.share(self._behind)

    async def _reread(self, wanted: Wanted, rebuilt: Callable[[list[Any]], None]) -> S:
        """Return a state from the last minutes of the log."""
        place = wanted.place
        config, state = self._topics[place[0]], self._new_state(place)
        self._failed.discard(place)
        if config.in_order:
            self._orders[place] = ReorderBuffer()
        if config.clocked:
            self._clocks[place] = ClockCorrector(self._behind)
        await self._read_again(state, self._past(wanted), wanted, rebuilt)
        if self._cuts[place] and config.in_order:
            # Messages sent on from former partitions arrive after those that senders put here directly.
            self._orders[place].pause(self._context.now())
        return state

    async def _read_again(
        self,
        state: S,
        messages: AsyncIterator[Message],
        wanted: Wanted,
        rebuilt: Callable[[list[Any]], None],
    ) -> None:
        """Process messages whose outputs are durable already, but for ``rebuilt``."""
        count, began = 0, state.next_offset
        async for message in messages:
            if self.sent_on(message) is None:
                for _, outputs in self.steps(state, message):
                    # Unreadable messages became dead letters when they were first read.
                    rebuilt([] if isinstance(outputs, BadRecord) else outputs)
            self._last[wanted.place] = message
            count += 1
            # So that the rounds and the heartbeats to the brokers go on.
            if count % 100 == 0:
                await asyncio.sleep(0)
        state.next_offset = max(began, wanted.offset)
        # Suspicions about clocks were sent when these messages were first taken.
        self.clock_suspicions(wanted.place)
        log.info("%s: %d messages read again before offset %d", state.name, count, state.next_offset)

    def _fail(self, place: PartitionId) -> None:
        self._failed.add(place)
        if self._context.snapshots is not None:
            self._context.snapshots.drop(place)

    def _new_state(self, place: PartitionId) -> S:
        return self._topics[place[0]].new_state(f"{place[0]}:{place[1]}")

    def _partitions(self, place: PartitionId) -> int:
        return 0 if self._moves is None else self._moves.placement.partitions(place[0])

    async def _past(self, wanted: Wanted) -> AsyncIterator[Message]:
        """Yield the past messages of a partition's keys; those in the keys' former partitions first.

        Where keys moved, the last of them are held back and count anew: whoever read the partition before
        may have held them back, too. An output that comes twice changes nothing.
        """
        order = self._orders.get(wanted.place) if self._cuts.get(wanted.place) else None
        async for message in self._logged(wanted):
            if order is not None and message.timestamp > wanted.timestamp - LONGEST_SECONDS:
                order.pause(self._context.now())
                order = None
            yield message

    async def _logged(self, wanted: Wanted) -> AsyncIterator[Message]:
        topic, partition = wanted.place
        for source, cut in self._cuts.get(wanted.place, {}).items():
            async for message in self._context.reread(topic, source, wanted.since, cut):
                if self._moves is not None and self._moves.placement.belongs(message, partition):
                    yield replace(message, partition=partition)
        async for message in self._context.reread(topic, partition, wanted.since, wanted.offset):
            yield message

    def _processed(self, state: S, turn: Iterable[_Read]) -> Iterator[Step]:
        for record, message in turn:
            try:
                yield message, state.process(record, message.timestamp)
            except Exception as error:
                # An exception here is a bug of the stage; one message must not stop the partition.
                log.exception("%s:%d:%d: the stage failed", message.topic, message.partition, message.offset)
                self._fail((message.topic, message.partition))
                yield message, BadRecord(STAGE_ERROR, f"{type(error).__name__}: {error}"[:300])
