"""Dumps of py-spy, as text and as JSON: where the main thread of a rank is."""

import json

import pytest

from exporters.dumps.file import BadDump
from exporters.dumps.stack import Frame, is_stack, line_of, read_stack, waits

TEXT = b"""Process 812: python train.py
Python v3.11.7 (/usr/bin/python3.11)

Thread 813 (idle): "Thread-1 (<lambda>)"
    Event.wait (threading.py:629)
    <lambda> (train.py:4)
Thread 812 (active+gil): "MainThread"
    wait (torch/distributed/distributed_c10d.py:2696)
    step (src/model.py:31)
        Arguments:
            batch: <Batch at 0x7f>
    <module> (train.py:5)
"""


def as_json(*frames, thread="MainThread"):
    """What ``py-spy dump --json`` writes of one thread; py-spy 0.4 has more fields."""
    keys = ("name", "filename", "line")
    dumped = [dict(zip(keys, frame, strict=True)) | {"module": None, "locals": None} for frame in frames]
    return json.dumps(
        [{"pid": 812, "thread_name": thread, "active": True, "frames": dumped}], indent=2
    ).encode()


def test_the_frames_of_the_main_thread_are_read_innermost_first():
    """From text, with what other threads are doing and with arguments left out."""
    assert is_stack(TEXT)
    assert read_stack(TEXT) == (
        Frame("wait", "torch/distributed/distributed_c10d.py", 2696),
        Frame("step", "src/model.py", 31),
        Frame("<module>", "train.py", 5),
    )


def test_json_has_the_same():
    """With whole paths."""
    library = "/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
    data = as_json(("wait", library, 2696), ("step", "/home/u/model.py", 31))

    assert is_stack(data)
    assert waits(read_stack(data))
    assert line_of(read_stack(data)) == "/home/u/model.py:31 in step"


@pytest.mark.parametrize(
    ("frames", "waiting", "line"),
    [
        ([("get", "queue.py", 171), ("load", "lib/loader.py", 1)], False, "lib/loader.py:1 in load"),
        ([("all_reduce", "torch/distributed/c10d.py", 9), ("f", "train.py", 3)], True, "train.py:3 in f"),
        ([("get", "queue.py", 171), ("run", "threading.py", 9)], False, "queue.py:171 in get"),
        ([("f", "<string>", 1), ("step", "train.py", 3)], False, "train.py:3 in step"),
    ],
)
def test_a_rank_waits_in_a_collective_and_its_line_is_that_of_the_training_code(frames, waiting, line):
    """Of libraries alone it is the innermost one."""
    found = [Frame(*frame) for frame in frames]
    assert (waits(found), line_of(found)) == (waiting, line)


@pytest.mark.parametrize(
    "data",
    [
        b"Process 812: python train.py\nError: Failed to get process executable name",
        b"Process 812\n\xff",
        b"[",
        b"[]",
        b"[1]",
        b"[{}]",
        as_json(("f", "train.py", 1), thread="worker"),
        as_json(),
        as_json(("f", "train.py", None)),
        b"[" * 100_000,
    ],
)
def test_what_is_no_dump_is_refused_with_the_reason(data):
    """Without a main thread nothing is known of the rank."""
    with pytest.raises(BadDump, match="py-spy"):
        read_stack(data)
