"""Sends records to their topics with the keys that keep them in order."""

from collections.abc import Iterable

from kafka import KafkaProducer
from kafka.errors import KafkaError

from slowrank.telemetry import JobSteps, NodeEvent, NodeSample, Record, encode
from slowrank.telemetry.topics import JOB_STEPS, NODE_EVENTS, NODE_SAMPLES, topic_name

IN_FLIGHT = 2000

_TOPICS = {NodeSample: NODE_SAMPLES, NodeEvent: NODE_EVENTS, JobSteps: JOB_STEPS}


class SendProblem(Exception):
    """The broker did not take the records: why, and what to look at."""


def key_of(record: Record) -> bytes:
    """Return the partition key of a record: its job for steps, its node for the rest."""
    return (record.job_id if isinstance(record, JobSteps) else record.node).encode()


def send(records: Iterable[Record], *, bootstrap: str, prefix: str = "") -> int:
    """Send all records and return how many the brokers have acknowledged. Raises ``SendProblem``."""
    try:
        producer = KafkaProducer(bootstrap_servers=bootstrap, compression_type="zstd", linger_ms=50)
    except KafkaError as error:
        raise SendProblem(
            f"no Kafka at {bootstrap} ({error}). Set SLOWRANK_KAFKA_BOOTSTRAP or run `make services`."
        ) from error
    sent, futures = 0, []
    try:
        for record in records:
            topic = topic_name(_TOPICS[type(record)], prefix)
            futures.append(producer.send(topic, encode(record), key=key_of(record)))
            if len(futures) >= IN_FLIGHT:
                sent += _settle(futures)
        return sent + _settle(futures)
    except KafkaError as error:
        raise SendProblem(
            f"{bootstrap} did not take a record after {sent} ({error}). "
            "Do the topics exist? `slowrank topics create`"
        ) from error
    finally:
        producer.close(timeout=30)


def _settle(futures: list) -> int:  # type: ignore[type-arg]
    for future in futures:
        future.get(timeout=60)
    done = len(futures)
    futures.clear()
    return done
