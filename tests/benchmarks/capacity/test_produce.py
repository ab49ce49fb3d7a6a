import asyncio
import secrets
import struct
import time

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from benchmarks.capacity.produce import Connection, error_code, request

# Kafka's UNKNOWN_TOPIC_OR_PARTITION.
UNKNOWN_TOPIC = 3


def answer(topic, code):
    name = topic.encode()
    head = struct.pack(">iih", 0, 1, len(name)) + name
    return head + struct.pack(">iihqqqi", 1, 0, code, 5, -1, 0, 0)


@pytest.mark.parametrize("code", [0, UNKNOWN_TOPIC])
def test_the_error_code_of_an_answer(code):
    assert error_code(answer("node-samples", code)) == code


@pytest.mark.integration
def test_a_broker_stores_what_a_request_holds(kafka_bootstrap):
    """As a consumer reads it: key, value and partition; a request for an unknown topic fails."""
    topic = f"t{secrets.token_hex(4)}"
    values = [b"v%d" % n * 100 for n in range(3)]

    async def story():
        admin = AIOKafkaAdminClient(bootstrap_servers=kafka_bootstrap)
        await admin.start()
        await admin.create_topics([NewTopic(topic, 2, 1)])
        connection = Connection()
        await connection.open(kafka_bootstrap)
        consumer = AIOKafkaConsumer(topic, bootstrap_servers=kafka_bootstrap, auto_offset_reset="earliest")
        await consumer.start()
        try:
            # A new topic has its leaders a moment later.
            async with AIOKafkaProducer(bootstrap_servers=kafka_bootstrap) as producer:
                await producer.send_and_wait(topic, b"first", partition=1)
            await connection.send(b"".join(request(topic, 1, b"node", v, time.time()) for v in values))
            await connection.send(request(f"no-{topic}", 0, b"node", b"v", time.time()))
            await connection.close(len(values) + 1)
            return connection.errors, [await consumer.getone() for _ in range(4)]
        finally:
            await consumer.stop()
            await admin.delete_topics([topic])
            await admin.close()

    errors, messages = asyncio.run(story())

    assert errors == 1
    found = [(m.partition, m.key, m.value) for m in messages]
    assert found == [(1, None, b"first"), *((1, b"node", v) for v in values)]
