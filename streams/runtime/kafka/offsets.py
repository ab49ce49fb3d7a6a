"""Requests for offsets and partitions, over connections beside those of the consumers."""

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
from streams.runtime.kafka.message import PartitionId

# Of a request. Chosen: brokers that take longer count as away.
TIMEOUT_MS = 5000

# A broker that has just started takes 1–3 s to create the topic that holds the offsets.
COORDINATOR_TRIES = 20
COORDINATOR_PAUSE_SECONDS = 0.5

NO_COORDINATOR = (
    GroupCoordinatorNotAvailableError,
    GroupLoadInProgressError,
    NotCoordinatorForGroupError,
)


async def group_offsets(admin: AIOKafkaAdminClient, group: str) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return the offsets and metadata a group committed; wait while its coordinator starts or moves.

    Raises ``KafkaError`` when the brokers do not answer, or have no coordinator after ten seconds.
    """
    for _ in range(COORDINATOR_TRIES - 1):
        with suppress(*NO_COORDINATOR):
            return dict(await admin.list_consumer_group_offsets(group))
        await asyncio.sleep(COORDINATOR_PAUSE_SECONDS)
    return dict(await admin.list_consumer_group_offsets(group))


class Probe:
    """Where partitions end, and how far a consumer group has committed.

    Every method raises ``KafkaError`` when the brokers do not answer.
    """

    def __init__(self, bootstrap: str, group: str) -> None:
        self._bootstrap = bootstrap
        self._group = group
        self._consumer: AIOKafkaConsumer | None = None
        self._admin: AIOKafkaAdminClient | None = None
        # Kept: the client library leaves what a stopped one held to the cyclic collector.
        self._committers: dict[str, AIOKafkaConsumer] = {}

    async def ends(self, places: Iterable[PartitionId]) -> dict[PartitionId, int]:
        """Return the end offsets of partitions."""
        wanted = [TopicPartition(*place) for place in places]
        if not wanted:
            return {}
        found = await (await self._started_consumer()).end_offsets(wanted)
        return {(p.topic, p.partition): int(offset) for p, offset in found.items()}

    async def count_since(self, places: Iterable[PartitionId], timestamp: float) -> int:
        """Return how many messages partitions hold from a log time (Unix seconds) on."""
        wanted = [TopicPartition(*place) for place in places]
        consumer = await self._started_consumer()
        first = await consumer.offsets_for_times({place: int(timestamp * 1000) for place in wanted})
        ends = await consumer.end_offsets(wanted)
        return sum(int(ends[place] - held.offset) for place, held in first.items() if held is not None)

    async def partitions(self, topics: Iterable[str]) -> list[PartitionId]:
        """Return the partitions of topics; a topic that does not exist has none."""
        wanted = set(topics)
        # A request by name may make the broker create a topic that does not exist.
        found = await (await self._started_admin()).describe_topics()
        return [(t["topic"], p["partition"]) for t in found if t["topic"] in wanted for p in t["partitions"]]

    async def metadata(self, group: str) -> dict[PartitionId, str]:
        """Return the metadata committed beside the offset of each partition of a group."""
        found = await group_offsets(await self._started_admin(), group)
        return {(p.topic, p.partition): held.metadata or "" for p, held in found.items()}

    async def store_metadata(self, group: str, texts: Mapping[PartitionId, str]) -> None:
        """Commit a text as metadata of partitions, in a group that has no consumers."""
        if not texts:
            return
        consumer = await self._started_committer(group)
        places = {TopicPartition(*place): OffsetAndMetadata(0, text) for place, text in texts.items()}
        if not places.keys() <= consumer.assignment():
            consumer.assign(list(places))
            # Only what is assigned can be committed; nothing of it is read.
            consumer.pause(*places)
        try:
            await consumer.commit(places)
        except BaseException:
            # Another one finds the coordinator anew.
            await self._committers.pop(group).stop()
            raise

    async def committed(self, group: str | None = None) -> dict[PartitionId, int]:
        """Return the offsets that a group has committed, by default the one of this probe."""
        found = await group_offsets(await self._started_admin(), group or self._group)
        # The offset is -1 where nothing was committed.
        return {(p.topic, p.partition): int(held.offset) for p, held in found.items() if held.offset >= 0}

    async def close(self) -> None:
        """Disconnect from the brokers."""
        for consumer in (self._consumer, *self._committers.values()):
            if consumer is not None:
                await consumer.stop()
        if self._admin is not None:
            await self._admin.close()
        self._consumer = self._admin = None
        self._committers.clear()

    async def _started_consumer(self) -> AIOKafkaConsumer:
        if self._consumer is None:
            self._consumer = await started(
                AIOKafkaConsumer(
                    bootstrap_servers=self._bootstrap, enable_auto_commit=False, request_timeout_ms=TIMEOUT_MS
                )
            )
        return self._consumer

    async def _started_committer(self, group: str) -> AIOKafkaConsumer:
        if group not in self._committers:
            self._committers[group] = await started(
                AIOKafkaConsumer(
                    bootstrap_servers=self._bootstrap,
                    group_id=group,
                    enable_auto_commit=False,
                    request_timeout_ms=TIMEOUT_MS,
                )
            )
        return self._committers[group]

    async def _started_admin(self) -> AIOKafkaAdminClient:
        if self._admin is None:
            self._admin = await started(
                AIOKafkaAdminClient(bootstrap_servers=self._bootstrap, request_timeout_ms=TIMEOUT_MS)
            )
        return self._admin
