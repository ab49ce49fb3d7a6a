import os
import random

import pytest

from streams.runtime.snapshots.snapshot_file import Header, Mark, Refused, Snapshot, read, write

HEADER = Header("code", "job-steps:3", 4, 101, Mark(100, 1_795_160_000.5, "d"), 1_795_160_001.0)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "job-steps-3.snapshot"


def test_what_is_written_is_read(path):
    """And no other user may read or write it."""
    size = write(path, Snapshot(HEADER, b"state" * 1000))
    assert read(path) == Snapshot(HEADER, b"state" * 1000)
    assert path.stat().st_size == size < 1000
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_file_is_replaced_as_a_whole(path):
    """No second file stays behind."""
    for state in (b"first", b"second"):
        write(path, Snapshot(HEADER, state))
    found = read(path)
    assert found is not None
    assert found.state == b"second"
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_no_file_is_no_snapshot(path):
    """As at the first start."""
    assert read(path) is None


@pytest.mark.parametrize("seed", range(30))
def test_damage_is_found(path, seed):
    """Wherever it is, and however much is missing."""
    write(path, Snapshot(HEADER, bytes(range(256)) * 20))
    chance, data = random.Random(seed), bytearray(path.read_bytes())
    if seed % 2:
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    else:
        del data[chance.randrange(len(data)) :]
    path.write_bytes(data)
    with pytest.raises(Refused) as refused:
        read(path)
    assert refused.value.reason in ("damaged", "foreign")


def test_a_file_of_another_version_is_foreign(path):
    """Its layout is unknown."""
    write(path, Snapshot(HEADER, b"state"))
    path.write_bytes(path.read_bytes().replace(b"snapshot 1\n", b"snapshot 2\n"))
    with pytest.raises(Refused) as refused:
        read(path)
    assert refused.value.reason == "foreign"


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_what_others_may_write_is_not_read(path, mode):
    """They could make it anything."""
    write(path, Snapshot(HEADER, b"state"))
    path.chmod(mode)
    with pytest.raises(Refused) as refused:
        read(path)
    assert refused.value.reason == "unsafe"


def test_a_link_is_not_followed(path):
    """It may lead anywhere."""
    write(path.with_name("other"), Snapshot(HEADER, b"state"))
    path.symlink_to(path.with_name("other"))
    with pytest.raises(Refused):
        read(path)


def test_a_pipe_is_not_waited_for(path):
    """Nobody may ever write into it."""
    os.mkfifo(path, 0o600)
    with pytest.raises(Refused) as refused:
        read(path)
    assert refused.value.reason == "unsafe"
