"""Questions to the brokers over connections of their own, beside whatever a consumer is doing."""

from collections.abc import Iterable

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient

TIMEOUT_MS = 5000

Place = tuple[str, int]
"""Topic and partition."""


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
        if self._consumer is None:
            consumer = AIOKafkaConsumer(
                bootstrap_servers=self._bootstrap, enable_auto_commit=False, request_timeout_ms=TIMEOUT_MS
            )
            try:
                await consumer.start()
            except BaseException:
                await consumer.stop()
                raise
            self._consumer = consumer
        found = await self._consumer.end_offsets(wanted)
        return {(p.topic, p.partition): int(offset) for p, offset in found.items()}

    async def committed(self) -> dict[Place, int]:
        """Return the offsets the group has committed, for the partitions where it ever did."""
        if self._admin is None:
            admin = AIOKafkaAdminClient(bootstrap_servers=self._bootstrap, request_timeout_ms=TIMEOUT_MS)
            try:
                await admin.start()
            except BaseException:
                await admin.close()
                raise
            self._admin = admin
        found = await self._admin.list_consumer_group_offsets(self._group)
        return {(p.topic, p.partition): int(held.offset) for p, held in found.items() if held.offset >= 0}

    async def close(self) -> None:
        """Let go of the brokers."""
        if self._consumer is not None:
            await self._consumer.stop()
        if self._admin is not None:
            await self._admin.close()
        self._consumer = self._admin = None
