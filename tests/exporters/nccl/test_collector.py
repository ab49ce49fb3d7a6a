"""Files of NCCL Inspector become step rows, and a finding that names the rank the others wait for."""

import json
import os
import threading
import time
from pathlib import Path

import pytest

from alerts.finding import Finding
from exporters.collector import Instant
from exporters.exporter import Exporter, NodeIdentity
from exporters.host import device_threads
from exporters.job_folders import file_system
from exporters.nccl import log_files
from exporters.nccl.collector import NcclCollector
from exporters.nccl.log_files import LogFiles
from exporters.spool import SpoolStats
from slowrank.telemetry import JobSteps
from streams.config.settings import Tuning
from streams.pipeline import local_pipeline
from tests.exporters.nccl.inspector import T0, Writer


@pytest.fixture
def make_collector(monkeypatch):
    """Collectors whose ticks wait for the files: a busy machine makes no rank late."""
    monkeypatch.setattr(device_threads, "WAIT_SECONDS", 60.0)
    made = []

    def make(*folders, hosts=()):
        made.append(NcclCollector([str(folder) for folder in folders], hosts))
        return made[-1]

    yield make
    for collector in made:
        collector.close()


def unused(collector, reason):
    return collector.metrics().get(f'nccl_unused_total{{reason="{reason}"}}', 0)


def rows_of(collector, instants, tick=0):
    return [row for steps in collector.collect(instants(tick)).steps for row in steps.rows]


@pytest.mark.slow
@pytest.mark.parametrize("verbose", [True, False])
def test_a_slow_rank_is_found_without_a_training_hook(tmp_path, make_collector, verbose):
    """Two nodes of eight ranks; one becomes 1.3 times slower: the finding names it and its node."""
    writer = Writer(tmp_path, verbose=verbose)
    exporters = [
        Exporter(NodeIdentity("c", f"node-{n}", "b"), [make_collector(tmp_path / f"node-{n}")])
        for n in range(2)
    ]
    pipeline = local_pipeline(Tuning())
    found: dict[str, Finding] = {}
    for tick in range(24):
        writer.slow = {11: 1.3} if tick >= 12 else {}
        writer.run(5)
        for exporter in exporters:
            now = Instant(wall=writer.at, monotonic=writer.at - T0)
            for record in exporter.tick(now, SpoolStats(0, 0)):
                if isinstance(record, JobSteps):
                    assert (record.job_id, record.world_size) == ("4711", 16)
                    found |= {finding.id: finding for finding in pipeline.process(record)}
    found |= {finding.id: finding for finding in pipeline.finish()}

    (finding,) = found.values()
    assert finding.kind == "straggler.fail_slow"
    assert (finding.subject.rank, finding.subject.node, finding.subject.job_id) == (11, "node-1", "4711")
    assert finding.slowdown_ratio == pytest.approx(1.3, abs=0.03)


def test_a_healthy_job_has_no_finding(tmp_path, make_collector):
    """Its slowest rank changes from step to step."""
    writer = Writer(tmp_path, noise=0.02)
    collectors = [make_collector(tmp_path / f"node-{n}") for n in range(2)]
    exporters = [
        Exporter(NodeIdentity("c", f"node-{n}", "b"), [collector]) for n, collector in enumerate(collectors)
    ]
    pipeline = local_pipeline(Tuning())
    found = []
    for _ in range(20):
        writer.run(5)
        for exporter in exporters:
            for record in exporter.tick(Instant(wall=writer.at, monotonic=writer.at - T0), SpoolStats(0, 0)):
                found += pipeline.process(record) if isinstance(record, JobSteps) else []

    assert found == []
    assert collectors[0].metrics()["nccl_step_rows_total"] > 500


