"""Partition counts and their past, kept by real brokers."""

import asyncio
import gc
import secrets

import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import GroupCoordinatorNotAvailableError

from streams.runtime.kafka.offsets import Probe
from streams.runtime.kafka.partition_growth import REMEMBERED_SECONDS, PartitionCounts
from streams.runtime.kafka.placement import Counts

pytestmark = pytest.mark.integration


def test_every_worker_learns_of_a_topic_that_grew(kafka_bootstrap):
    """Whoever was down meanwhile finds the former count; a day later nobody needs it any more."""
    asyncio.run(grow_and_look(kafka_bootstrap, f"t{secrets.token_hex(4)}"))


async def grow_and_look(bootstrap, topic):
    now, probe = [1000.0], Probe(bootstrap, "unused")

    def growth():
        return PartitionCounts(probe, f"{topic}-partitions", lambda: now[0])

    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(topic, 2, 1)])
        await known(admin, topic, 2)
        assert await patient(lambda: growth().counts([topic, "no-such-topic"])) == {topic: Counts(2)}
        await admin.create_partitions({topic: NewPartitions(4)})
        await known(admin, topic, 4)
        now[0] = 1060.0
        running = growth()
        assert await running.counts([topic]) == {topic: Counts(4, {2: 1060.0})}
        now[0] = 1120.0
        assert await growth().counts([topic]) == {topic: Counts(4, {2: 1060.0})}
        now[0] += REMEMBERED_SECONDS
        assert await running.counts([topic]) == {topic: Counts(4)}
    finally:
        await admin.delete_topics([topic])
        await admin.close()
        await probe.close()


def test_texts_are_stored_over_one_connection(kafka_bootstrap):
    """Every worker stores one each few seconds: a client each would leave its memory to the collector."""
    asyncio.run(store_again_and_again(kafka_bootstrap, f"t{secrets.token_hex(4)}"))


async def store_again_and_again(bootstrap, topic):
    probe, group = Probe(bootstrap, "unused"), f"{topic}-texts"
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(topic, 3, 1)])
        await known(admin, topic, 3)
        # Stopped ones of other tests would be collected meanwhile.
        gc.collect()
        before = clients()
        for text, partition in (("a", 0), ("b", 0), ("c", 2), ("d", 1), ("e", 0)):
            await patient(lambda text=text, at=partition: probe.store_metadata(group, {(topic, at): text}))
        # One, and that of the admin client which reads them.
        assert await probe.metadata(group) == {(topic, 0): "e", (topic, 1): "d", (topic, 2): "c"}
        assert clients() - before == 2
    finally:
        await admin.delete_topics([topic])
        await admin.close()
        await probe.close()


def clients():
    """How many Kafka clients there are, stopped ones that were not collected included."""
    return sum(isinstance(held, AIOKafkaClient) for held in gc.get_objects())


async def patient(ask):
    """Ask again while new brokers have no coordinator of groups yet, as workers do."""
    for _ in range(200):
        try:
            return await ask()
        except GroupCoordinatorNotAvailableError:
            await asyncio.sleep(0.1)
    pytest.fail("the brokers have no coordinator of groups")


async def known(admin, topic, partitions):
    """Wait for the broker to know what the controller has already agreed to."""
    for _ in range(200):
        (described,) = await admin.describe_topics([topic])
        if len(described["partitions"]) == partitions:
            return
        await asyncio.sleep(0.05)
    pytest.fail(f"{topic} never had {partitions} partitions")
