"""Dumps of a job that stands still show which of its ranks have not arrived."""

import os

import pytest

from alerts.finding import Finding
from exporters.collector import Instant
from exporters.dumps import collector as dumps
from exporters.dumps.collector import DumpsCollector
from exporters.exporter import Exporter, NodeIdentity
from exporters.host import device_threads
from exporters.nccl.collector import NcclCollector
from exporters.spool import SpoolStats
from slowrank.telemetry import JobSteps
from streams.config.settings import Tuning
from streams.pipeline import local_pipeline
from tests.exporters.dumps.trace import entry, write
from tests.exporters.nccl.inspector import T0, Writer

ENDED = entry("0", "nccl:all_reduce", 99)
WAITS = entry("0", "nccl:all_reduce", 100, "started")


@pytest.fixture
def job(tmp_path, monkeypatch):
    monkeypatch.setattr(device_threads, "WAIT_SECONDS", 60.0)
    folder = tmp_path / "4711"
    folder.mkdir()
    return folder


@pytest.fixture
def collector(job):
    made = DumpsCollector([str(job.parent)])
    yield made
    made.close()


def reports(collector, instants, tick=0):
    read = collector.collect(instants(tick)).steps
    return [(steps.job_id, one.rank, one.phase) for steps in read for one in steps.open]


def test_a_rank_whose_operation_has_not_ended_waits(job, collector, instants):
    """Each dump is reported once, and again when it is written anew."""
    write(job, 4, [ENDED, WAITS], {"0": range(8)})
    write(job, 5, [ENDED], {"0": range(8)})

    assert reports(collector, instants) == [("4711", 4, "wait"), ("4711", 5, "")]
    assert reports(collector, instants, 1) == []

    os.utime(write(job, 5, [ENDED, WAITS], {"0": range(8)}), (2e9, 2e9))
    assert reports(collector, instants, 2) == [("4711", 5, "wait")]
    assert collector.metrics()["rank_dumps_total"] == 3


STACK = """Process 812: python train.py
Python v3.11.7 (/usr/bin/python3.11)

Thread 812 (idle): "MainThread"
    Condition.wait (threading.py:327)
    load (lib/loader.py:1)
    <module> (train.py:5)
Thread 813 (idle): "Thread-1 (<lambda>)"
    all_reduce (torch/distributed/distributed_c10d.py:2696)
"""


def test_dumps_of_py_spy_and_of_pytorch_are_known_by_their_content(job, collector, instants):
    """By what is in them; both report the line of the training code."""
    (job / "py-spy_rank_4.txt").write_text(STACK)
    write(job, 5, [ENDED, WAITS], {"0": range(8)})

    [steps] = collector.collect(instants(0)).steps
    assert [(one.rank, one.phase, one.at) for one in steps.open] == [
        (5, "wait", "/home/u/train.py:141"),
        (4, "", "lib/loader.py:1 in load"),
    ]


def test_a_dump_that_is_being_written_is_read_when_it_is_whole(job, collector, instants):
    """Until then it counts as unreadable."""
    whole = write(job, 4, [WAITS], {"0": range(8)}).read_bytes()
    (job / "nccl_trace_rank_4").write_bytes(whole[:-9])
    assert reports(collector, instants) == []
    assert collector.metrics()["rank_dumps_unreadable_total"] == 1

    (job / "nccl_trace_rank_4").write_bytes(whole)
    assert reports(collector, instants, 1) == [("4711", 4, "wait")]


def test_dumps_of_an_earlier_stop_and_of_other_machines_are_left_out(job, collector, instants, monkeypatch):
    """The one by its age, the other where the file system may be shared."""
    os.utime(write(job, 4, [WAITS], {"0": range(8)}), (1e9, 1e9))
    assert reports(collector, instants) == []

    monkeypatch.setattr(dumps, "is_local", lambda folder: False)
    write(job, 4, [WAITS], {"0": range(8)})
    assert reports(collector, instants, 1) == []


@pytest.mark.slow
def test_the_rank_that_the_others_wait_for_is_suspected_of_the_hang(tmp_path, monkeypatch):
    """Steps come from NCCL Inspector, which shows a stop and nobody; the dumps of all ranks show who."""
    monkeypatch.setattr(device_threads, "WAIT_SECONDS", 60.0)
    writer = Writer(tmp_path)
    folders = [str(tmp_path / f"node-{n}") for n in range(2)]
    exporters = [
        Exporter(NodeIdentity("c", f"node-{n}", "b"), [NcclCollector([at]), DumpsCollector([at])])
        for n, at in enumerate(folders)
    ]
    pipeline = local_pipeline(Tuning())
    found: dict[str, Finding] = {}

    def tick(wall):
        for exporter in exporters:
            for record in exporter.tick(Instant(wall=wall, monotonic=wall - T0), SpoolStats(0, 0)):
                if isinstance(record, JobSteps):
                    found.update((finding.id, finding) for finding in pipeline.process(record))
        found.update((finding.id, finding) for finding in pipeline.tick(wall))

    for _ in range(24):
        writer.run(5)
        tick(writer.at)
    for second in range(1, 181):
        if second == 100:
            for rank in range(16):
                entries = [ENDED] if rank == 11 else [ENDED, WAITS]
                write(writer.path(rank).parent, rank, entries, {"0": range(16)})
        tick(writer.at + second)
    for exporter in exporters:
        exporter.close()

    (hang,) = [finding for finding in found.values() if finding.kind == "hang.job"]
    assert (hang.status, hang.severity) == ("open", "error")
    assert [suspect.subject.rank for suspect in hang.suspects] == [11]