def test_the_job_is_the_name_of_the_folder(tmp_path, make_collector, instants):
    """Without Inspector's prefix; a file may lie in the configured folder itself."""
    writer = Writer(tmp_path, ranks=2, per_node=2)
    writer.run(20)

    above, itself = (
        make_collector(tmp_path / "node-0"),
        make_collector(tmp_path / "node-0/nccl-inspector-4711"),
    )

    for collector in (above, itself):
        (steps,) = collector.collect(instants(0)).steps
        assert (steps.job_id, steps.world_size, steps.attempt) == ("4711", 2, 0)
        assert {row["rank"] for row in steps.rows} == {0, 1}


def test_a_reading_that_takes_longer_than_a_tick_gives_its_rows_at_once(
    tmp_path, make_collector, instants, monkeypatch
):
    """Otherwise the ranks whose files come last would look stopped."""
    Writer(tmp_path).run(20)
    go_on, read = threading.Event(), LogFiles.read

    def slow(files):
        for number, one in enumerate(read(files)):
            if number == 7:
                go_on.wait(60)
            yield one

    monkeypatch.setattr(LogFiles, "read", slow)
    collector = make_collector(tmp_path / "node-0")
    monkeypatch.setattr(device_threads, "WAIT_SECONDS", 0.1)
    assert rows_of(collector, instants) == []

    go_on.set()
    while collector.metrics()["nccl_folders_blocked"]:
        time.sleep(0.01)
    rows = rows_of(collector, instants, 1)
    assert {row["rank"] for row in rows} == set(range(8))


def test_a_job_of_several_communicators_gives_no_rows(tmp_path, make_collector, instants):
    """Rank 0 of one is not rank 0 of the other: their ranks in the job are unknown, which is counted."""
    for number in range(2):
        Writer(tmp_path, ranks=2, per_node=2, communicator=f"0x{number}").run(20)
        for path in sorted((tmp_path / "node-0").rglob("*-pid100?.log")):
            path.rename(path.with_name(f"group{number}-{path.name}"))

    collector = make_collector(tmp_path / "node-0")
    rows_of(collector, instants)
    Writer(tmp_path, ranks=2, per_node=2, communicator="0x0").run(20)

    assert rows_of(collector, instants, 1) == []
    assert unused(collector, "no_communicator_of_all") > 0


def group_of(writer, *, id_, ranks, nodes):
    """Yield what a writer has written as of another communicator: rank n is n modulo its size."""
    for path in (writer.folder / "node-0").rglob("*.log"):
        written = [json.loads(line) for line in path.read_text().splitlines()]
        for line in written:
            rank = line["header"]["rank"] % ranks
            line["header"] |= {"id": id_, "rank": rank, "n_ranks": ranks, "nnodes": nodes}
        yield path, [json.dumps(line) for line in written]


def test_a_tensor_parallel_group_on_each_node_is_not_the_job(tmp_path, make_collector, instants):
    """Groups of fewer ranks that join the nodes show that: rank 0 of the node is not rank 0 of the job."""
    writer = Writer(tmp_path, ranks=8)
    writer.run(60)
    joining = dict(group_of(writer, id_="0x2", ranks=2, nodes=2))
    for path, lines in joining.items():
        with path.open("a") as file:
            file.writelines(f"{line}\n" for line in lines)

    collector = make_collector(tmp_path / "node-0")

    assert rows_of(collector, instants) == []
    assert unused(collector, "no_communicator_of_all") > 0


def test_a_small_collective_of_all_ranks_numbers_them(tmp_path, make_collector, instants):
    """Steps are those of a group; one barrier at the start shows which rank of the job each process is."""
    writer = Writer(tmp_path, ranks=8, buckets=(50_000, 90_000))
    writer.run(60)
    for path, lines in group_of(writer, id_="0x2", ranks=2, nodes=1):
        barrier = json.loads(path.read_text().splitlines()[0])
        barrier["header"] |= {"id": "0x3", "rank": 31 - barrier["header"]["rank"], "n_ranks": 32, "nnodes": 4}
        barrier["coll_perf"] |= {"coll_msg_size_bytes": 4}
        path.write_text("".join(f"{line}\n" for line in [json.dumps(barrier), *lines]))

    (steps,) = make_collector(tmp_path / "node-0").collect(instants(0)).steps

    assert steps.world_size == 32
    assert {row["rank"] for row in steps.rows} == set(range(24, 32))


