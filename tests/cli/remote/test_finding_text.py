"""A finding as text: what a person reads first, in any width, without what a terminal would obey."""

from typing import Any

import pytest

from cli.admin.colour import by_severity
from cli.remote.finding_text import lines

FINDING = {
    "id": "fnd_01",
    "severity": "critical",
    "status": "open",
    "title": "gpu-0423 GPU 5 (rank 93) is 1.31x slower than 127 peers",
    "onset": "2026-11-20T07:32:40Z",
    "onset_interval": ["2026-11-20T07:32:31Z", "2026-11-20T07:32:52Z"],
    "gpu_hours_lost": 137.9,
    "gpu_hours_lost_per_hour": 969.3,
    "job_slowdown_ratio": 1.31,
    "subject": {"type": "gpu", "node": "gpu-0423", "gpu_index": 5, "coords": {"tp": 5}},
    "cause": {
        "hypothesis": "throttle.thermal",
        "confidence": 0.93,
        "alternatives": {"x": 0.06},
        "ruled_out": ["network"],
    },
    "evidence": [
        {"metric": "compute_seconds", "unit": "s", "value": 2.904, "peers": {"n": 127, "median": 2.217}},
        {"metric": "gpu.clock.sm_hz", "unit": "Hz", "value": 1.095e9, "baseline": {"median": 1.755e9}},
    ],
    "action": {
        "text": "Drain gpu-0423 and restart from the last checkpoint on a spare.",
        "commands": [
            "scontrol update nodename=gpu-0423 state=drain reason='slowrank fnd_01 throttle.thermal'"
        ],
        "runbook_url": "http://127.0.0.1:8080/runbooks/straggler.fail_slow",
    },
    "history": [{"at": "2026-11-20T07:34:02Z", "event": "finding.opened", "actor": "detectors", "note": ""}],
}
EVIDENCE = {
    "t": [1000 * s for s in range(0, 60, 10)],
    "bucket_ms": 10_000,
    "onset": 35_000,
    "from": 0,
    "to": 60_000,
    "plots": [
        {
            "metric": "compute_seconds",
            "unit": "s",
            "y": [1.0, 1.0, None, 2.0, 3.0, 3.0],
            "p05": [1.0] * 6,
            "p95": [1.0] * 6,
            "median": [1.0] * 6,
        },
        {"metric": "nothing", "unit": "s", "y": [None] * 6},
    ],
}


@pytest.fixture(autouse=True)
def _no_colour(monkeypatch):
    """The text alone."""
    monkeypatch.setenv("NO_COLOR", "1")


def shown(drawn=EVIDENCE, width=90, **changes):
    """The lines of the finding with changed fields."""
    return list(lines(FINDING | changes, drawn, width))


def test_an_onset_within_one_second_is_a_time():
    """And no interval between a second and itself."""
    onset = [f"2026-11-20T07:32:40.{fraction}Z" for fraction in (123, 456)]
    assert any(line.endswith("; onset at 07:32:40") for line in shown(onset_interval=onset))


def test_it_reads_from_title_to_proof():
    """Title, since, cost, cause, what was ruled out, evidence, what to do, plots, history."""
    text = "\n".join(shown())
    parts = [
        "CRITICAL  open  fnd_01",
        "1.31x slower",
        "since     2026-11-20T07:32:40Z",
        "onset between 07:32:31 and 07:32:52",
        "138 GPU-hours lost, 969 more every hour",
        "76.3 % of its speed",
        "thermal throttling 93%; else x 6%",
        "not       network",
        "node gpu-0423",
        "2.904 s (median of 127 peers 2.217 s)",
        "gpu.clock.sm_hz 1.09 GHz (before 1.75 GHz)",
        "do        Drain gpu-0423",
        "          $ scontrol",
        "runbook   http",
        "compute_seconds: 1 s to 3 s, 00:00:00 to 00:01:00",
        "▁▁ ▅██",
        "^ onset",
        "07:34:02Z  opened by detectors",
    ]
    places = [text.find(part) for part in parts]
    assert -1 not in places
    assert places == sorted(places)


def test_the_onset_stands_below_its_point():
    """The mark is below the point that the onset lies in."""
    text = shown()
    [subject] = [line for line in text if line.startswith("subject")]
    [mark] = [line for line in text if "^ onset" in line]
    assert subject[mark.index("^")] == "▅"


def test_texts_are_wrapped_and_commands_are_not():
    """No line is wider than asked, but for what is copied or opened."""
    narrow = shown(width=60)
    long = [line for line in narrow if len(line) > 60]
    assert all("$ scontrol" in line or "http" in line for line in long)
    assert any("$ scontrol" in line for line in long)


def test_a_finding_without_anything_more():
    """Fields that may be absent, and evidence of something without telemetry."""
    absent: dict[str, Any] = {
        "cause": None,
        "evidence": [],
        "history": [],
        "gpu_hours_lost": None,
        "job_slowdown_ratio": None,
    }
    text = "\n".join(
        shown({"plots": []}, **absent, resolved_at="2026-11-20T08:00:00Z", action={"text": "Watch it."})
    )
    assert "no loss measured" in text
    assert "until 2026-11-20T08:00:00Z" in text
    assert "onset\n" not in text


def test_what_is_said_of_a_job_that_has_stopped_is_past():
    """Not how fast it runs, but how fast it ran and since when it makes no steps."""
    text = " ".join(line.strip() for line in shown(no_steps_since="2026-11-20T08:00:10Z"))
    assert "the job ran at 76.3 % of its speed; the job has made no steps since 2026-11-20T08:00:10Z" in text
    assert "the job runs" not in text


def test_hostile_text_does_not_reach_the_terminal():
    """Control characters of telemetry are replaced."""
    text = "\n".join(shown(title="\x1b]0;x\x07", subject={"node": "n\x1b[31m"}))
    assert "\x1b" not in text
    assert "\x07" not in text


def test_colours_are_those_of_the_severity(monkeypatch):
    """None under NO_COLOR."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert by_severity("x", "critical") == "\x1b[31m\x1b[1mx\x1b[0m"
    assert by_severity("x", "unheard of") == "x"
    monkeypatch.setenv("NO_COLOR", "1")
    assert by_severity("x", "critical") == "x"
