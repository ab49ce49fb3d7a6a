"""Reads the dead-letter topic, for the command line."""

from collections.abc import AsyncIterator

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from slowrank.telemetry import BadRecord, DeadLetter, decode_dead_letter
from slowrank.telemetry.topics import DEAD_LETTERS, topic_name


class DeadLettersProblem(Exception):
    """The dead letters cannot be read; the message has the cause and what to check."""


async def dead_letters(bootstrap: str, prefix: str) -> list[DeadLetter]:
    """Return all dead letters; none where there is no topic. Raises ``DeadLettersProblem``."""
    try:
        return [letter async for letter in _dead_letters(bootstrap, prefix)]
    except KafkaError as error:
        raise DeadLettersProblem(
            f"Kafka at {bootstrap} does not answer ({error}). Is SLOWRANK_KAFKA_BOOTSTRAP right?"
        ) from error


async def _dead_letters(bootstrap: str, prefix: str) -> AsyncIterator[DeadLetter]:
    topic = topic_name(DEAD_LETTERS, prefix)
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        await admin.start()
        found = [t for t in await admin.describe_topics([topic]) if t["error_code"] == 0]
    finally:
        await admin.close()
    places = [TopicPartition(topic, p["partition"]) for t in found for p in t["partitions"]]
    if not places:
        return
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap, enable_auto_commit=False, auto_offset_reset="earliest"
    )
    try:
        await consumer.start()
        consumer.assign(places)
        ends = await consumer.end_offsets(places)
        for place in places:
            while await consumer.position(place) < ends[place]:
                for message in (await consumer.getmany(place, timeout_ms=1000)).get(place, ()):
                    try:
                        yield decode_dead_letter(message.value or b"")
                    except BadRecord:
                        # Not written by slowrank.
                        continue
    finally:
        await consumer.stop()
