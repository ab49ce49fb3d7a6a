import json

import pytest
from typer.testing import CliRunner

from slowrank.cli.simulate import simulate
from slowrank.telemetry import NodeSample
from slowrank.telemetry.twin import Assembler


@pytest.fixture
def run():
    import typer

    app = typer.Typer()
    app.command()(simulate)
    return lambda *arguments: CliRunner().invoke(app, list(arguments))


def test_the_file_reads_back_as_records_and_the_truth_stands_beside_it(run, tmp_path):
    """-o writes the JSON twin of every record, --truth one line per fault."""
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


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "--kafka"),
        (("-o", "-", "--kafka", "127.0.0.1:1"), "one of them"),
        (("-o", "-", "--fault", "gremlin:node=1,onset=2"), "thermal_throttle"),
        (("-o", "-", "--fault", "clock_lock:node=99,onset=2"), "no node 99"),
        (("-o", "-", "--speed", "fast"), "60x"),
        (("-o", "/nowhere/x", "--seconds", "1"), "cannot be written"),
    ],
)
def test_a_wrong_call_says_what_to_do(run, arguments, told):
    """What cannot be done ends with code 2 and a message that names the way out."""
    result = run("--seconds", "2", *arguments)
    assert result.exit_code == 2
    assert told in result.output


def test_the_faults_are_listed(run):
    """--fault list names every fault with the findings that would be right about it."""
    result = run("--fault", "list")
    assert result.exit_code == 0
    assert "thermal_throttle" in result.output
    assert "link.nic_flap" in result.output
