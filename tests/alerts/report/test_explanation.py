"""A finding in sentences: its numbers as they are, and nothing claimed that it does not hold."""

import json
from pathlib import Path

import pytest

from alerts.report.explanation import cause_share, explanation, text_of

GOLDEN = Path(__file__).parents[2] / "golden" / "expected"
BARE = {
    "kind": "straggler.fail_slow",
    "severity": "error",
    "status": "open",
    "confidence": 0.97,
    "score": 3.4,
    "subject": {"type": "gpu", "cluster": "c", "node": "n0", "gpu_index": 5, "rank": 5},
    "onset_interval": ["2026-11-20T07:32:31Z", "2026-11-20T07:32:52Z"],
}
PEERS = {"group": "all ranks", "n": 127, "p05": 2.191, "median": 2.217, "p95": 2.249, "rank_of_subject": 128}
TIMING = {
    "metric": "compute_seconds",
    "unit": "s",
    "detector": "peer_step",
    "value": 2.904,
    "baseline": {"median": 2.2, "mad": 0.01, "n": 70},
    "peers": PEERS,
}


def lines(**fields):
    return [line for section in explanation(BARE | fields) for line in section.lines]


def said(part, **fields):
    return [line for line in lines(**fields) if part in line]


def test_measurements_are_quoted():
    """Value, peers, place among them and own past, with units."""
    (line,) = said("compute_seconds", evidence=[TIMING])
    for part in (
        "2.904 s",
        "127 peers",
        "2.191 s to 2.249 s",
        "number 128 of 128",
        "2.2 s ± 14.8 ms",
        "47.5 dev",
    ):
        assert part in line, part


def test_the_pace_of_a_job_without_steps_is_past():
    """As on the page and in the terminal."""
    shown = said("Its job", job_slowdown_ratio=2.0, no_steps_since="2026-11-20T08:00:10Z")
    assert shown == [
        "Its job ran 2.00 times as long a step as when it was healthy.",
        "Its job has made no steps since 2026-11-20T08:00:10Z.",
    ]


def test_a_constant_past_has_no_deviations():
    """No division by a spread of zero."""
    (line,) = said("usual", evidence=[TIMING | {"baseline": {"median": 2.2, "mad": 0.0, "n": 9}}])
    assert line.count("deviations") == 0


def test_other_explanations_are_weighed():
    """What was checked, what else it may be, and what would make that the cause."""
    cause = {"hypothesis": "throttle.thermal", "confidence": 0.9, "alternatives": {"clock.low": 0.08}}
    shown = lines(cause=cause | {"ruled_out": ["network"]})
    assert "Checked and found fine: network." in shown
    assert any(line.startswith("It may also be SM clock below") and "8%" in line for line in shown)
    assert any(line.startswith("More evidence for SM clock below") for line in shown)
    assert not said("No other explanation", cause=cause)


def test_missing_telemetry_is_named():
    """Few peers and no counter of the machine limit it; with hardware evidence neither is claimed."""
    few = TIMING | {"peers": PEERS | {"n": 1}}
    assert said("peers or more", evidence=[few])
    assert said("would name the cause", evidence=[few])
    clock = {"metric": "gpu.clock.sm_hz", "unit": "Hz", "detector": "bocpd", "value": 1.095e9}
    assert not said("peers or more", evidence=[few, clock])
    assert not said("would name the cause", evidence=[few, clock])


def test_what_ended_does_not_end():
    """Only a live finding is told how it ends."""
    assert said("It ends when")
    assert not said("It ends when", status="resolved")


def test_a_section_without_answers_is_left_out():
    """A finding with next to nothing has no empty heading."""
    sections = explanation(BARE | {"status": "resolved", "job_slowdown_ratio": 1.2})
    assert [section.title for section in sections] == ["Why n0 GPU 5 (rank 5)", "How sure it is"]
    assert text_of(sections).startswith("Why n0 GPU 5 (rank 5)\n  - Its job runs 1.20 times")


@pytest.mark.parametrize("file", sorted(GOLDEN.glob("*.ndjson")), ids=lambda path: path.stem)
def test_every_kind_of_finding_is_explained(file):
    """Each finding of the simulated clusters has its reasons and its certainty, in short sentences."""
    for text in file.read_text().splitlines():
        sections = explanation(json.loads(text))
        assert len(sections) >= 3
        assert all(line.endswith((".", "].")) and len(line) < 1000 for s in sections for line in s.lines)


def test_places_begin_with_a_small_letter_in_sentences():
    """In the heading as after a colon; names keep their letters."""
    unnamed = {"type": "node", "cluster": "c", "ranks": "8-15", "job_id": "j"}
    suspect = {"subject": {"type": "rank", "cluster": "c", "rank": 3, "job_id": "j"}, "probability": 0.5}
    sections = explanation(BARE | {"subject": unnamed, "suspects": [suspect]})
    assert sections[0].title == "Why not something else"
    assert "Suspect: rank 3 of job j (50%)." in sections[0].lines
    (first, *_) = explanation(BARE | {"subject": unnamed, "evidence": [TIMING]})
    assert first.title == "Why the likely machine of ranks 8-15 of job j"


@pytest.mark.parametrize(
    ("hypothesis", "confidence", "expected"),
    [
        ("straggler.fail_slow", 1.0, None),
        ("straggler.fail_slow", 0.73, 0.73),
        ("straggler.intermittent", 1.0, None),
        ("host.cpu_contention", None, None),
        ("throttle.thermal", 1.0, 1.0),
        ("host.cpu_contention", 1.0, 1.0),
        ("xid.79", 1.0, 1.0),
    ],
)
def test_a_symptom_alone_has_no_share(hypothesis, confidence, expected):
    """Nothing that could explain it was seen, perhaps because nothing was sent."""
    assert cause_share({"hypothesis": hypothesis, "confidence": confidence}) == expected
