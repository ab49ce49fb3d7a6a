"""Keys that moved because their topic grew: which messages to send on, and where the past of a key is."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from aiokafka.errors import KafkaError

from streams.runtime.kafka.message import Message, Outgoing, PartitionId
from streams.runtime.kafka.placement import Counts, Placement
from streams.runtime.kafka.producer import until_done
from streams.runtime.monitoring.health import Health

T = TypeVar("T")

Cuts = dict[int, int]
"""Partition to the offset before which a worker of this role has processed all that lies there."""


@dataclass(slots=True)
class MovedKeys:
    """The placement of keys as of the last assignment of partitions.

    A consumer group assigns the partitions of a topic that grew to all members at once. Every member requests
    the partition counts before it takes the next message, so that none processes a key in its former
    partition while another does in the present one. ``counts`` and ``committed`` raise ``KafkaError``.
    """

    role: str
    counts: Callable[[Collection[str]], Awaitable[Mapping[str, Counts]]]
    committed: Callable[[], Awaitable[Mapping[PartitionId, int]]]
    health: Health
    placement: Placement = field(init=False)
    _known: int = -1
    _distribution: int = 0
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        self.placement = Placement(self.role)

    def rebalanced(self) -> None:
        """Handle a new assignment of partitions."""
        self._distribution += 1

    @property
    def unsettled(self) -> bool:
        """Whether partitions were assigned since ``settle``."""
        return self._known != self._distribution

    async def settle(self, topics: Collection[str]) -> set[str]:
        """Return the topics that have grown since the last assignment; cheap when there was none."""
        if not self.unsettled:
            return set()
        async with self._lock:
            asked_in, found = self._distribution, set[str]()
            if self._known != asked_in:
                found = self.placement.update(await self._ask(lambda: self.counts(topics)))
                self._known = asked_in
            return found

    async def cuts(self, place: PartitionId, since: float) -> Cuts:
        """Return up to which offset to read the partitions that may hold the past of a partition's keys."""
        sources = self.placement.sources(place, since)
        if not sources:
            return {}
        committed = await self._ask(self.committed)
        return {partition: committed.get((place[0], partition), 0) for partition in sources}

    def sent_on(self, message: Message) -> Outgoing | None:
        """Return what to send instead of processing a message in a former partition of its key, else None."""
        partition = self.placement.new_home(message)
        return None if partition is None else self.placement.sent_on(message, partition)

    async def _ask(self, question: Callable[[], Awaitable[T]]) -> T:
        with self.health.waiting("partition counts"):
            return await until_done(question, (KafkaError,), health=self.health, what="kafka")
