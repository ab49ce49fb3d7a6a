"""Carries what is spooled to Kafka, in order, and forgets a record only when the broker has it."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from kafka import KafkaProducer
from kafka.errors import InvalidTopicError, KafkaError, MessageSizeTooLargeError, RecordListTooLargeError

from exporters.spool import Entry, Spool

_log = logging.getLogger(__name__)
IN_FLIGHT = 1000
"""Records handed to the producer and not yet acknowledged: kafka-python itself has no bound."""
# Between two connections: at first, and at most.
BACKOFF_SECONDS = (0.5, 10.0)
# Between two looks into an empty spool.
IDLE_SECONDS = 0.1
# How long giving up a producer may hold up this thread.
SENDER_ENDS_SECONDS = 2.0
# Tried again, these would stop all that is behind them for good.
_NEVER_ACCEPTED = (MessageSizeTooLargeError, RecordListTooLargeError, InvalidTopicError)


class Sent(Protocol):
    """The producer's promise of one record (``kafka.future.Future``)."""

    is_done: bool
    exception: BaseException | None


class Producer(Protocol):
    """What is used of ``KafkaProducer``."""

    def send(self, topic: str, *, value: bytes, key: bytes) -> Sent: ...

    def close(self, timeout: float | None = None) -> None: ...


class Publisher:
    """Sends from ``spool`` on its own thread; ``connect`` opens a producer and may raise ``KafkaError``."""

    def __init__(self, spool: Spool, connect: Callable[[], Producer]) -> None:
        self._spool = spool
        self._connect = connect
        self._stopping = threading.Event()
        self._in_flight: deque[tuple[Entry, Sent]] = deque()
        self._retired: list[Producer] = []
        self._thread = threading.Thread(target=self._run, name="publisher", daemon=True)
        self._sent_total = 0
        self._rejected_total = 0
        self._failures_total = 0
        self._connected = False

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    def drain(self, timeout: float) -> bool:
        """Wait at most ``timeout`` seconds until nothing is left to send; return whether that came about."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if self._spool.stats().records == 0:
                return True
            time.sleep(0.05)
        return False

    def stop(self) -> None:
        """Stop sending; what is not acknowledged stays in the spool."""
        self._stopping.set()
        self._thread.join(10.0)

    def metrics(self) -> dict[str, float]:
        """Return counters by metric name without prefix."""
        return {
            "records_sent_total": self._sent_total,
            "records_rejected_total": self._rejected_total,
            "publish_failures_total": self._failures_total,
            "broker_connected": float(self._connected),
        }

    def _run(self) -> None:
        shortest, longest = BACKOFF_SECONDS
        pause = shortest
        while not self._stopping.is_set():
            self._dismiss()
            sent_before = self._sent_total
            try:
                producer = self._connect()
            except (KafkaError, OSError) as error:
                self._failed(error)
            else:
                self._serve(producer)
            # Connecting is no success yet: a broker may accept and then refuse every record.
            pause = shortest if self._sent_total > sent_before else min(longest, 2 * pause)
            self._stopping.wait(pause)

    def _serve(self, producer: Producer) -> None:
        """Send until stopped or until a record fails, then give all unacknowledged back to the spool."""
        self._connected = True
        try:
            while not self._stopping.is_set():
                if not self._pump(producer):
                    self._dismiss()
                    self._stopping.wait(IDLE_SECONDS)
        except (KafkaError, OSError) as error:
            self._failed(error)
        finally:
            self._connected = False
            self._in_flight.clear()
            self._retired.append(producer)
            self._dismiss()
            self._spool.rewind()

    def _dismiss(self) -> None:
        """Close producers that are done with; one refuses for as long as its own thread has not ended."""
        kept = []
        for producer in self._retired:
            try:
                producer.close(timeout=0)
            except KafkaError:
                kept.append(producer)
        self._retired = kept

    def _pump(self, producer: Producer) -> bool:
        """Hand over new records and take back acknowledged ones; return whether anything moved."""
        entries = self._spool.batch(IN_FLIGHT - len(self._in_flight))
        for entry in entries:
            message = entry.message
            sent = producer.send(message.topic, value=message.payload, key=message.key)
            self._in_flight.append((entry, sent))
        done, failure = self._acknowledged()
        if done:
            self._spool.done(done)
            self._sent_total += len(done)
        if failure is not None:
            raise failure
        return bool(entries or done)

    def _acknowledged(self) -> tuple[list[Entry], BaseException | None]:
        """Return the records at the head that are settled, and what the first unsettled one failed with."""
        done: list[Entry] = []
        while self._in_flight and self._in_flight[0][1].is_done:
            entry, sent = self._in_flight[0]
            if isinstance(sent.exception, _NEVER_ACCEPTED):
                self._rejected_total += 1
                _log.warning("the broker will never take seq %d: %s", entry.message.seq, sent.exception)
            elif sent.exception is not None:
                return done, sent.exception
            done.append(entry)
            self._in_flight.popleft()
        return done, None

    def _failed(self, error: Exception) -> None:
        self._failures_total += 1
        if self._failures_total == 1 or self._failures_total % 100 == 0:
            _log.warning(
                "cannot publish, records wait in the spool: %s: %s "
                "(is the broker up, and were the topics made by `slowrank topics create`?)",
                type(error).__name__,
                error,
            )


class _Client:
    """A ``KafkaProducer`` that can be given up: what it holds then stays in the spool."""

    def __init__(self, producer: Any) -> None:
        self._producer = producer

    def send(self, topic: str, *, value: bytes, key: bytes) -> Sent:
        sent: Sent = self._producer.send(topic, value=value, key=key)
        return sent

    def close(self, timeout: float | None = None) -> None:
        # Its own close waits for batches that, after an outage, may never settle (kafka-python 3.0).
        self._producer._sender.force_close()
        self._producer._sender.join(SENDER_ENDS_SECONDS)
        self._producer.close(timeout=timeout)


def kafka_producer(bootstrap: str, client_id: str) -> Producer:
    """Open a producer: compressed batches, acknowledged by all replicas. Raises ``KafkaError``.

    ``bootstrap`` is a comma-separated list of ``host:port``.
    """
    producer = KafkaProducer(
        bootstrap_servers=bootstrap.split(","),
        client_id=client_id,
        # With fewer than all a record could be deleted here and then lost with its leader.
        acks="all",
        # A fifth of the size at lz4's CPU, in batches of some length: small ones compress badly.
        compression_type="zstd",
        linger_ms=200,
        batch_size=256 * 1024,
        # Not the 120 s of the default, after which all that is queued fails: the spool has it anyway.
        delivery_timeout_ms=30_000,
        request_timeout_ms=10_000,
        max_block_ms=10_000,
        bootstrap_timeout_ms=5_000,
        # How long it takes to see that a topic grew; workers send on what still goes to a former partition.
        metadata_max_age_ms=30_000,
        # Topics are the operator's: made by accident, one has the wrong partitions (docs/decisions/0002).
        allow_auto_create_topics=False,
    )
    return _Client(producer)
