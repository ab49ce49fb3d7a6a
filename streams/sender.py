"""Sends records to their topics with the keys that keep them in order."""

import asyncio
from collections.abc import Iterable

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from slowrank.telemetry import JobSteps, NodeEvent, NodeSample, Record, encode
from slowrank.telemetry.topics import JOB_STEPS, NODE_EVENTS, NODE_SAMPLES, topic_name

IN_FLIGHT = 2000

_TOPICS = {NodeSample: NODE_SAMPLES, NodeEvent: NODE_EVENTS, JobSteps: JOB_STEPS}


class SendProblem(Exception):
    """The broker did not take the records: why, and what to look at."""


def topic_of(record: Record, prefix: str = "") -> str:
    """Return the topic a record belongs to."""
    return topic_name(_TOPICS[type(record)], prefix)


def key_of(record: Record) -> bytes:
    """Return the partition key of a record: its job for steps, its node for the rest."""
    return (record.job_id if isinstance(record, JobSteps) else record.node).encode()


async def send(records: Iterable[Record], *, bootstrap: str, prefix: str = "") -> int:
    """Send all records and return how many the brokers have acknowledged. Raises ``SendProblem``."""
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, compression_type="zstd", linger_ms=50)
    sent, futures = 0, []
    try:
        await producer.start()
        for record in records:
            topic, value, key = topic_of(record, prefix), encode(record), key_of(record)
            futures.append(await producer.send(topic, value=value, key=key))
            if len(futures) >= IN_FLIGHT:
                sent += len(await asyncio.gather(*futures))
                futures.clear()
        return sent + len(await asyncio.gather(*futures))
    except KafkaError as error:
        raise SendProblem(
            f"Kafka at {bootstrap} did not take the records ({error!r}), {sent} were sent. Is it running "
            "(SLOWRANK_KAFKA_BOOTSTRAP), and do the topics exist (`slowrank topics create`)?"
        ) from error
    finally:
        await producer.stop()
