"""Fixture trees of /proc and /sys, moments and messages."""

import pytest

from exporters.collector import Instant
from exporters.spool import Message


@pytest.fixture
def write_tree(tmp_path):
    """Write a dict of relative path to text as files, return the root."""

    def write(files, root=tmp_path):
        for name, text in files.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return root

    return write


@pytest.fixture
def instants():
    """Instants one second apart."""
    return lambda n: Instant(wall=1_795_160_000.0 + n, monotonic=50_000.0 + n)


@pytest.fixture
def make_messages():
    """Messages numbered from ``first``, as one boot of one node sends them."""

    def make(count, *, first=0, size=1300, boot_id="boot"):
        return [
            Message("node-samples", b"node", f"{n:08d}".encode() * (size // 8), boot_id, n)
            for n in range(first, first + count)
        ]

    return make
