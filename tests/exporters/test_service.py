import itertools
import threading
import time

import pytest

from exporters import service
from exporters.exporter import Exporter
from exporters.spool import MemoryStore, Spool
from slowrank.telemetry import decode_sample


@pytest.fixture
def spool():
    return Spool(None, MemoryStore(1 << 20))


def test_a_node_keeps_its_phase_and_nodes_differ():
    """Ticks of one node stay at one phase of the interval, and a fleet spreads over it."""
    ticks = [service.Schedule("gpu-0001", 1.0).next_after(100.0 + n) % 1.0 for n in range(5)]
    phases = sorted(service.Schedule(f"gpu-{n:04d}", 1.0).next_after(0.0) % 1.0 for n in range(200))

    assert max(ticks) - min(ticks) < 1e-9
    assert max(b - a for a, b in itertools.pairwise(phases)) < 0.1


def test_missed_ticks_are_left_out():
    """After a pause the next tick is the next one due, not one for each that was missed."""
    schedule = service.Schedule("node", 1.0)
    due = schedule.next_after(10.0)

    assert 10.0 < due <= 11.0
    assert schedule.next_after(due) == pytest.approx(due + 1.0)
    assert schedule.next_after(due + 7.5) == pytest.approx(due + 8.0)


def test_every_start_has_its_own_boot_id(tmp_path):
    """A restart on the same boot, and the same start time on another boot, give another id."""
    (tmp_path / "sys/kernel/random").mkdir(parents=True)
    boot = tmp_path / "sys/kernel/random/boot_id"
    ids = set()
    for text in ("3f1c9a52-0b7e", "7a1c9a52-0b7e"):
        boot.write_text(text)
        for started in (1_795_160_000_000_000_000, 1_795_160_000_001_000_000):
            ids.add(service.identity("c", "n", started, tmp_path).boot_id)

    assert len(ids) == 4


@pytest.mark.alone
@pytest.mark.slow
def test_it_ticks_until_stopped(spool):
    """Samples are spooled at the interval, each with how long the one before took."""
    exporter = Exporter(service.identity("c", "n1", time.time_ns()), [])
    stop = threading.Event()
    thread = threading.Thread(
        target=lambda: service.run(exporter, spool, service.Schedule("n1", 0.1), stop=stop, prefix="test.")
    )
    thread.start()
    time.sleep(1.05)
    stop.set()
    thread.join(5.0)

    messages = [entry.message for entry in spool.batch(100)]
    samples = [decode_sample(message.payload, now=time.time()) for message in messages]

    assert 9 <= len(samples) <= 11
    assert {(m.topic, m.key) for m in messages} == {("test.node-samples", b"n1")}
    assert [sample.seq for sample in samples] == list(range(len(samples)))
    gaps = [b.ts - a.ts for a, b in itertools.pairwise(samples)]
    assert sorted(gaps)[len(gaps) // 2] == pytest.approx(0.1, abs=0.03)
