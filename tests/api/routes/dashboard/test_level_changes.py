"""Changes of level: their size, and which of the things known of that time stand beside them."""

from datetime import UTC, datetime

import pytest

from api.routes.dashboard.level_changes import (
    MAX_EXPLANATIONS,
    Explanation,
    begun_or_ended,
    changes,
    declared,
    restarts,
)

T0 = 1_795_160_000
BIN = 10_000
BINS = 180
T = [1000 * T0 + i * BIN for i in range(BINS)]


def at(seconds):
    return 1000 * T0 + 1000 * seconds


def moment(seconds):
    return datetime.fromtimestamp(T0 + seconds, UTC)


def found(known=(), *, edges=(90,), median=None, ranks=None):
    """The changes of a job that goes from 2 s to 2.4 s in the bin that begins after 900 s."""
    median = median or [2.0] * 90 + [2.4] * 90
    return changes(list(edges), T, median, ranks or [16] * BINS, bin_ms=BIN, known=known)


def explanations(known=(), **more):
    [change] = found(known, **more)
    return [(one["what"], one["text"]) for one in change["explanations"]]


def test_a_change_has_onset_and_ratio():
    """The level after it by the level before, each a median that outliers do not move."""
    median = [2.0] * 90 + [2.4] * 90
    median[3], median[100] = 50.0, 0.1
    assert found(median=median) == [
        {"at": at(900), "ratio": 1.2, "before": 2.0, "after": 2.4, "explanations": []}
    ]


def test_each_change_is_beside_the_one_before():
    """Back to the first level: the second ratio undoes the first."""
    median = [2.0] * 60 + [3.0] * 60 + [2.0] * 60
    assert [(one["at"], one["ratio"]) for one in found(edges=(60, 120), median=median)] == [
        (at(600), 1.5),
        (at(1200), 0.6667),
    ]


def test_a_level_of_zero_has_no_ratio():
    """As where waits begin."""
    [change] = found(median=[0.0] * 90 + [1.0] * 90)
    assert (change["ratio"], change["before"], change["after"]) == (None, 0.0, 1.0)


def test_no_change_has_no_levels():
    """Also of a window without a step."""
    assert found(edges=()) == []
    assert changes([], [], [], [], bin_ms=BIN, known=[Explanation(at(0), "evaluation")]) == []


@pytest.mark.parametrize(
    ("seconds", "explains"), [(839, False), (840, True), (905, True), (920, True), (921, False)]
)
def test_what_is_declared_within_a_minute_before_explains(seconds, explains):
    """Of the bin in which the level changed, or up to the end of the next: later is no reason."""
    known = [Explanation(at(seconds), "schedule", "batch 2048")]
    assert explanations(known) == [("schedule", "batch 2048")] * explains


def test_long_bins_reach_further():
    """A bin before and after: within one nothing is known of the order."""
    t = [1000 * T0 + i * 288_000 for i in range(20)]
    known = [Explanation(t[10] - 288_000, "schedule"), Explanation(t[10] - 288_001, "restart")]
    [change] = changes([10], t, [2.0] * 10 + [3.0] * 10, [16] * 20, bin_ms=288_000, known=known)
    assert [one["what"] for one in change["explanations"]] == ["schedule"]


def test_the_likeliest_stands_first():
    """What changes the work for good, then findings, then pauses; of one kind the nearest; at most eight."""
    known = [
        Explanation(at(900), "checkpoint", "4 s"),
        Explanation(at(901), "evaluation"),
        Explanation(at(902), "finding", "n1 is slow", "fnd_1"),
        Explanation(at(850), "schedule", "far"),
        Explanation(at(903), "schedule", "near"),
        Explanation(at(904), "restart", "attempt 1"),
    ]
    ranks = [16] * 90 + [8] * 90
    assert explanations(known, ranks=ranks) == [
        ("resize", "from 16 to 8 ranks"),
        ("restart", "attempt 1"),
        ("schedule", "near"),
        ("schedule", "far"),
        ("finding", "n1 is slow"),
        ("evaluation", ""),
        ("checkpoint", "4 s"),
    ]
    [change] = found([Explanation(at(900), "finding", str(i), f"fnd_{i}") for i in range(500)])
    assert len(change["explanations"]) == MAX_EXPLANATIONS


def test_frequent_pauses_explain_nothing():
    """Twelve within reach of a fifth of the half hour and more: one lies beside any change."""
    rare = [Explanation(at(905), "checkpoint", "4 s"), Explanation(at(300), "checkpoint", "4 s")]
    assert explanations(rare) == [("checkpoint", "4 s")]
    often = [Explanation(at(30 * i), "checkpoint", "4 s") for i in range(60)]
    assert explanations(often) == []
    assert explanations([*often, Explanation(at(905), "evaluation")]) == [("evaluation", "")]


def test_attempts_are_restarts_and_resizes():
    """The first is the start of the job; sizes that are not known are no change of size."""
    sizes = [(0, 16), (1, 16), (2, 8), (3, 0)]
    rows = [
        {"attempt": attempt, "world_size": size, "first_seen_at": moment(100 * attempt)}
        for attempt, size in reversed(sizes)
    ]
    assert restarts(rows) == [
        Explanation(at(100), "restart", "attempt 1"),
        Explanation(at(200), "resize", "attempt 2, from 16 to 8 ranks"),
        Explanation(at(300), "restart", "attempt 3"),
    ]


def test_findings_explain_by_onset_and_end():
    """Each within the window only."""
    row = {"id": "fnd_1", "title": "n1 is slow", "onset": moment(900), "resolved_at": moment(5000)}
    assert begun_or_ended([row], moment(0), moment(1800)) == [
        Explanation(at(900), "finding", "n1 is slow (began)", "fnd_1")
    ]
    assert begun_or_ended([row | {"onset": moment(-9)}], moment(0), moment(6000)) == [
        Explanation(at(5000), "finding", "n1 is slow (ended)", "fnd_1")
    ]
    assert begun_or_ended([row | {"resolved_at": None}], moment(1000), moment(1800)) == []


def test_events_are_named():
    """By what they mean for the level."""
    codes = ["job.start", "job.restart", "job.schedule", "job.eval", "job.checkpoint"]
    rows = [{"at": moment(i), "code": code, "message": code} for i, code in enumerate(codes)]
    assert [(one.what, one.text) for one in declared(rows)] == [
        ("restart", "job.start"),
        ("restart", "job.restart"),
        ("schedule", "job.schedule"),
        ("evaluation", "job.eval"),
        ("checkpoint", "job.checkpoint"),
    ]
