"""Starts Kafka clients, and closes those that fail to start."""

from typing import TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient

# Longest time until a client notices that a topic grew. Chosen: with Kafka's default of five minutes,
# messages that faster clients put into new partitions would wait as long.
METADATA_MS = 5_000

Client = TypeVar("Client", AIOKafkaConsumer, AIOKafkaProducer, AIOKafkaAdminClient)


async def started(client: Client) -> Client:
    """Start a client and return it; close it where that fails or is cancelled. Raises ``KafkaError``."""
    try:
        await client.start()
    except BaseException:
        # Bootstrapping has opened sockets by then, and aiokafka warns of each that is not closed.
        await (client.close() if isinstance(client, AIOKafkaAdminClient) else client.stop())
        raise
    return client
