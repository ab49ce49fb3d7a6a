import json
import os
import subprocess
import sys

import pytest
from aiokafka.errors import KafkaConnectionError

from slowrank.settings import Settings
from streams.runtime import replacement
from streams.runtime.housekeeping import health_file
from streams.runtime.replacement import LIVE_SECONDS, take_out, take_out_dead


@pytest.fixture
def left(monkeypatch):
    """The members that were taken out of their groups."""
    found = []

    async def leave(bootstrap, group, member):
        found.append((bootstrap, group, member))

    monkeypatch.setattr(replacement, "leave_group", leave)
    return found


@pytest.fixture
def settings(tmp_path):
    return Settings(streams_runtime_dir=tmp_path, kafka_bootstrap="k:9092", topic_prefix="p-")


def wrote(settings, role, pid, *, age=60.0, text=None):
    file = health_file(settings.streams_runtime_dir, role, pid)
    file.write_text(text or json.dumps({"role": role, "member_id": f"m{pid}"}))
    then = file.stat().st_mtime - age
    os.utime(file, (then, then))
    return file


def dead_pid():
    """The id of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_a_dead_worker_is_taken_out_of_its_own_group(settings, left):
    """And of no other; its file is gone, so that it happens once."""
    file = wrote(settings, "sink", 77, age=0.0)
    other = wrote(settings, "detect", 777)
    take_out(settings, 77)
    take_out(settings, 77)
    assert left == [("k:9092", "p-slowrank-sink", "m77")]
    assert not file.exists()
    assert other.exists()


@pytest.mark.parametrize("text", ["{", "[]", '{"role": "detect"}', '{"role": "x", "member_id": "m"}'])
def test_a_file_without_a_member_is_removed(settings, left, text):
    """The worker had not joined, or was killed while it wrote."""
    file = wrote(settings, "detect", 7, text=text)
    take_out(settings, 7)
    assert left == []
    assert not file.exists()


def test_brokers_that_are_away_are_no_error(settings, monkeypatch):
    """The session ends by itself."""

    async def leave(*_):
        raise KafkaConnectionError("gone")

    monkeypatch.setattr(replacement, "leave_group", leave)
    wrote(settings, "detect", 7)
    take_out(settings, 7)


def test_at_a_start_the_dead_of_before_are_taken_out(settings, left):
    """Not the living, and not those of another container, which wrote a moment ago."""
    gone, elsewhere = dead_pid(), dead_pid()
    wrote(settings, "detect", gone)
    wrote(settings, "sink", os.getpid())
    wrote(settings, "sink", elsewhere, age=LIVE_SECONDS / 2)
    take_out_dead(settings)
    assert left == [("k:9092", "p-slowrank-detect", f"m{gone}")]
