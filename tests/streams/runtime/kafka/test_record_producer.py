"""Records on their way to Kafka, from the threads of a server."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from servers.process import free_ports

from streams.runtime.kafka.record_producer import RecordProducer, SendProblem
from tests.streams import traffic
from tests.streams.runtime.harness import rig


@pytest.fixture
def installation(kafka_bootstrap, database, tmp_path):
    with rig(kafka_bootstrap, database, tmp_path) as made:
        yield made


def test_threads_share_one_connection(installation):
    """Batches of many threads all arrive, whole, over one producer that is closed at the end."""
    batches = [list(traffic.nodes(count=1, seconds=20)) for _ in range(12)]
    sender, producers = RecordProducer(installation.bootstrap, installation.prefix), set()

    def send(batch):
        sent = sender.send(batch)
        producers.add(id(sender._connection._producer))
        return sent

    with ThreadPoolExecutor(6) as threads:
        assert list(threads.map(send, batches)) == [20] * 12
    sender.close()
    assert len(producers) == 1
    assert installation.lag("detect") == 240
    assert not [t for t in threading.enumerate() if t.name == "sender"]


def test_brokers_that_are_away_are_said_so_every_time():
    """A batch fails with what to look at, the next one tries again, and closing still works."""
    sender = RecordProducer(f"127.0.0.1:{free_ports(1)[0]}")
    for _ in range(2):
        with pytest.raises(SendProblem, match="SLOWRANK_KAFKA_BOOTSTRAP"):
            sender.send(traffic.nodes(count=1, seconds=1))
    sender.close()


def test_a_sender_that_never_sent_has_nothing_to_close():
    """No thread and no connection before the first batch."""
    before = threading.active_count()
    sender = RecordProducer("127.0.0.1:1")
    assert threading.active_count() == before
    sender.close()
