import gc
import secrets
import subprocess
import sys
import time
from pathlib import Path

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition, codec
from kafka.admin import NewTopic
from kafka.errors import KafkaTimeoutError, MessageSizeTooLargeError
from kafka.record import default_records
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from exporters import publisher as publishing
from exporters.disk_store import DiskStore
from exporters.publisher import Publisher, kafka_producer
from exporters.spool import MemoryStore, Message, Spool
from simulator import Cluster, ClusterSpec
from slowrank.telemetry import NodeSample, encode


class Promise:
    def __init__(self, exception=None):
        self.is_done = True
        self.exception = exception


class Broker:
    """A stand-in for Kafka's producer that refuses the records it is set to refuse."""

    def __init__(self):
        self.taken = []
        self.fail_next = 0
        self.too_large = set()
        self.in_flight = 0
        self.refuse_close = 0
        self.closed = 0

    def send(self, topic, *, value, key):
        seq = int(value[:8])
        if seq in self.too_large:
            return Promise(MessageSizeTooLargeError("too large"))
        if self.fail_next:
            self.fail_next -= 1
            return Promise(KafkaTimeoutError("broker away"))
        self.taken.append(seq)
        return Promise()

    def close(self, timeout=None):
        if self.refuse_close:
            self.refuse_close -= 1
            raise KafkaTimeoutError("Timeout waiting for future")
        self.closed += 1


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(publishing, "BACKOFF_SECONDS", (0.02, 0.1))


@pytest.fixture
def spool(tmp_path):
    made = Spool(DiskStore(tmp_path, 64 << 20), MemoryStore(1 << 20))
    yield made
    made.close()


@pytest.fixture
def broker():
    return Broker()


def publish(spool, connect):
    publisher = Publisher(spool, connect)
    publisher.start()
    try:
        assert publisher.drain(10.0)
    finally:
        publisher.stop()
    return publisher.metrics()


def test_records_are_sent_in_order_and_forgotten(spool, broker, make_messages):
    """Everything spooled reaches the broker in order, and the spool is empty after."""
    spool.put(make_messages(2500), 0.0)

    metrics = publish(spool, lambda: broker)

    assert broker.taken == list(range(2500))
    assert metrics["records_sent_total"] == 2500


def test_a_refused_record_is_sent_again(spool, broker, make_messages):
    """After a failure all that was not acknowledged goes again: nothing is lost, some may come twice."""
    spool.put(make_messages(50), 0.0)
    broker.fail_next = 3

    metrics = publish(spool, lambda: broker)

    assert set(broker.taken) == set(range(50))
    assert metrics["publish_failures_total"] >= 1


def test_a_record_the_broker_never_takes_does_not_stop_the_others(spool, broker, make_messages):
    """A record too large for the broker is given up and counted."""
    spool.put(make_messages(10), 0.0)
    broker.too_large = {4}

    metrics = publish(spool, lambda: broker)

    assert broker.taken == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    assert metrics["records_rejected_total"] == 1


@pytest.mark.parametrize(
    ("error", "named"),
    [
        (KafkaTimeoutError("nobody there"), "KafkaTimeoutError: nobody there"),
        (OSError("no route"), "OSError: no route"),
    ],
)
def test_a_broker_away_at_the_start_is_waited_for(spool, broker, make_messages, caplog, error, named):
    """Connecting fails, which is logged once; records wait, and leave when the broker is there."""
    spool.put(make_messages(5), 0.0)
    attempts = []

    def connect():
        attempts.append(1)
        if len(attempts) < 4:
            raise error
        return broker

    publish(spool, connect)

    assert broker.taken == [0, 1, 2, 3, 4]
    (line,) = caplog.messages
    assert line.startswith(f"cannot publish, records wait in the spool: {named} (is the broker up")


@pytest.mark.slow
def test_connecting_in_vain_closes_the_client():
    """In an outage of hours each attempt closes what it opened: unclosed sockets warn when collected."""
    with pytest.raises(KafkaTimeoutError):
        kafka_producer("127.0.0.1:1", "test")

    gc.collect()


def batch_of(values):
    """The batch of the log that kafka-python's producer makes of ``values``."""
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=DefaultRecordBatchBuilder.CODEC_ZSTD,
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 20,
    )
    for offset, value in enumerate(values):
        builder.append(offset, 0, b"n1", value, headers=[])
    return bytes(builder.build())


def test_batches_are_compressed_more_than_kafka_python_would(monkeypatch):
    """The library has no setting for the level: its function is replaced, and its reader reads the batch."""
    # Another test of this process may have replaced it.
    monkeypatch.setattr(default_records, "zstd_encode", codec.zstd_encode)
    made = Cluster(ClusterSpec(nodes=1, jobs=()), seed=1).run(20.0)
    values = [encode(record) for record in made if isinstance(record, NodeSample)]
    usual = sum(len(batch_of([value])) for value in values)
    publishing.compress_more()
    batches = [batch_of([value]) for value in values]
    read = [record.value for batch in batches for record in DefaultRecordBatch(batch)]
    assert read == values
    assert sum(map(len, batches)) < 0.97 * usual


