"""Findings about slowrank itself, from counts."""

import pytest

from alerts.finding import Finding
from streams.runtime.monitoring.capacity import Forecast
from streams.runtime.monitoring.self_findings import (
    CAPACITY,
    DEAD_LETTERS,
    LAG,
    Backlog,
    Observation,
    SelfFindings,
)

NOW = 1_795_000_000.0
WELL = Observation({"detect": 0.0, "sink": 0.0}, 0)


def watch(*observations, every=15.0):
    """The findings of a row of observations, 15 s apart."""
    findings = SelfFindings("c", behind_seconds=120.0, started=NOW)
    return [f for i, seen in enumerate(observations) for f in findings.update(NOW + i * every, seen)]


def live(findings: list[Finding]):
    return [f for f in findings if f.status == "open"]


def test_a_wait_is_as_old_as_its_oldest_message():
    """The age grows while the group stands still, however many messages follow, until it has caught up."""
    backlog, place = Backlog(), ("t", 0)
    assert backlog.note(0.0, {place: 100}, {place: 100}) == 0.0
    assert backlog.note(10.0, {place: 200}, {place: 100}) == 0.0
    assert backlog.note(20.0, {place: 300}, {place: 150}) == 10.0
    assert backlog.note(30.0, {place: 400}, {place: 250}) == 10.0
    assert backlog.note(40.0, {place: 400}, {place: 400}) == 0.0


def test_a_group_that_never_committed_is_behind_too():
    """Telemetry that nobody has ever read is the blindest of all; an empty topic is not."""
    backlog = Backlog()
    for now in range(0, 100, 10):
        behind = backlog.note(float(now), {("t", 0): 5, ("empty", 0): 0}, {})
    assert behind == 90.0


def test_a_wait_of_days_keeps_its_age():
    """The memory of a backlog is bounded, and its oldest mark is the one that is kept."""
    backlog = Backlog()
    ages = [backlog.note(10.0 * i, {("t", 0): i + 1}, {}) for i in range(2000)]
    assert ages[-1] == 19_990.0


@pytest.mark.parametrize(
    ("seen", "kind", "words"),
    [
        (Observation({"detect": 130.0}, 0), LAG, "detectors are 130 s behind"),
        (Observation({"sink": 500.0}, 0), LAG, "roll-ups are 500 s behind"),
        (Observation({}, 7), DEAD_LETTERS, "7 messages"),
    ],
)
def test_lag_and_dead_letters_are_findings(seen, kind, words):
    """It is a warning about the telemetry, open at once."""
    [finding] = live(watch(seen))
    assert (finding.kind, finding.status, finding.severity) == (kind, "open", "warning")
    assert finding.subject.type == "telemetry"
    assert words in finding.title


def test_an_ordinary_delay_is_no_finding():
    """Below what workers mend by themselves nothing is said."""
    assert not live(watch(*[Observation({"detect": 110.0, "sink": 90.0}, 0)] * 20))


def test_a_lag_that_grows_is_a_finding_within_fifteen_seconds():
    """Looks come every three seconds; messages wait from just after the first one on."""
    backlog, place = Backlog(), ("node-samples", 0)
    findings = SelfFindings("c", behind_seconds=120.0, started=NOW, growing_seconds=9.0)
    opened = []
    for second in range(0, 40, 3):
        behind = backlog.note(NOW + second, {place: 10 * second}, {place: 0})
        found = findings.update(NOW + second, Observation({"detect": behind}, 0))
        opened += [second for f in live(found) if f.kind == LAG]
    assert opened[0] <= 14


def test_a_lag_that_shrinks_is_being_mended():
    """A worker that reads on after a restart needs no help."""
    ages = [100.0, 80.0, 60.0, 40.0, 20.0, 10.0, 3.0]
    findings = SelfFindings("c", behind_seconds=120.0, started=NOW, growing_seconds=9.0)
    seen = [
        f for i, age in enumerate(ages) for f in findings.update(NOW + 3 * i, Observation({"sink": age}, 0))
    ]
    assert not live(seen)


def test_a_lack_of_capacity_is_a_finding_before_anything_is_late():
    """Its title has how much is used, and how long that will do."""
    short, ample = Forecast(0.85, 1200.0), Forecast(0.5)
    [found] = live(watch(Observation({}, 0, {"sink": short, "detect": ample})))
    assert found.kind == CAPACITY
    assert found.subject.node == "streams-sink"
    assert found.title == "Storing uses 85% of its capacity, behind in 20 min if its load grows on"
    [steady] = live(watch(Observation({}, 0, {"detect": Forecast(0.91)})))
    assert steady.title == "Detection uses 91% of its capacity"


def test_it_opens_once_is_freshened_and_ends_once():
    """All versions of one trouble are one finding, and it ends a minute after the last sign of it."""
    bad = Observation({"detect": 200.0}, 0)
    versions = [f for f in watch(*[bad] * 9, *[Observation({"detect": 0.0}, 0)] * 20) if f.kind == LAG]
    assert [f.status for f in versions] == ["open", "open", "open", "resolved"]
    assert len({f.id for f in versions}) == 1
    assert {f.onset for f in versions} == {NOW - 200.0}
    assert versions[-1].resolved_at == NOW + 8 * 15.0 + 60.0


def test_a_short_relief_does_not_end_it():
    """A lag that comes and goes within a minute is one trouble."""
    bad, well = Observation({"detect": 200.0}, 0), Observation({"detect": 0.0}, 0)
    versions = [f for f in watch(*[bad, well, well] * 6) if f.kind == LAG]
    assert {f.status for f in versions} == {"open"}
    assert len({f.id for f in versions}) == 1


def test_what_a_predecessor_left_open_is_closed_once():
    """A worker that starts into a healthy pipeline says so once for everything it watches, and no more."""
    versions = watch(*[WELL] * 30)
    assert [f.status for f in versions] == ["resolved"] * 3
    assert {f.subject.node for f in versions} == {"streams-detect", "streams-sink", "dead-letters"}
