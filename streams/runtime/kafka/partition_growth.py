"""History of the topics' partition counts.

It is stored on the brokers, as metadata of the committed offsets of a group without consumers: so a worker
that was down while a topic grew has it, and it is the same for every worker.
"""

from collections.abc import Callable, Collection, Mapping
from itertools import pairwise
from typing import Protocol

import msgspec

from streams.runtime.kafka.message import PartitionId
from streams.runtime.kafka.placement import Counts

# Workers read at most a day of the log again (``streams.runtime.detect_worker.EVENT_WINDOW_SECONDS``).
REMEMBERED_SECONDS = 86_400.0 + 3600.0

History = list[tuple[int, float]]
"""Partition counts, and since when (Unix seconds) each was seen, oldest first."""


class PartitionMetadata(Protocol):
    """Partitions and their metadata on the brokers; every method may raise ``KafkaError``."""

    async def partitions(self, topics: Collection[str], /) -> list[PartitionId]: ...

    async def metadata(self, group: str, /) -> dict[PartitionId, str]: ...

    async def store_metadata(self, group: str, texts: Mapping[PartitionId, str], /) -> None: ...


class PartitionCounts:
    """Reads and extends the history of partition counts; ``now`` returns Unix seconds."""

    def __init__(self, brokers: PartitionMetadata, group: str, now: Callable[[], float]) -> None:
        self._brokers = brokers
        self._group = group
        self._now = now

    async def counts(self, topics: Collection[str]) -> dict[str, Counts]:
        """Return the counts of topics, and store what is new. Raises ``KafkaError``."""
        places = await self._brokers.partitions(topics)
        seen = {topic: sum(1 for name, _ in places if name == topic) for topic in topics}
        stored = await self._brokers.metadata(self._group)
        past = {topic: _read(stored.get((topic, 0), "")) for topic in topics}
        now = self._now()
        present = {topic: continued(past[topic], seen[topic], now) for topic in topics if seen[topic]}
        texts = {(t, 0): msgspec.json.encode(h).decode() for t, h in present.items() if h != past[t]}
        await self._brokers.store_metadata(self._group, texts)
        return {topic: _counts(history, now) for topic, history in present.items()}


def continued(history: History, count: int, now: float) -> History:
    """Return a history with the count seen ``now``.

    A topic that has fewer partitions than before was created anew, and has no past.
    """
    if not history or count < history[-1][0]:
        return [(count, now)]
    # A broker stores 4 kB of metadata: of a topic that grows often the latest counts are enough.
    return history if history[-1][0] == count else [*history[-8:], (count, now)]


def _counts(history: History, now: float) -> Counts:
    ended = {count: until for (count, _), (_, until) in pairwise(history)}
    return Counts(
        history[-1][0], {n: until for n, until in ended.items() if until > now - REMEMBERED_SECONDS}
    )


def _read(text: str) -> History:
    try:
        return msgspec.json.decode(text.encode(), type=History)
    except msgspec.DecodeError:
        # Nothing was stored yet, or another release stored another format.
        return []
