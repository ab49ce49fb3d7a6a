"""Sends records to their topics, with the keys that keep them in order."""

import asyncio
import threading
from collections.abc import Iterable

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from slowrank.telemetry import JobSteps, NodeEvent, NodeSample, Record, encode
from slowrank.telemetry.topics import JOB_STEPS, NODE_EVENTS, NODE_SAMPLES, topic_name
from streams.runtime.kafka.clients import METADATA_MS, started

# Records in memory that are not acknowledged yet. Chosen: bounds memory.
IN_FLIGHT = 2000
# Longest wait for a disconnect. Chosen: a stop must not hang on brokers that are away.
STOP_SECONDS = 5.0

_TOPICS = {NodeSample: NODE_SAMPLES, NodeEvent: NODE_EVENTS, JobSteps: JOB_STEPS}


class SendProblem(Exception):
    """The brokers did not accept the records; the message has the cause and what to check."""


def topic_of(record: Record, prefix: str = "") -> str:
    """Return the topic of a record."""
    return topic_name(_TOPICS[type(record)], prefix)


def key_of(record: Record) -> bytes:
    """Return the partition key of a record: its job for steps, its node for the rest."""
    return (record.job_id if isinstance(record, JobSteps) else record.node).encode()


async def send(records: Iterable[Record], *, bootstrap: str, prefix: str = "") -> int:
    """Send all records and return how many the brokers have acknowledged. Raises ``SendProblem``."""
    connection = _Connection(bootstrap, prefix)
    try:
        return await connection.send(records)
    finally:
        await connection.close()


class RecordProducer:
    """Sends batches from any thread over one connection, which the first batch opens."""

    def __init__(self, bootstrap: str, prefix: str = "") -> None:
        self._connection = _Connection(bootstrap, prefix)
        self._loop = asyncio.new_event_loop()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def send(self, records: Iterable[Record]) -> int:
        """Send a batch and return how many records the brokers have acknowledged: all of them.

        Raises ``SendProblem``; the next batch then tries a new connection.
        """
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._loop.run_forever, name="sender", daemon=True)
                self._thread.start()
        return asyncio.run_coroutine_threadsafe(self._connection.send(records), self._loop).result()

    def close(self) -> None:
        """Disconnect from the brokers; nothing may be sent any more."""
        if self._thread is not None:
            asyncio.run_coroutine_threadsafe(self._connection.close(), self._loop).result(STOP_SECONDS)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(STOP_SECONDS)
        self._loop.close()


class _Connection:
    """One producer, created when it is first needed and again after it has failed."""

    def __init__(self, bootstrap: str, prefix: str) -> None:
        self._bootstrap = bootstrap
        self._prefix = prefix
        self._producer: AIOKafkaProducer | None = None
        self._starting = asyncio.Lock()

    async def send(self, records: Iterable[Record]) -> int:
        sent, futures = 0, []
        try:
            producer = await self._started()
            for record in records:
                topic, value, key = topic_of(record, self._prefix), encode(record), key_of(record)
                futures.append(await producer.send(topic, value=value, key=key))
                if len(futures) >= IN_FLIGHT:
                    sent += len(await asyncio.gather(*futures))
                    futures.clear()
            return sent + len(await asyncio.gather(*futures))
        except KafkaError as error:
            await self.close()
            raise SendProblem(
                f"Kafka at {self._bootstrap} did not take the records ({error!r}), {sent} were sent. Is it "
                "running (SLOWRANK_KAFKA_BOOTSTRAP), and do the topics exist (`slowrank topics create`)?"
            ) from error

    async def close(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            await producer.stop()

    async def _started(self) -> AIOKafkaProducer:
        async with self._starting:
            if self._producer is None:
                # Idempotence waits for every in-sync replica: no acknowledged record is lost with a leader.
                self._producer = await started(
                    AIOKafkaProducer(
                        bootstrap_servers=self._bootstrap,
                        compression_type="zstd",
                        linger_ms=50,
                        enable_idempotence=True,
                        metadata_max_age_ms=METADATA_MS,
                    )
                )
            return self._producer