def test_a_restarted_job_goes_on_beside_the_files_of_its_first_attempt(tmp_path, make_collector, instants):
    """A launcher starts the processes anew in the same allocation, with new communicators."""
    writer = Writer(tmp_path, ranks=4)
    writer.run(60)
    collector = make_collector(tmp_path / "node-0")
    assert rows_of(collector, instants)

    for path in (tmp_path / "node-0").rglob("*.log"):
        path.rename(path.with_name(f"node-0-pid{path.name[-5]}.log"))
    rows_of(collector, instants, 1)
    again = Writer(tmp_path, ranks=4, communicator="0x99", buckets=(50_000,))
    again.at = writer.at + 20.0
    again.run(60)

    assert {row["rank"] for row in rows_of(collector, instants, 2)} == {0, 1, 2, 3}
    assert unused(collector, "no_communicator_of_all") == 0


def test_a_job_that_stands_still_remains_that_of_its_node(tmp_path, make_collector):
    """As long as a process has the file open; a pause is no end, and a hang of the node's job is one."""
    writer = Writer(tmp_path, ranks=1, per_node=1, pid=os.getpid())
    writer.run(60)
    exporter = Exporter(NodeIdentity("c", "node-0", "b"), [make_collector(tmp_path / "node-0")])

    def records(after):
        at = writer.at + after
        return exporter.tick(Instant(wall=at, monotonic=at - T0), SpoolStats(0, 0))

    with writer.path(0).open("a"):
        assert len(records(0)) == 2
        for after in range(10, 400, 10):
            (sample,) = records(after)
            assert sample.job_id == "4711"
    for after in range(400, 480, 10):
        (sample,) = records(after)
    assert sample.job_id is None


def test_files_of_other_hosts_in_a_shared_folder_are_left_out(
    tmp_path, make_collector, instants, monkeypatch
):
    """Else each node would send the steps of all, and findings name any of them."""
    writer = Writer(tmp_path)
    writer.run(60)
    shared = tmp_path / "shared" / "4711"
    shared.mkdir(parents=True)
    for path in tmp_path.rglob("*-pid*.log"):
        path.rename(shared / path.name)

    collector = make_collector(tmp_path / "shared", hosts=["node-1.example.org"])
    assert {row["rank"] for row in rows_of(collector, instants)} == set(range(8, 16))
    assert collector.metrics()["nccl_files_of_other_hosts"] == 8

    # A node without a part in the job; on a disk of its own the names are those of containers.
    stranger = make_collector(tmp_path / "shared", hosts=["node-7"])
    assert {row["rank"] for row in rows_of(stranger, instants)} == set(range(16))
    monkeypatch.setattr(log_files, "is_local", lambda folder: False)
    stranger = make_collector(tmp_path / "shared", hosts=["node-7"])
    assert rows_of(stranger, instants) == []


def test_lines_that_cannot_be_read_are_counted(tmp_path, make_collector, instants):
    """Those around them are used."""
    writer = Writer(tmp_path, ranks=1, per_node=1)
    writer.run(10)
    with writer.path(0).open("a") as file:
        file.write('{"header": 7}\nno JSON\n{"header":{"id":"x","rank":0,"n_ranks":1},"metadata":')
        file.write('{"dump_timestamp_us":1}}\n')
    writer.run(10)

    collector = make_collector(tmp_path / "node-0")

    assert len(rows_of(collector, instants)) >= 15
    assert unused(collector, "undecodable") == 3


def read(files):
    return {new.path.name: new.lines for new in files.read()}


