import json

import pytest

from benchmarks.rig.gpu import command, job
from benchmarks.rig.gpu.command import Report, _options, described
from benchmarks.rig.gpu.job import NoGpu

HEALTHY = {"pages": 0, "accusing": 0}


def passes(**parts):
    return Report(
        None, {"healthy": HEALTHY, "straggler": {"found": True}, "stopped": {"found": True}} | parts
    )


def test_a_part_that_fails_is_reported_and_others_run(tmp_path):
    """Each is in the file at once: a lent machine may go back before the end."""

    def fails():
        raise KeyError("nothing")

    report = Report(tmp_path / "gpu.json")
    assert not report.run("up", fails)
    assert report.run("idle", lambda: {"reads": 9})
    saved = json.loads((tmp_path / "gpu.json").read_text())
    assert saved == {"parts": {"idle": {"reads": 9}}, "errors": {"up": "KeyError: 'nothing'"}}
    assert not report.passed


def test_both_faults_found_and_nobody_accused_passes():
    assert passes().passed


@pytest.mark.parametrize(
    "parts",
    [
        {"healthy": HEALTHY | {"pages": 1}},
        {"healthy": HEALTHY | {"accusing": 1}},
        {"healthy": {}},
        {"straggler": {"found": False}},
        {"stopped": {}},
    ],
)
def test_a_fault_that_was_missed_or_a_healthy_job_accused_does_not(parts):
    """Nor does what was not measured."""
    assert not passes(**parts).passed


def test_without_a_gpu_the_status_is_2(monkeypatch, capsys):
    """With the reason."""

    def check(python, *, cpu):
        raise NoGpu("no GPU here")

    monkeypatch.setattr(job, "check", check)
    monkeypatch.setattr(command, "exit_on_signals", lambda: None)
    assert command.main(["--json", ""]) == 2
    assert "gpu rig: no GPU here" in capsys.readouterr().err


def test_one_rank_is_refused(capsys):
    """It has no peers."""
    with pytest.raises(SystemExit, match="2"):
        _options(["--ranks", "1"])
    assert "a rank is slow only beside others" in capsys.readouterr().err


def test_a_finding_is_described_without_the_board_it_is_about():
    """Serial numbers and UUIDs are in its subject."""
    doc = {"kind": "hang.job", "severity": "error", "status": "open", "slowdown_ratio": None}
    subject = {"rank": 3, "gpu_uuid": "GPU-3f1c"}
    assert described(doc | {"subject": subject}) == {
        "label": "hang.job rank 3",
        "kind": "hang.job",
        "severity": "error",
        "status": "open",
    }
