"""Dumps of the flight recorder are read without running what a pickle may hold."""

import os
import pickle

import pytest

from exporters.dumps.file import BadDump
from exporters.dumps.flight_recorder import Issued, read_dump
from tests.exporters.dumps.trace import entry, write


@pytest.mark.parametrize("as_json", [False, True])
def test_a_dump_is_read(tmp_path, as_json):
    """With the ranks of its groups, and peers by their number in the job."""
    entries = [
        entry("0", "nccl:all_reduce", 8),
        entry("7", "nccl:recv 1<-0", 3, "started", pairwise=True),
        entry("7", "nccl:coalesced", 3, "started", pairwise=True),
        entry("0", "nccl:_all_gather_base", 9, "scheduled", size=64),
    ]
    path = write(tmp_path, 12, entries, {"0": range(16), "7": (4, 12)}, as_json=as_json)

    dump = read_dump(path)

    assert (dump.rank, dump.groups) == (12, {"0": tuple(range(16)), "7": (4, 12)})
    at = "/home/u/train.py:141"
    assert dump.issued == (
        Issued("0", 8, "all_reduce", 1000, started=True, done=True, caller=at),
        Issued("7", 3, "recv", 1000, started=True, done=False, peer=4, caller=at),
        Issued("0", 9, "_all_gather_base", 64, started=False, done=False, caller=at),
    )


class _Command:
    def __reduce__(self):
        return os.mkdir, ("run-by-a-pickle",)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (pickle.dumps(_Command(), 2), "which no dump does"),
        (pickle.dumps({"entries": []}, 2)[:-3], "whole pickle"),
        (b"", "whole pickle"),
        (b"{}", "pg_config"),
        (b'{"pg_config":{"0":{"ranks":"[0"}}}', "JSONDecodeError"),
        (pickle.dumps([1], 2), "no dump"),
    ],
)
def test_another_file_is_refused(tmp_path, monkeypatch, data, reason):
    """With the reason; nothing in it runs."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "x_rank_0"
    path.write_bytes(data)

    with pytest.raises(BadDump, match=reason):
        read_dump(path)
    assert list(tmp_path.iterdir()) == [path]


def test_the_name_ends_with_the_rank(tmp_path):
    """For the dump itself does not name it."""
    with pytest.raises(BadDump, match="rank"):
        read_dump(write(tmp_path, "x", [], {}))
