"""Kafka clients that either start or leave no connection behind."""

from typing import TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient

METADATA_MS = 5_000
"""How long a client takes to see that a topic grew. Kafka's own default is five minutes, in which whatever a
faster one puts into the new partitions would not be read."""

Client = TypeVar("Client", AIOKafkaConsumer, AIOKafkaProducer, AIOKafkaAdminClient)


async def started(client: Client) -> Client:
    """Start a client and return it; close it where that fails or is cancelled. Raises ``KafkaError``."""
    try:
        await client.start()
    except BaseException:
        # Bootstrapping has opened sockets by then, and aiokafka warns of each that nobody closed.
        await (client.close() if isinstance(client, AIOKafkaAdminClient) else client.stop())
        raise
    return client
