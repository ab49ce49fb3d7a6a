"""Send spooled records to Kafka in order; a record leaves the spool when the broker has acknowledged it."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from kafka import KafkaProducer, codec
from kafka.errors import InvalidTopicError, KafkaError, MessageSizeTooLargeError, RecordListTooLargeError
from kafka.net.compat import KafkaNetClient
from kafka.record import default_records

from exporters.spool import Entry, Spool

_log = logging.getLogger(__name__)
# Most records handed to the producer and not yet acknowledged, which kafka-python does not bound. Chosen: a
# quarter of an hour of samples, about 1.5 MB.
IN_FLIGHT = 1000
# Pause between two connections, at first and at most. Chosen: a fleet of 1,000 nodes then makes at most 100
# attempts a second at a broker that comes back.
BACKOFF_SECONDS = (0.5, 10.0)
# Seconds between two reads of an empty spool. Chosen: small against the tick of one second.
IDLE_SECONDS = 0.1
# Measured: a tick takes 14 % less than at level 3, for 60 µs of CPU a second; level 19 gains 1 % more.
ZSTD_LEVEL = 12
# How long closing a producer may block this thread. Chosen: two ticks.
SENDER_ENDS_SECONDS = 2.0
# A retry of these fails again and would block all later records.
_NEVER_ACCEPTED = (MessageSizeTooLargeError, RecordListTooLargeError, InvalidTopicError)


class Sent(Protocol):
    """The producer's future of one record (``kafka.future.Future``)."""

    is_done: bool
    exception: BaseException | None


class Producer(Protocol):
    """The part of ``KafkaProducer`` that is used."""

    def send(self, topic: str, *, value: bytes, key: bytes) -> Sent: ...

    def close(self, timeout: float | None = None) -> None: ...


class Publisher:
    """Send from ``spool`` in a thread; ``connect`` opens a producer and may raise ``KafkaError``."""

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
        """Start the thread."""
        self._thread.start()

    def drain(self, timeout: float) -> bool:
        """Wait at most ``timeout`` seconds until the spool is empty; return whether it is."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if self._spool.stats().records == 0:
                return True
            time.sleep(0.05)
        return False

    def stop(self) -> None:
        """Stop sending; unacknowledged records stay in the spool."""
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
            # A connection alone is no success: a broker may accept it and refuse every record.
            pause = shortest if self._sent_total > sent_before else min(longest, 2 * pause)
            self._stopping.wait(pause)

    def _serve(self, producer: Producer) -> None:
        """Send until stopped or until a record fails, then return unacknowledged records to the spool."""
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
        """Close retired producers; closing fails while the producer's own thread still runs."""
        kept = []
        for producer in self._retired:
            try:
                producer.close(timeout=0)
            except KafkaError:
                kept.append(producer)
        self._retired = kept

    def _pump(self, producer: Producer) -> bool:
        """Send new records and remove acknowledged ones from the spool; return whether there were any."""
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
        """Return the settled records at the head of the queue, and the error of the first that failed."""
        done: list[Entry] = []
        while self._in_flight and self._in_flight[0][1].is_done:
            entry, sent = self._in_flight[0]
            if isinstance(sent.exception, _NEVER_ACCEPTED):
                self._rejected_total += 1
                _log.warning("the broker rejects seq %d for good: %s", entry.message.seq, sent.exception)
            elif sent.exception is not None:
                return done, sent.exception
            done.append(entry)
            self._in_flight.popleft()
        return done, None

    def _failed(self, error: Exception) -> None:
        self._failures_total += 1
        if self._failures_total == 1 or self._failures_total % 100 == 0:
            # The text of a KafkaError begins with its name.
            named = str(error) if isinstance(error, KafkaError) else f"{type(error).__name__}: {error}"
            _log.warning(
                "cannot publish, records wait in the spool: %s "
                "(is the broker up, and were the topics created with `slowrank topics create`?)",
                named,
            )


class _Client:
    """A ``KafkaProducer`` that can be closed without waiting; its records are still in the spool."""

    def __init__(self, producer: Any) -> None:
        self._producer = producer

    def send(self, topic: str, *, value: bytes, key: bytes) -> Sent:
        sent: Sent = self._producer.send(topic, value=value, key=key)
        return sent

    def close(self, timeout: float | None = None) -> None:
        # Its own close() waits for batches that, after an outage, may never settle (kafka-python 3.0).
        self._producer._sender.force_close()
        self._producer._sender.join(SENDER_ENDS_SECONDS)
        self._producer.close(timeout=timeout)


def kafka_producer(bootstrap: str, client_id: str, *, linger_seconds: float = 0.2) -> Producer:
    """Open a producer: compressed batches, acknowledged by all replicas. Raises ``KafkaError``.

    ``bootstrap`` is a comma-separated list of ``host:port``. A batch waits ``linger_seconds`` for
    more records.
    """
    clients: list[Any] = []

    def client(**options: Any) -> Any:
        clients.append(KafkaNetClient(**options))
        return clients[-1]

    try:
        return _Client(_open(bootstrap, client_id, client, linger_seconds))
    except BaseException:
        # kafka-python 3.0 leaves the sockets of a client that reached no broker open.
        for opened in clients:
            opened.close()
        raise


def compress_more() -> None:
    """Set ``ZSTD_LEVEL`` for all producers of this process: kafka-python 3.0 has no setting for it."""
    default_records.zstd_encode = lambda data: codec.zstd.ZstdCompressor(level=ZSTD_LEVEL).compress(data)


def _open(bootstrap: str, client_id: str, kafka_client: Callable[..., Any], linger_seconds: float) -> Any:
    compress_more()
    return KafkaProducer(
        kafka_client=kafka_client,
        bootstrap_servers=bootstrap.split(","),
        client_id=client_id,
        # With fewer, a record could be deleted here and then be lost with the partition's leader.
        acks="all",
        # A fifth of the size at the CPU of lz4. Small batches compress badly: 200 ms gather the records of a
        # tick, 256 KiB those of an outage.
        compression_type="zstd",
        linger_ms=round(1000 * linger_seconds),
        batch_size=256 * 1024,
        # Chosen below the default of 120 s, after which all queued records fail: the spool still has them,
        # and a reconnect is faster. The other limits fit into it.
        delivery_timeout_ms=30_000,
        request_timeout_ms=10_000,
        max_block_ms=10_000,
        bootstrap_timeout_ms=5_000,
        # How long new partitions of a topic go unnoticed; workers forward records of a former partition.
        metadata_max_age_ms=30_000,
        # A topic created by accident has the wrong number of partitions (docs/decisions/0002).
        allow_auto_create_topics=False,
    )
