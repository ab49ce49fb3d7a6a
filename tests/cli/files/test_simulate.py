import json
import time
import uuid

import pytest
from kafka import KafkaConsumer
from kafka.admin import KafkaAdminClient, NewTopic
from typer.testing import CliRunner

from cli.files.simulate import simulate
from slowrank.telemetry import NodeSample, decode_sample, decode_steps
from slowrank.telemetry.rows.json_rows import Assembler
from slowrank.telemetry.topics import JOB_STEPS, NODE_SAMPLES, topic_name
from streams.files.record_builder import read_records


@pytest.fixture
def run():
    import typer

    app = typer.Typer()
    app.command()(simulate)
    return lambda *arguments: CliRunner().invoke(app, list(arguments))


def test_the_file_reads_back_as_records_and_the_truth_stands_beside_it(run, tmp_path):
    """-o writes the JSON rows of every record, --truth one line per fault."""
    out, truth = tmp_path / "records.ndjson", tmp_path / "truth.ndjson"
    fault = "clock_lock:node=1,gpu=1,onset=3,magnitude=1.2"
    size = ("--nodes", "2", "--gpus", "2", "--seconds", "6")
    result = run(*size, "--fault", fault, "-o", str(out), "--truth", str(truth))
    assert result.exit_code == 0, result.output
    assembler = Assembler()
    records = [r for line in out.read_text().splitlines() for r in assembler.add(json.loads(line))]
    records += assembler.flush()
    assert sum(isinstance(r, NodeSample) for r in records) == 12
    assert json.loads(truth.read_text())["ranks"] == [3]


@pytest.mark.parametrize("name", ["rows.csv", "rows.parquet", "rows.CSV.gz", "rows.ndjson.zst"])
def test_a_name_of_another_format_is_refused(name, run, tmp_path):
    """By its name a reader would take the file for what it is not."""
    result = run("-o", str(tmp_path / name), "--seconds", "2", "--nodes", "1")
    assert result.exit_code == 2
    assert "rows are written as NDJSON" in result.output
    assert not (tmp_path / name).exists()


def test_a_name_that_ends_in_gz_is_packed(run, tmp_path):
    """It holds what the plain file does, and is read as it is."""
    size = ("--nodes", "2", "--gpus", "2", "--seconds", "3", "--seed", "5")
    plain, packed = tmp_path / "rows.ndjson", tmp_path / "rows.ndjson.gz"
    for path in (plain, packed):
        assert run(*size, "-o", str(path)).exit_code == 0
    assert packed.read_bytes()[:2] == b"\x1f\x8b"
    kinds = [[type(r) for r in read_records([path]).records] for path in (plain, packed)]
    assert kinds[0] == kinds[1]
    assert kinds[0].count(NodeSample) == 6


@pytest.mark.parametrize(
    ("option", "text"),
    [
        (("--nodes", "100000000"), "more than the 2000000 GPUs"),
        (("--fault", "silent_slow:node=1,onset=nan"), "onset=nan"),
        (("--fault", "silent_slow:node=99,onset=5"), "there is no node 99"),
        (("--fault", "gremlin:node=1,onset=5"), "there are: app_crash"),
        (("--fault", "silent_slow:node=1,onset=300"), "onset=300 is not within --seconds 300"),
    ],
)
def test_what_cannot_be_simulated_is_refused_with_its_reason(run, option, text):
    """An impossible size or fault ends with a message, not with a traceback, and writes nothing."""
    result = run(*option, "-o", "never-written.ndjson")
    assert result.exit_code == 2
    assert text in result.output


def test_the_list_names_every_fault(run):
    """``--fault list`` prints one line for each kind."""
    from simulator.faults.catalogue import CATALOGUE

    lines = run("--fault", "list").output.splitlines()
    assert [line.split()[0] for line in lines] == list(CATALOGUE)


@pytest.mark.parametrize("speed", ["max", "100x"])
def test_nothing_is_sent_from_the_future(run, tmp_path, speed):
    """The records end about now however fast they are sent: the codec refuses what is ahead of the clock."""
    out = tmp_path / "records.ndjson"
    run("--nodes", "1", "--gpus", "1", "--seconds", "30", "--speed", speed, "-o", str(out))
    last = max(json.loads(line)["ts"] for line in out.read_text().splitlines())
    assert -5 < last - time.time() < 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "--kafka"),
        (("-o", "-", "--kafka", "127.0.0.1:1"), "give one output"),
        (("-o", "-", "--fault", "gremlin:node=1,onset=2"), "thermal_throttle"),
        (("-o", "-", "--fault", "clock_lock:node=99,onset=2"), "no node 99"),
        (("-o", "-", "--speed", "fast"), "60x"),
        (("-o", "/nowhere/x", "--seconds", "1"), "cannot be written"),
    ],
)
def test_a_wrong_call_names_the_next_step(run, arguments, told):
    """What cannot be done ends with code 2 and a message that names the way out."""
    result = run("--seconds", "2", *arguments)
    assert result.exit_code == 2
    assert told in result.output


@pytest.mark.integration
def test_kafka_takes_what_a_file_would_hold(run, kafka_bootstrap, monkeypatch):
    """--kafka sends every record to its topic, each readable by the codec."""
    prefix = f"simulate-{uuid.uuid4().hex[:8]}-"
    names = [topic_name(name, prefix) for name in (NODE_SAMPLES, JOB_STEPS)]
    monkeypatch.setenv("SLOWRANK_TOPIC_PREFIX", prefix)
    admin = KafkaAdminClient(bootstrap_servers=kafka_bootstrap)
    try:
        admin.create_topics([NewTopic(name, 1, 1) for name in names])
        result = run("--nodes", "2", "--gpus", "2", "--seconds", "6", "--kafka", kafka_bootstrap)
        assert result.exit_code == 0, result.output
        consumer = KafkaConsumer(
            *names, bootstrap_servers=kafka_bootstrap, auto_offset_reset="earliest", consumer_timeout_ms=5000
        )
        found = [(message.topic, message.value) for message in consumer]
        consumer.close()
        samples = [decode_sample(value) for topic, value in found if topic == names[0]]
        steps = [decode_steps(value) for topic, value in found if topic == names[1]]
        assert len(samples) == 12
        assert f"{len(samples) + len(steps)} records" in result.output
    finally:
        admin.delete_topics(names)
        admin.close()


def test_the_faults_are_listed(run):
    """--fault list names every fault with the findings that would be right about it."""
    result = run("--fault", "list")
    assert result.exit_code == 0
    assert "thermal_throttle" in result.output
    assert "link.nic_flap" in result.output


def test_records_and_truth_are_two_files(run, tmp_path):
    """One name for both is refused before either is written."""
    file = tmp_path / "one.ndjson"
    result = run("--seconds", "5", "-o", str(file), "--truth", f"{tmp_path}/./one.ndjson")
    assert result.exit_code == 2
    assert "--truth and -o" in result.stderr
    assert not file.exists()
