"""Questions to the brokers over connections of their own, beside whatever a consumer is doing."""

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import suppress

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import (
    GroupCoordinatorNotAvailableError,
    GroupLoadInProgressError,
    NotCoordinatorForGroupError,
)
from aiokafka.structs import OffsetAndMetadata

from streams.runtime.kafka.clients import started

TIMEOUT_MS = 5000

COORDINATOR_TRIES = 20
COORDINATOR_PAUSE_SECONDS = 0.5
"""A broker that has just started takes 1–3 s to create the topic that holds the offsets."""
NO_COORDINATOR = (
    GroupCoordinatorNotAvailableError,
    GroupLoadInProgressError,
    NotCoordinatorForGroupError,
)

Place = tuple[str, int]
"""Topic and partition."""


async def group_offsets(admin: AIOKafkaAdminClient, group: str) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return the offsets and texts a group committed; wait while its coordinator starts or moves.

    Raises ``KafkaError`` when the brokers do not answer, or have no coordinator after ten seconds.
    """
    for _ in range(COORDINATOR_TRIES - 1):
        with suppress(*NO_COORDINATOR):
            return dict(await admin.list_consumer_group_offsets(group))
        await asyncio.sleep(COORDINATOR_PAUSE_SECONDS)
    return dict(await admin.list_consumer_group_offsets(group))


class Probe:
    """Where partitions end, and how far a consumer group has committed.

    Every question raises ``KafkaError`` when the brokers do not answer.
    """

    def __init__(self, bootstrap: str, group: str) -> None:
        self._bootstrap = bootstrap
        self._group = group
        self._consumer: AIOKafkaConsumer | None = None
        self._admin: AIOKafkaAdminClient | None = None

    async def ends(self, places: Iterable[Place]) -> dict[Place, int]:
        """Return the end offsets of partitions."""
        wanted = [TopicPartition(*place) for place in places]
        if not wanted:
            return {}
        found = await (await self._asking()).end_offsets(wanted)
        return {(p.topic, p.partition): int(offset) for p, offset in found.items()}

    async def count_since(self, places: Iterable[Place], timestamp: float) -> int:
        """Return how many messages partitions hold from a log time (Unix seconds) on."""
        wanted = [TopicPartition(*place) for place in places]
        consumer = await self._asking()
        first = await consumer.offsets_for_times({place: int(timestamp * 1000) for place in wanted})
        ends = await consumer.end_offsets(wanted)
        return sum(int(ends[place] - held.offset) for place, held in first.items() if held is not None)

    async def partitions(self, topics: Iterable[str]) -> list[Place]:
        """Return the partitions of topics; a topic that does not exist has none."""
        wanted = set(topics)
        # Asked about by name, a topic that does not exist may be created by the broker.
        found = await (await self._administering()).describe_topics()
        return [(t["topic"], p["partition"]) for t in found if t["topic"] in wanted for p in t["partitions"]]

    async def notes(self, group: str) -> dict[Place, str]:
        """Return the text that each partition of a group holds beside its offset."""
        found = await group_offsets(await self._administering(), group)
        return {(p.topic, p.partition): held.metadata or "" for p, held in found.items()}

    async def note(self, group: str, texts: Mapping[Place, str]) -> None:
        """Have the brokers keep a text for partitions, in a group that nobody reads with."""
        if not texts:
            return
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self._bootstrap,
            group_id=group,
            enable_auto_commit=False,
            request_timeout_ms=TIMEOUT_MS,
        )
        consumer.assign([TopicPartition(*place) for place in texts])
        try:
            await started(consumer)
            await consumer.commit({TopicPartition(*p): OffsetAndMetadata(0, t) for p, t in texts.items()})
        finally:
            await consumer.stop()

    async def committed(self, group: str | None = None) -> dict[Place, int]:
        """Return the offsets a group, this one without a name, has committed where it ever did."""
        found = await group_offsets(await self._administering(), group or self._group)
        # The offset is -1 where nothing was committed.
        return {(p.topic, p.partition): int(held.offset) for p, held in found.items() if held.offset >= 0}

    async def close(self) -> None:
        """Let go of the brokers."""
        if self._consumer is not None:
            await self._consumer.stop()
        if self._admin is not None:
            await self._admin.close()
        self._consumer = self._admin = None

    async def _asking(self) -> AIOKafkaConsumer:
        if self._consumer is None:
            self._consumer = await started(
                AIOKafkaConsumer(
                    bootstrap_servers=self._bootstrap, enable_auto_commit=False, request_timeout_ms=TIMEOUT_MS
                )
            )
        return self._consumer

    async def _administering(self) -> AIOKafkaAdminClient:
        if self._admin is None:
            self._admin = await started(
                AIOKafkaAdminClient(bootstrap_servers=self._bootstrap, request_timeout_ms=TIMEOUT_MS)
            )
        return self._admin
