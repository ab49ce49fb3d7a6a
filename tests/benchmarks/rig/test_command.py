import pytest

from benchmarks.rig.cluster import Cluster
from benchmarks.rig.command import NotTraining, _options, _steps_until, _warm_up, check_torch
from benchmarks.rig.installation import Installation
from benchmarks.rig.network import Node


@pytest.fixture
def interpreter(tmp_path):
    """An executable that stands for a Python: a shell script."""

    def made(script):
        path = tmp_path / "python"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return str(path)

    return made


def test_an_interpreter_with_pytorch_is_taken(interpreter):
    """It is asked to import what the ranks import."""
    check_torch(interpreter('test "$2" = "import torch.distributed"'))


@pytest.mark.parametrize(
    ("script", "error"),
    [
        (
            "echo Traceback >&2; echo 'No module named torch' >&2; exit 1",
            r"has no PyTorch \(No module named torch\)",
        ),
        ("exit 3", r"has no PyTorch \(status 3\)"),
    ],
)
def test_an_interpreter_without_pytorch_is_refused(interpreter, script, error):
    """With what it said last."""
    with pytest.raises(NotTraining, match=error):
        check_torch(interpreter(script))


def test_an_interpreter_that_does_not_exist_is_refused():
    """By its name."""
    with pytest.raises(NotTraining, match="--torch /nonexistent/python is no interpreter that starts"):
        check_torch("/nonexistent/python")


@pytest.mark.parametrize("arguments", ["--runs 0", "--clusters 0"])
def test_no_runs_at_all_are_refused(arguments, capsys):
    """Nothing would be measured."""
    with pytest.raises(SystemExit, match="2"):
        _options(arguments.split())

    assert "0 is less than 1" in capsys.readouterr().err


def test_a_job_that_does_not_start_says_why(tmp_path):
    """At once, with the last line of the rank that ended first, as the log goes with the rig."""
    installation = Installation("", "", tmp_path)
    cluster = Cluster("rig", [Node("n0", 0)], installation, device=0.1)
    for rank, script in enumerate(
        ("sleep 60", "echo trying; echo RuntimeError: no route; echo 'frame #1: main'; echo; exit 1")
    ):
        cluster.ranks.append(installation.spawn(["sh", "-c", script], f"job-rank{rank}.log"))

    with pytest.raises(NotTraining, match=r"job job ended: rank 1; .*job-rank1\.log: RuntimeError: no route"):
        _warm_up(cluster, "job")

    cluster.ranks[0].stop()


@pytest.mark.parametrize(("seconds", "steps"), [(None, None), (0.0, 0), (0.6, 3), (1.0, 3), (9.0, 5)])
def test_steps_are_counted_until_the_finding_and_never_too_few(seconds, steps):
    """By the first look after it, the last one where it is later."""
    looks = [(100.0, 70), (100.5, 71), (101.0, 73), (101.5, 75)]
    assert _steps_until(100.0, seconds, looks) == steps
