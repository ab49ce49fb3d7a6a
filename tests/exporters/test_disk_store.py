import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from exporters.disk_store import DiskStore
from exporters.spool import StoreFailed

MIB = 2**20
ROOT = Path(__file__).resolve().parents[2]

_WRITER = """
import sys
from pathlib import Path
from exporters.disk_store import DiskStore
from exporters.spool import Message
store = DiskStore(Path(sys.argv[1]), 64 << 20)
held = store.read(0, 1 << 20)
seq = held[-1][1].seq + 1 if held else 0
while True:
    store.put([Message("node-samples", b"node", b"x" * 1300, "boot", seq)])
    print(seq, flush=True)
    seq += 1
"""


def test_a_kill_at_any_moment_loses_nothing_that_was_put(tmp_path):
    """kill -9 in mid-write, eight times: every record reported as put is there, once, in order."""
    chance = random.Random(7)
    put = -1
    for _ in range(8):
        writer = subprocess.Popen(
            [sys.executable, "-c", _WRITER, str(tmp_path)], stdout=subprocess.PIPE, cwd=ROOT, text=True
        )
        assert writer.stdout is not None
        for _ in range(chance.randrange(1, 60)):
            put = int(writer.stdout.readline())
        writer.send_signal(signal.SIGKILL)
        lines = writer.stdout.read().split()
        writer.stdout.close()
        writer.wait()
        put = int(lines[-1]) if lines else put
    store = DiskStore(tmp_path, 64 * MIB)

    kept = [message.seq for _, message in store.read(0, 1 << 20)]

    assert kept == list(range(len(kept)))
    assert len(kept) > put > 100
    store.close()


@pytest.mark.slow
def test_a_second_process_is_refused(tmp_path):
    """Two exporters on one spool would send every record twice; the second is refused."""
    first = DiskStore(tmp_path, MIB)

    with pytest.raises(StoreFailed, match="locked"):
        DiskStore(tmp_path, MIB)
    first.close()


def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    """A file in the folder's place, as any other refusal of the system, becomes ``StoreFailed``."""
    (tmp_path / "file").write_text("")

    with pytest.raises(StoreFailed, match="cannot open"):
        DiskStore(tmp_path / "file" / "spool", MIB)


def test_a_folder_without_permission_is_refused(tmp_path):
    """Without permission to write there is no spool."""
    tmp_path.chmod(0o500)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        with pytest.raises(StoreFailed, match="cannot open"):
            DiskStore(tmp_path / "spool", MIB)
    finally:
        os.seteuid(user)


def test_a_damaged_file_is_set_aside(tmp_path, make_messages):
    """What cannot be read any more is kept for people, and spooling goes on."""
    (tmp_path / "spool.sqlite").write_bytes(b"this is not a database" * 1000)

    store = DiskStore(tmp_path, MIB)
    store.put(make_messages(2))

    assert store.size()[1] == 2
    assert (tmp_path / "spool.damaged").read_bytes().startswith(b"this is not")
    store.close()


def test_nothing_that_was_set_aside_is_lost(tmp_path):
    """Each damaged file has a name of its own; the fifth stops the store and stays where it is."""
    for n in range(4):
        (tmp_path / "spool.sqlite").write_bytes(b"this is not a database %d" % n)
        DiskStore(tmp_path, MIB).close()
    kept = [tmp_path / name for name in ("spool.damaged", *(f"spool.damaged.{n}" for n in (1, 2, 3)))]
    assert [path.read_bytes()[-1:] for path in kept] == [b"0", b"1", b"2", b"3"]
    (tmp_path / "spool.sqlite").write_bytes(b"this is not a database 4")
    with pytest.raises(StoreFailed, match="move"):
        DiskStore(tmp_path, MIB)
    assert (tmp_path / "spool.sqlite").read_bytes() == b"this is not a database 4"


def test_a_full_file_system_is_a_failure_and_not_a_crash(tmp_path, make_messages):
    """When the system refuses to let the file grow, the store raises an error and keeps what it has."""
    store = DiskStore(tmp_path, 64 * MIB)
    store.put(make_messages(10))
    _, hard = limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (128 * 1024, hard))
    try:
        with pytest.raises(StoreFailed):
            store.put(make_messages(1000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)

    assert store.read(0, 10)[0][1].seq == 0
    store.put(make_messages(1, first=5000))
    store.close()


@pytest.mark.alone
def test_draining_is_a_hundred_times_live(tmp_path, make_messages):
    """A backlog leaves at over 5,000 records a second while live records still go in without delay."""
    store = DiskStore(tmp_path, 64 * MIB)
    for n in range(0, 20_000, 1000):
        store.put(make_messages(1000, first=n))
    slowest, after, began = 0.0, 0, time.monotonic()
    while held := store.read(after, 500):
        after = held[-1][0]
        store.delete([i for i, _ in held])
        live = time.monotonic()
        if after < 20_000:
            store.put(make_messages(1, first=after + 20_000))
        slowest = max(slowest, time.monotonic() - live)
    seconds = time.monotonic() - began

    assert 20_000 / seconds > 5000
    assert slowest < 0.5
    assert store.size()[1] == 0
    store.close()


def test_the_file_shrinks_when_it_is_empty(tmp_path, make_messages):
    """After a long outage the disk is given back."""
    store = DiskStore(tmp_path, 64 * MIB)
    store.put(make_messages(10_000))
    held = store.size()[0]
    store.delete([i for i, _ in store.read(0, 20_000)])
    store.close()

    assert held > 10 * MIB
    assert (tmp_path / "spool.sqlite").stat().st_size < MIB