def test_only_whole_new_lines_are_read(tmp_path):
    """A line that is being written waits for its end."""
    file, files = tmp_path / "a.log", LogFiles(tmp_path)
    file.write_bytes(b"one\ntw")

    assert read(files) == {"a.log": [b"one"]}
    assert read(files) == {}
    with file.open("ab") as opened:
        opened.write(b"o\n\nthree\n")
    assert read(files) == {"a.log": [b"two", b"three"]}


def test_of_a_file_that_is_there_already_the_end_is_read(tmp_path, monkeypatch):
    """One that appears later is read from its beginning, and so is one that was replaced."""
    monkeypatch.setattr(log_files, "TAIL_BYTES", 8)
    files = LogFiles(tmp_path)
    (tmp_path / "old.log").write_bytes(b"long ago\nlast\n")
    assert read(files) == {"old.log": [b"go", b"last"]}

    (tmp_path / "new.log").write_bytes(b"from the beginning\n")
    (tmp_path / "other.log").write_bytes(b"from the beginning too\n")
    (tmp_path / "other.log").replace(tmp_path / "old.log")

    assert read(files) == {"new.log": [b"from the beginning"], "old.log": [b"from the beginning too"]}


def test_a_file_that_cannot_be_read_hides_no_other(tmp_path, make_collector, instants):
    """Such as one of another user; it is counted."""
    writer = Writer(tmp_path, ranks=1, per_node=1)
    writer.run(20)
    (tmp_path / "node-0" / "a.log").mkdir()

    collector = make_collector(tmp_path / "node-0")

    assert len(rows_of(collector, instants)) >= 10
    assert unused(collector, "unreadable") == 1


def test_a_file_that_is_gone_is_forgotten(tmp_path):
    """Its name may come again."""
    files = LogFiles(tmp_path)
    (tmp_path / "a.log").write_bytes(b"x\n")
    assert read(files)
    (tmp_path / "a.log").unlink()

    assert read(files) == {}
    assert files.paths() == set()


def test_a_file_truncated_under_its_writer_is_read_on(tmp_path):
    """The writer goes on where it was, so that the file begins with a hole, which no one waits for."""
    file, files = tmp_path / "a.log", LogFiles(tmp_path)
    with file.open("wb", buffering=0) as writer:
        writer.write(b"one\n" * 10**6)
        assert len(read(files)["a.log"]) == 2**18
        file.write_bytes(b"")
        assert read(files) == {}
        writer.write(b"two\nthr")
        assert read(files) == {"a.log": [b"two"]}
        writer.write(b"ee\n")
    assert read(files) == {"a.log": [b"three"]}


def test_the_beginning_of_a_long_file_shows_its_communicators(tmp_path, monkeypatch):
    """An exporter that starts later reads the end, and of the beginning whole lines."""
    monkeypatch.setattr(log_files, "TAIL_BYTES", 8)
    monkeypatch.setattr(log_files, "HEAD_BYTES", 12)
    (tmp_path / "a.log").write_bytes(b"first\nsecond\nlong ago\nlast\n")

    (new,) = LogFiles(tmp_path).read()

    assert (new.beginning, new.lines) == ([b"first"], [b"go", b"last"])


def test_the_file_system_of_a_folder_is_known():
    """That of the deepest mount above it."""
    assert file_system(Path("/proc/self")) == "proc"


def test_of_too_many_files_those_written_last_are_read(tmp_path, monkeypatch):
    """Job 100000 follows 99999, and not by name."""
    monkeypatch.setattr(log_files, "MAX_FILES", 2)
    for age, job in enumerate(["100001", "100000", "99999", "99998"]):
        (tmp_path / job).mkdir()
        path = tmp_path / job / "node-0-pid7.log"
        path.write_bytes(job.encode() + b"\n")
        os.utime(path, (T0 - age, T0 - age))

    assert [new.lines for new in LogFiles(tmp_path).read()] == [[b"100000"], [b"100001"]]