@pytest.mark.parametrize("seconds", [0.2, 1.2])
def test_a_batch_waits_as_long_as_it_is_set(monkeypatch, seconds):
    """The setting reaches the client in milliseconds."""
    given = {}
    monkeypatch.setattr(publishing, "KafkaProducer", lambda **options: given.update(options))
    kafka_producer("127.0.0.1:1", "test", linger_seconds=seconds)
    assert given["linger_ms"] == 1000 * seconds


@pytest.fixture
def topic(kafka_bootstrap):
    name = f"spool-{secrets.token_hex(4)}"
    admin = KafkaAdminClient(bootstrap_servers=kafka_bootstrap)
    admin.create_topics([NewTopic(name=name, num_partitions=1, replication_factor=1)])
    yield name
    admin.delete_topics([name])
    admin.close()


def consumed(bootstrap, topic):
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap, auto_offset_reset="earliest", enable_auto_commit=False
    )
    partition = TopicPartition(topic, 0)
    consumer.assign([partition])
    end = consumer.end_offsets([partition])[partition]
    records = []
    while consumer.position(partition) < end:
        records += consumer.poll(1000).get(partition, [])
    consumer.close()
    return [(record.key, record.value) for record in records]


def test_a_producer_that_cannot_be_closed_yet_is_closed_later(spool, broker, make_messages):
    """kafka-python will not close while it holds batches: sending goes on; the old one goes later."""
    broker.fail_next, broker.refuse_close = 1, 3
    spool.put(make_messages(50), 0.0)
    publisher = Publisher(spool, lambda: broker)
    publisher.start()
    assert publisher.drain(10.0)
    deadline = time.monotonic() + 10
    while not broker.closed and time.monotonic() < deadline:
        time.sleep(0.02)
    publisher.stop()

    assert set(broker.taken) == set(range(50))
    assert broker.refuse_close == 0
    assert broker.closed


@pytest.mark.integration
def test_a_real_broker_gets_every_record_in_order(kafka_bootstrap, topic, spool):
    """5,000 records drain through real Kafka at over 100 times the live rate, in order, with their keys."""
    sent = [Message(topic, b"n1", f"{n:08d}".encode() * 160, "boot", n) for n in range(5000)]
    spool.put(sent, 0.0)
    began = time.monotonic()

    publish(spool, lambda: kafka_producer(kafka_bootstrap, "test"))

    assert time.monotonic() - began < 30
    assert consumed(kafka_bootstrap, topic) == [(m.key, m.payload) for m in sent]


@pytest.mark.integration
def test_an_exporter_process_sends_its_node_and_stops_cleanly(kafka_bootstrap, tmp_path):
    """``slowrank exporter run`` against real Kafka: SIGTERM ends it with status 0 and an empty spool."""
    prefix = f"x{secrets.token_hex(4)}."
    admin = KafkaAdminClient(bootstrap_servers=kafka_bootstrap)
    names = [f"{prefix}{name}" for name in ("node-samples", "node-events", "job-steps")]
    admin.create_topics([NewTopic(name=name, num_partitions=1, replication_factor=1) for name in names])
    command = [str(Path(sys.executable).parent / "slowrank"), "exporter", "run", "--kafka", kafka_bootstrap]
    command += ["--listen", str(tmp_path / "s.sock"), "--spool", str(tmp_path / "spool"), "--interval", "0.2"]
    process = subprocess.Popen(
        command, env={"SLOWRANK_TOPIC_PREFIX": prefix, "PATH": ""}, stderr=subprocess.PIPE, cwd=tmp_path
    )
    try:
        until = time.monotonic() + 60.0
        while len(consumed(kafka_bootstrap, f"{prefix}node-samples")) < 10 and time.monotonic() < until:
            time.sleep(0.5)
        process.terminate()
        _, errors = process.communicate(timeout=20)
    finally:
        process.kill()
    held = DiskStore(tmp_path / "spool", 1 << 20)
    said = [line for line in errors.decode().splitlines() if not line.startswith("no GPU is read")]
    assert (process.returncode, said, held.size()[1]) == (0, [], 0)
    held.close()
    assert len(consumed(kafka_bootstrap, f"{prefix}node-samples")) >= 10
    admin.delete_topics(names)
    admin.close()


@pytest.mark.integration
@pytest.mark.slow
def test_records_outlive_a_broker_outage(private_kafka, spool, make_messages):
    """Two of three brokers killed in mid-stream, back after 10 s: every record arrives, in order."""
    admin = KafkaAdminClient(bootstrap_servers=private_kafka.bootstrap)
    admin.create_topics([NewTopic(name="node-samples", num_partitions=1, replication_factor=3)])
    admin.close()
    publisher = Publisher(spool, lambda: kafka_producer(private_kafka.bootstrap, "test"))
    publisher.start()
    try:
        for n in range(0, 300, 10):
            if n == 100:
                for node in private_kafka.nodes[1:]:
                    private_kafka.kill(node)
            spool.put(make_messages(10, first=n), 0.0)
            time.sleep(0.5)
        assert spool.stats().records > 0
        for node in private_kafka.nodes[1:]:
            private_kafka.restart(node)
        assert publisher.drain(90.0)
    finally:
        publisher.stop()

    seqs = [int(value[:8]) for _, value in consumed(private_kafka.bootstrap, "node-samples")]
    assert list(dict.fromkeys(seqs)) == list(range(300))
