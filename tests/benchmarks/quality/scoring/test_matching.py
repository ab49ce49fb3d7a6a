"""Matching of alarms with what was injected."""

from dataclasses import replace

import pytest

from benchmarks.quality.scoring.matching import in_window, match
from tests.benchmarks.quality.alarm_rows import alarm, event


def counts(result):
    return (
        len(result.found),
        len(result.missed),
        len(result.false),
        len(result.duplicates),
        len(result.remarks),
    )


@pytest.mark.parametrize(
    ("alarms", "expected"),
    [
        ([], (0, 1, 0, 0, 0)),
        ([alarm()], (1, 0, 0, 0, 0)),
        ([alarm(gpu=None)], (1, 0, 0, 0, 0)),
        ([alarm(gpu=4)], (0, 1, 1, 0, 0)),
        ([alarm(node="b")], (0, 1, 1, 0, 0)),
        ([alarm(), alarm(sent_at=200.0)], (1, 0, 0, 1, 0)),
        ([alarm(97.9)], (0, 1, 1, 0, 0)),
        ([alarm(98.0)], (1, 0, 0, 0, 0)),
        ([alarm(node=None, kind="straggler.job_wide")], (0, 1, 0, 0, 1)),
        ([alarm(node=None)], (1, 0, 0, 0, 0)),
        ([alarm(node="b", kind="exporter.stale", job_id=None)], (0, 1, 0, 0, 1)),
    ],
    ids=[
        "nothing told", "the GPU", "its node", "its neighbour", "another node", "told twice", "too early",
        "just in time", "the job by another kind", "the job by a right kind", "telemetry",
    ],
)  # fmt: skip
def test_one_event(alarms, expected):
    """Found, missed, false, duplicates and remarks about one slow GPU."""
    assert counts(match([event()], alarms)) == expected


def test_a_window_ends_thirty_seconds_or_steps_after_the_event():
    """An onset may be put as late as 30 s after the end, or 30 steps where steps are longer."""
    short, long = event(end=160.0), event(end=160.0, step_seconds=4.0)
    assert [in_window(short, 190.0), in_window(short, 190.1)] == [True, False]
    assert [in_window(long, 280.0), in_window(long, 280.1)] == [True, False]
    assert [in_window(long, 96.0), in_window(long, 95.9)] == [True, False]


def test_two_events_on_one_machine_take_one_alarm_each():
    """Each alarm goes to the open event nearest to its onset."""
    events = [event(100.0), event(400.0)]
    found = match(events, [alarm(401.0), alarm(101.0)]).found
    assert [(e.onset, a.onset) for e, a in found] == [(100.0, 101.0), (400.0, 401.0)]
    assert counts(match(events, [alarm(101.0)])) == (1, 1, 0, 0, 0)


def test_naming_a_machine_is_wrong_where_none_is_at_fault():
    """A job-wide cause is found by its kind about the job; a machine named instead is false."""
    stage = event(machine=False, verdicts=("straggler.job_wide",))
    assert counts(match([stage], [alarm(node=None, kind="straggler.job_wide")])) == (1, 0, 0, 0, 0)
    assert counts(match([stage], [alarm()])) == (0, 1, 1, 0, 0)


def test_a_silent_exporter_is_found_at_its_node():
    """An alarm about a node's telemetry matches the telemetry fault of that node alone."""
    gap = event(machine=False, verdicts=("exporter.stale",), gpu=None)
    told = [alarm(node=n, gpu=None, kind="exporter.stale", job_id=None) for n in ("a", "b")]
    assert counts(match([gap], told)) == (1, 0, 0, 0, 1)


def test_a_domain_is_named_by_most_of_its_nodes():
    """An alarm about a switch finds the fault of the switch, and that of no single node."""
    places = tuple((node, None) for node in "abcd")
    switch = replace(alarm(), places=places)
    whole, single = event(gpu=None, nodes=tuple("abcd")), event()
    assert counts(match([whole], [switch])) == (1, 0, 0, 0, 0)
    assert counts(match([single], [switch])) == (0, 1, 1, 0, 0)
    assert counts(match([whole], [switch, alarm(sent_at=200.0)])) == (1, 0, 0, 1, 0)


@pytest.mark.parametrize(
    ("group", "expected"),
    [((("pp", 0), ("tp", 2)), (1, 0, 0, 0, 0)), ((("pp", 0), ("tp", 3)), (0, 1, 0, 0, 1))],
    ids=["its group", "another"],
)
def test_a_slow_port_is_found_by_its_group(group, expected):
    """The group that transfers through it is its domain; no other one is."""
    port = event(groups=((("pp", 0), ("tp", 2)),))
    told = replace(alarm(node=None, kind="straggler.job_wide"), group=group)
    assert counts(match([port], [told])) == expected
    assert counts(match([port], [replace(told, job_id="another")])) == (0, 1, 0, 0, 1)
