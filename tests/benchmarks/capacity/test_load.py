import os
import struct
import subprocess
import sys
import time
from collections import Counter

import pytest

from benchmarks.capacity.load import Load, node_name, record
from benchmarks.capacity.usage import usage

SECONDS = 5
HEAD = struct.Struct(">dI")


def requests(path):
    data, at = path.read_bytes(), 0
    while at < len(data):
        due, size = HEAD.unpack_from(data, at)
        at += HEAD.size
        yield due, data[at : at + size]
        at += size


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    load = Load(nodes=70, seconds=SECONDS, partitions=4, start=1_795_160_000.0)
    path = tmp_path_factory.mktemp("load") / "load"
    return record(load, path), list(requests(path))


def test_every_node_sends_a_sample_a_second(recorded):
    count, made = recorded
    samples = Counter(data.count(b"node-samples") for _, data in made)
    assert count == len(made)
    assert samples[1] == 70 * SECONDS


def test_requests_are_in_the_order_in_which_they_are_due(recorded):
    dues = [due for due, _ in recorded[1]]
    assert dues == sorted(dues)
    assert 0 <= dues[0] <= dues[-1] < SECONDS + 1


def test_gpus_of_different_nodes_are_lost_one_after_the_other():
    load = Load(nodes=100, seconds=90, partitions=4, start=1000.0)
    assert load.onsets == {
        node_name(0): 1020.0,
        node_name(25): 1035.0,
        node_name(50): 1050.0,
        node_name(75): 1065.0,
    }


def test_the_usage_of_a_process_includes_its_children():
    """A child computes and ends; its parent waits for it.

    It computes for longer than is asserted: the kernel counts in ticks of 10 ms and rounds down.
    """
    work = "import time\nwhile time.process_time() < 0.3: pass"
    parent = f"import subprocess, sys, time; subprocess.run([sys.executable, '-c', {work!r}]); time.sleep(30)"
    with subprocess.Popen([sys.executable, "-c", parent]) as process:
        try:
            deadline = time.monotonic() + 20
            while usage(process.pid).seconds < 0.25 and time.monotonic() < deadline:
                time.sleep(0.05)
            found = usage(process.pid)
        finally:
            process.kill()
    assert found.seconds >= 0.25
    assert found.bytes > 1_000_000
    assert usage(os.getpid()).seconds > 0
