"""The log is read again as it was read first."""

import asyncio
import secrets

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from streams.runtime.kafka.placement import MOVED
from streams.runtime.partitions.rebuild import read_on, reread


@pytest.mark.integration
def test_a_message_that_was_sent_on_is_known_as_such_when_it_is_read_again(kafka_bootstrap):
    """Its log time measures no clock, in a rebuild as little as live."""
    topic = f"t{secrets.token_hex(4)}"

    async def go():
        admin = AIOKafkaAdminClient(bootstrap_servers=kafka_bootstrap)
        producer = AIOKafkaProducer(bootstrap_servers=kafka_bootstrap)
        await admin.start()
        await admin.create_topics([NewTopic(topic, 1, 1)])
        await producer.start()
        try:
            await producer.send_and_wait(topic, b"direct", key=b"n", partition=0)
            await producer.send_and_wait(
                topic, b"moved", key=b"n", partition=0, headers=[(MOVED, b"sink:3:17")]
            )
            await producer.send_and_wait(topic, None, key=b"n", partition=0)
            log = [m async for m in reread(kafka_bootstrap, topic, 0, 0.0, 3)]
            return log, [m async for m in read_on(kafka_bootstrap, topic, 0, 1, 3)]
        finally:
            await producer.stop()
            await admin.delete_topics([topic])
            await admin.close()

    log, rest = asyncio.run(go())
    assert [(m.offset, m.key, m.value, m.moved) for m in log] == [
        (0, b"n", b"direct", ""),
        (1, b"n", b"moved", "sink:3:17"),
        (2, b"n", b"", ""),
    ]
    assert rest == log[1:]
