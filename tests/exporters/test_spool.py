import os

import pytest

from exporters.disk_store import DiskStore
from exporters.spool import RETRY_DISK_SECONDS, MemoryStore, Spool, StoreFailed

MIB = 2**20


class BrokenDisk:
    """A disk that fails on demand, in front of a real one."""

    def __init__(self, disk):
        self._disk = disk
        self.broken = set()

    def __getattr__(self, name):
        if name in self.broken:
            raise StoreFailed(f"{name} failed")
        return getattr(self._disk, name)


@pytest.fixture(params=["disk", "memory"])
def store(request, tmp_path):
    made = DiskStore(tmp_path, 8 * MIB) if request.param == "disk" else MemoryStore(8 * MIB)
    yield made
    made.close()


@pytest.fixture
def disk(tmp_path):
    return BrokenDisk(DiskStore(tmp_path, 8 * MIB))


@pytest.fixture
def spool(disk):
    made = Spool(disk, MemoryStore(MIB))
    yield made
    disk.broken.clear()
    made.close()


def seqs(entries):
    return [entry.message.seq for entry in entries]


def test_a_store_keeps_order_and_forgets_what_is_deleted(store, make_messages):
    """Both stores hand out messages in the order they came, whole, until deleted."""
    messages = make_messages(10)
    store.put(messages[:4])
    store.put(messages[4:])

    first = store.read(0, 6)
    store.delete([i for i, _ in first[:3]])

    assert [m for _, m in first] == messages[:6]
    assert [m for _, m in store.read(first[-1][0], 100)] == messages[6:]
    assert [m for _, m in store.read(0, 100)] == messages[3:]
    assert store.size()[1] == 7


def test_what_a_disk_can_take_is_bounded_by_its_limit_and_the_file_system(tmp_path, make_messages):
    """Records use it up, and acknowledged ones give it back."""
    narrow, wide = DiskStore(tmp_path / "a", MIB), DiskStore(tmp_path / "b", 2**60)
    empty = narrow.free()
    held = make_messages(500)
    narrow.put(held)
    assert MIB / 2 < empty < MIB
    assert narrow.free() < empty - sum(len(m.payload) for m in held)
    narrow.delete([i for i, _ in narrow.read(0, 500)])
    assert narrow.free() >= empty - 16_384
    disk = os.statvfs(tmp_path)
    assert 0 < wide.free() <= disk.f_blocks * disk.f_frsize


def test_a_spool_without_its_disk_has_no_room(spool, disk, make_messages):
    """None at all once the disk has failed, also at the start; where none is wanted, it is no question."""
    assert spool.stats().free_bytes == disk.free()
    disk.broken |= {"put"}
    spool.put(make_messages(1), now=0.0)
    assert spool.stats().free_bytes == 0
    disk.broken.clear()
    spool.put(make_messages(1, first=1), now=RETRY_DISK_SECONDS)
    assert spool.stats().free_bytes == disk.free()
    assert Spool(None, MemoryStore(MIB), degraded="disk is full").stats().free_bytes == 0
    assert Spool(None, MemoryStore(MIB)).stats().free_bytes is None


def test_an_id_is_never_used_again(store, make_messages):
    """A reader's place stays valid when the store has been emptied in between."""
    store.put(make_messages(3))
    held = store.read(0, 10)
    store.delete([i for i, _ in held])
    store.put(make_messages(1, first=3))

    assert [m.seq for _, m in store.read(held[-1][0], 10)] == [3]


def test_a_full_store_drops_the_oldest_and_names_which(tmp_path, make_messages):
    """Bounded by its size, the store loses the oldest records, in ranges that are reported."""
    for store in (DiskStore(tmp_path, MIB), MemoryStore(MIB)):
        drops = [drop for n in range(0, 2000, 10) for drop in store.put(make_messages(10, first=n))]

        kept = [m.seq for _, m in store.read(0, 5000)]
        lost = sum(drop.records for drop in drops)
        assert lost > 0
        assert kept == list(range(lost, 2000))
        assert drops[0].first_seq == 0
        assert drops[-1].last_seq == lost - 1
        assert "full" in drops[0].reason
        assert store.size()[0] <= 1.1 * MIB
        store.close()


def test_the_spool_hands_out_once_and_again_after_rewind(spool, make_messages):
    """What is handed out comes again only after ``rewind``, and never once it is done."""
    spool.put(make_messages(6), 0.0)

    first = spool.batch(4)
    spool.done(first[:2])

    assert seqs(first) == [0, 1, 2, 3]
    assert seqs(spool.batch(10)) == [4, 5]
    assert spool.batch(10) == []
    spool.rewind()
    assert seqs(spool.batch(10)) == [2, 3, 4, 5]


def test_a_disk_that_fails_is_replaced_by_memory_and_taken_back(spool, disk, make_messages):
    """Puts go to memory while the disk fails, the state gives the reason, and all is sent in the end."""
    spool.put(make_messages(2), 0.0)
    disk.broken.add("put")
    spool.put(make_messages(2, first=2), 1.0)
    assert "put failed" in spool.stats().degraded

    disk.broken.clear()
    spool.put(make_messages(1, first=4), 2.0)
    spool.put(make_messages(1, first=5), 2.0 + RETRY_DISK_SECONDS)

    assert spool.stats().degraded == ""
    assert sorted(seqs(spool.batch(100))) == [0, 1, 2, 3, 4, 5]


def test_a_record_that_cannot_be_deleted_is_not_sent_twice(spool, disk, make_messages):
    """A disk without space for a deletion keeps its rows; in this run they are sent once."""
    spool.put(make_messages(3), 0.0)
    sent = spool.batch(10)
    disk.broken.add("delete")
    spool.done(sent)

    spool.rewind()
    assert spool.batch(10) == []

    disk.broken.clear()
    spool.done([])
    assert spool.stats().records == 0


def test_without_a_disk_everything_is_in_memory(make_messages):
    """A read-only host runs on the ring, reports it, and counts what the ring drops."""
    spool = Spool(None, MemoryStore(13_000), degraded="read-only")
    spool.put(make_messages(20), 0.0)

    stats = spool.stats()

    assert stats.degraded == "read-only"
    assert stats.dropped_total == 20 - stats.records > 0
    assert [drop.first_seq for drop in spool.drops()] == [0]
    assert spool.drops() == ()


def test_closing_moves_memory_to_disk(tmp_path, make_messages):
    """What only memory holds when the exporter stops waits on disk for the next start."""
    disk = BrokenDisk(DiskStore(tmp_path, MIB))
    spool = Spool(disk, MemoryStore(MIB))
    disk.broken.add("put")
    spool.put(make_messages(3), 0.0)
    disk.broken.clear()
    spool.close()

    assert [m.seq for _, m in DiskStore(tmp_path, MIB).read(0, 10)] == [0, 1, 2]
