"""Kafka clients that start or leave nothing open."""

import asyncio
import gc

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from streams.runtime.kafka.clients import started


@pytest.mark.parametrize("kind", [AIOKafkaConsumer, AIOKafkaProducer, AIOKafkaAdminClient])
def test_a_client_without_brokers_is_closed(kind):
    """What cannot start raises, and warns of nothing unclosed when it is collected."""

    async def start():
        with pytest.raises(KafkaError):
            await started(kind(bootstrap_servers="127.0.0.1:1"))

    asyncio.run(start())
    gc.collect()
