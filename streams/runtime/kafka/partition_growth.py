"""What an installation knows of its topics' partition counts: today's, and those of the last days.

The brokers keep it, as text beside the committed offset of a group that nobody reads with: a worker that was
down while a topic grew learns of it, and every worker has the same past.
"""

from collections.abc import Callable, Collection, Mapping
from itertools import pairwise
from typing import Protocol

import msgspec

from streams.runtime.kafka.offsets import Place
from streams.runtime.kafka.placement import Counts

REMEMBERED_SECONDS = 86_400.0 + 3600.0
"""What workers read again is at most a day old (``streams.runtime.detect_worker.EVENT_WINDOW_SECONDS``)."""

History = list[tuple[int, float]]
"""Partition counts, and since when (Unix seconds) each was seen, oldest first."""


class Brokers(Protocol):
    """What is asked of the brokers; everything raises ``KafkaError`` when they do not answer."""

    async def partitions(self, topics: Collection[str], /) -> list[Place]: ...

    async def notes(self, group: str, /) -> dict[Place, str]: ...

    async def note(self, group: str, texts: Mapping[Place, str], /) -> None: ...


class Growth:
    """Reads and keeps the history of partition counts; ``now`` is in Unix seconds."""

    def __init__(self, brokers: Brokers, group: str, now: Callable[[], float]) -> None:
        self._brokers = brokers
        self._group = group
        self._now = now

    async def counts(self, topics: Collection[str]) -> dict[str, Counts]:
        """Return the counts of topics, and keep them. Raises ``KafkaError``."""
        places = await self._brokers.partitions(topics)
        seen = {topic: sum(1 for name, _ in places if name == topic) for topic in topics}
        notes = await self._brokers.notes(self._group)
        past = {topic: _read(notes.get((topic, 0), "")) for topic in topics}
        now = self._now()
        present = {topic: continued(past[topic], seen[topic], now) for topic in topics if seen[topic]}
        texts = {(t, 0): msgspec.json.encode(h).decode() for t, h in present.items() if h != past[t]}
        await self._brokers.note(self._group, texts)
        return {topic: _counts(history, now) for topic, history in present.items()}


def continued(history: History, count: int, now: float) -> History:
    """Return a history with the count seen ``now``.

    A topic that has fewer partitions than before was made anew, and has no past.
    """
    if not history or count < history[-1][0]:
        return [(count, now)]
    # A broker keeps 4 kB of text: of a topic that grows again and again the latest counts are enough.
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
        # Nothing was kept yet, or another release kept it in its own way.
        return []
