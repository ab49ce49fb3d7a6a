"""`slowrank gray`, and its model in `slowrank backtest`."""

import json
from importlib.util import find_spec

import msgspec
import pytest
import typer
from typer.testing import CliRunner

from cli.files.gray import gray, load_region
from cli.files.replay import backtest, replay
from cli.files.simulate import simulate
from detectors.node.gray_envelope import Envelope
from simulator import Cluster, ClusterSpec, JobSpec
from slowrank.telemetry.rows import json_rows
from streams.cluster.stage import FindingStage

# Not importorskip: importing it takes a second of every process that collects the tests.
pytestmark = pytest.mark.skipif(find_spec("sklearn") is None, reason="scikit-learn is not installed")


def command(function):
    app = typer.Typer()
    app.command()(function)
    return lambda *arguments: CliRunner().invoke(app, [str(a) for a in arguments])


@pytest.fixture
def recorded(tmp_path):
    """Telemetry of ten healthy nodes, a tick every twenty seconds for forty minutes."""
    out = tmp_path / "healthy.ndjson"
    spec = ClusterSpec(nodes=10, gpus=2, nics=2, send_seconds=20.0, jobs=(JobSpec(dp=10, tp=2),))
    rows = (row for record in Cluster(spec, seed=1).run(2400.0) for row in json_rows.rows(record))
    out.write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
    return out


@pytest.fixture
def recorded_region(monkeypatch):
    """A region as if learnt, without the forty minutes it takes."""
    region = Envelope(("host.load1",), (0.0,), ((1.0,),), 9.0)
    monkeypatch.setattr("streams.config.gray_training.fit", lambda records: region)


@pytest.mark.slow
def test_a_model_is_learnt_from_files_and_read_back(recorded, tmp_path):
    """The file holds the region: which features, and how far out is too far."""
    model = tmp_path / "gray.json"
    result = command(gray)(recorded, "-o", model)
    assert result.exit_code == 0, result.output
    region = load_region(model)
    assert len(region.features) >= 5
    assert region.threshold > 0


def test_too_little_reports_how_much_is_needed(tmp_path):
    """In minutes and nodes, as one records."""
    few = tmp_path / "few.ndjson"
    spec = ClusterSpec(nodes=2, gpus=1, nics=1, jobs=(JobSpec(dp=2),))
    rows = (row for record in Cluster(spec, seed=1).run(5.0) for row in json_rows.rows(record))
    few.write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
    result = command(gray)(few, "-o", tmp_path / "gray.json")
    assert result.exit_code == 2
    assert "too few" in result.output
    assert "8 nodes" in result.output
    assert "minutes" in result.output


@pytest.mark.usefixtures("recorded_region")
@pytest.mark.parametrize(
    ("output", "why"), [("healthy.ndjson", "is an input file"), ("no/gray.json", "its folder does not exist")]
)
def test_the_model_takes_the_place_of_nothing_that_is_read(tmp_path, output, why):
    """A recording is not made again."""
    out = tmp_path / "healthy.ndjson"
    out.write_text("recorded\n")
    result = command(gray)(out, "-o", tmp_path / output)
    assert (result.exit_code, why in result.stderr) == (2, True)
    assert out.read_text() == "recorded\n"


def test_too_short_a_recording_is_refused(tmp_path):
    """A minute of two nodes teaches nothing, and no model is written."""
    out, model = tmp_path / "short.ndjson", tmp_path / "gray.json"
    command(simulate)("--nodes", 2, "--gpus", 2, "--seconds", 60, "-o", out)
    result = command(gray)(out, "-o", model)
    assert result.exit_code == 2
    assert "too few" in result.output
    assert not model.exists()


def model_text(**changes):
    model = {
        "features": ["gpu.power_watts", "host.load1"],
        "center": [0.0, 0.1],
        "precision": [[1.0, 0.1], [0.1, 2.0]],
        "threshold": 9.0,
    }
    return json.dumps(model | changes)


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "no json",
        '{"features": 3}',
        "\udcff",
        "[" * 100_000,
        model_text(features=[], center=[], precision=[]),
        model_text(features=["host.load1", "host.load1"]),
        model_text(features=["host.load1", "moon.phase"]),
        model_text(center=[0.0]),
        model_text(precision=[[1.0, 0.1]]),
        model_text(precision=[[1.0], [0.1, 2.0]]),
        model_text(precision=[[1.0, 5.0], [0.1, 2.0]]),
        model_text(precision=[[1.0, 0.0], [0.0, -2.0]]),
        model_text(precision=[[1e300, 0.0], [0.0, 1e300]]),
        model_text(threshold=0),
        model_text(threshold=float("nan")),
    ],
)
def test_what_is_no_model_is_refused(tmp_path, text):
    """Another file, or one in which the parts do not fit, ends the command with its name."""
    other = tmp_path / "other.json"
    other.write_text(text, errors="surrogateescape")
    with pytest.raises(typer.Exit):
        load_region(other)


def test_what_is_a_model_is_read(tmp_path):
    """The text from which the broken ones above differ is a model."""
    (tmp_path / "model.json").write_text(model_text())
    assert load_region(tmp_path / "model.json").threshold == 9.0


@pytest.mark.usefixtures("recorded_region")
def test_a_model_that_cannot_be_written_ends_the_command(tmp_path):
    """An output that is a folder is reported, without a traceback."""
    out = tmp_path / "short.ndjson"
    command(simulate)("--nodes", 2, "--gpus", 2, "--seconds", 2, "-o", out)
    result = command(gray)(out, "-o", tmp_path)
    assert result.exit_code == 2
    assert "is a folder, or its folder does not exist" in result.output


def test_a_model_comes_from_the_tables_or_from_the_flag(tmp_path, monkeypatch):
    """A backtest compares nodes with the model of slowrank.toml, or with the one that is given."""
    monkeypatch.chdir(tmp_path)
    seen = []

    def noted(tuning):
        seen.append(tuning.configs("c").gray.threshold)
        return FindingStage()

    monkeypatch.setattr("streams.pipeline.finding_stage", noted)
    command(simulate)("--nodes", 2, "--gpus", 2, "--seconds", 2, "-o", "short.ndjson")
    tables, given = tmp_path / "slowrank.toml", tmp_path / "given.json"
    (tmp_path / "gray.json").write_text(model_text())
    given.write_text(model_text(threshold=5.0))
    tables.write_text("[detectors.gray]\nmodel = 'gray.json'")
    for flags in ([], ["--gray-model", given]):
        assert command(backtest)("short.ndjson", "-o", "out.ndjson", *flags).exit_code == 0
    assert seen == [9.0, 5.0]


@pytest.mark.parametrize("text", [None, "{}", model_text(features=["host.load1", "moon.phase"])])
def test_a_table_with_what_is_no_model_ends_every_command(tmp_path, monkeypatch, text):
    """At the start, with the table and the file."""
    monkeypatch.chdir(tmp_path)
    if text is not None:
        (tmp_path / "gray.json").write_text(text)
    (tmp_path / "slowrank.toml").write_text("[detectors.gray]\nmodel = 'gray.json'")
    result = command(replay)("any.ndjson")
    assert result.exit_code == 2
    assert "slowrank.toml: [detectors.gray] model: gray.json" in result.output
