"""Taking a dead member out of its group, against a real broker."""

import asyncio
import secrets

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError

from streams.runtime.kafka.group_leave import leave_group


def test_a_member_that_is_gone_holds_its_partitions_no_longer(kafka_bootstrap):
    """The next one has them within seconds, though the session of the first lasts a minute."""
    topic = group = f"leave-{secrets.token_hex(4)}"

    def consumer():
        return AIOKafkaConsumer(
            topic, bootstrap_servers=kafka_bootstrap, group_id=group, session_timeout_ms=60_000
        )

    async def go():
        admin = AIOKafkaAdminClient(bootstrap_servers=kafka_bootstrap)
        await admin.start()
        first, second = consumer(), consumer()
        try:
            await admin.create_topics([NewTopic(topic, 1, 1)])
            await first.start()
            member = first._coordinator.member_id
            # As a killed process: it does not leave.
            first._coordinator.generation = -1
            await first.stop()
            await leave_group(kafka_bootstrap, group, member)
            await leave_group(kafka_bootstrap, group, member)
            await asyncio.wait_for(second.start(), 20)
            assert len(second.assignment()) == 1
        finally:
            await second.stop()
            await admin.delete_topics([topic])
            await admin.close()

    asyncio.run(go())


def test_brokers_that_are_away_are_an_error():
    """The caller logs it: the session ends by itself."""
    with pytest.raises((KafkaError, TimeoutError)):
        asyncio.run(leave_group("127.0.0.1:1", "g", "m"))
