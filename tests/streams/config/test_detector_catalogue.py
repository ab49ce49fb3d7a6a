"""The names people tune by, against what the stages really say."""

import ast
from pathlib import Path

import pytest

import streams
from slowrank.telemetry import Subject, Suspicion
from streams.config.detector_catalogue import DETECTORS, NAMES, detector_of
from streams.job.suspicions import PROGRESS

FOLDER = Path(streams.__file__).parent
OWN = {"sink", "watermark", "job_memory"}
"""What speaks of the pipeline itself, which nobody may silence."""


def said_by(path):
    """Detector, up to its first formatted part, and kind of the claims and suspicions made in a module."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and called(node) in ("Claim", "Suspicion", "claim"):
            given = {keyword.arg: texts(keyword.value) for keyword in node.keywords}
            kind = given.get("kind", [None])[0] or "kind"
            for detector in given.get("detector", ()):
                if detector not in (None, *OWN):
                    yield path.name, detector, kind


def called(call):
    return getattr(call.func, "id", None) or getattr(call.func, "attr", None)


def texts(value):
    """What an expression may read, up to its first formatted part; None where that is not written down."""
    if isinstance(value, ast.IfExp):
        return [*texts(value.body), *texts(value.orelse)]
    if isinstance(value, ast.JoinedStr):
        value = value.values[0]
    return [value.value if isinstance(value, ast.Constant) else None]


ALL = sorted({told for path in FOLDER.rglob("*.py") for told in said_by(path)})


def suspicion(detector, kind="kind", **fields):
    return Suspicion(
        cluster="c", detector=detector, family="job", kind=kind, state="raise",
        subject=Subject(type="job", cluster="c"), ts=1.0, onset=0.0, onset_lo=0.0, onset_hi=0.0, score=1.0,
        log_likelihood_ratio=1.0, **fields,
    )  # fmt: skip


def test_the_suite_knows_the_detectors_of_both_stages():
    """Else the next test would prove nothing."""
    expected = {"presence.gpu", "counter.", "event.", "silence.", "port.wait", "port.wait_on"}
    assert expected <= {name for _, name, _ in ALL}


@pytest.mark.parametrize(("module", "name", "kind"), ALL)
def test_every_detector_in_the_code_has_an_entry(module, name, kind):
    """What a stage says can be switched by a name of the table."""
    assert detector_of(suspicion(name, kind)) in NAMES


def test_what_the_progress_of_a_job_says_goes_by_its_kind():
    """A job without progress and a rank without steps are switched apart."""
    assert detector_of(suspicion(PROGRESS, "hang.job")) == "hang"
    assert detector_of(suspicion(PROGRESS, "hang.rank_missing")) == "rank_missing"


def test_what_peers_say_is_told_apart():
    """A slow rank, slow loading, a slow stage, uneven work, waits and slow transfers are switched apart."""
    cases = [
        ("straggler.fail_slow", {}, "peer_step"),
        ("straggler.intermittent", {}, "peer_step"),
        ("data.loader_slow", {}, "data_loading"),
        ("straggler.job_wide", {"imbalance.stage": 5.0}, "stage"),
        ("straggler.job_wide", {"imbalance.workload": 5.0}, "workload"),
        ("straggler.job_wide", {"data": 5.0}, "shared_wait"),
        ("straggler.job_wide", {"unmeasured": 5.0}, "shared_wait"),
        ("straggler.job_wide", {"congestion": 5.0, "link.nic_slow": 4.0}, "congestion"),
        ("straggler.job_wide", {"unheard.of": 5.0}, "workload"),
    ]
    for kind, hypotheses, name in cases:
        assert detector_of(suspicion("peer_step", kind, hypotheses=hypotheses)) == name


def test_names_are_given_once():
    """A name means one thing."""
    assert len(NAMES) == len(DETECTORS)
