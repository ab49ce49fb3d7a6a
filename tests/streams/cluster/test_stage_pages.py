"""FindingStage: when a slow machine pages, and that it does not stop to while it lasts."""

import random

import pytest

from alerts.notify import NotifiedState, event_of
from streams.cluster.stage import FindingStage
from tests.streams.cluster.test_stage import POWER, T0, hot, run, slow
from tests.streams.cluster.test_stage_groups import mate


def reports(onset, times, *, ratio=1.3, **changes):
    """What the job stage reports about a slow rank: at first, and each half minute while it lasts."""
    at = {"onset": T0 + onset, "onset_lo": T0 + onset - 1, "onset_hi": T0 + onset}
    measured = {"slowdown_ratio": ratio, "job_slowdown_ratio": ratio, "overwhelming": True}
    return [
        slow(ts, **({"state": "update" if i else "raise"} | at | measured | changes))
        for i, ts in enumerate(times)
    ]


REPORTS = ((10.0, "raise"), (50.0, "update"), (110.0, "update"))


def over(ts):
    return slow(ts, state="clear", job_slowdown_ratio=1.3)


def told(*suspicions):
    """Return the events about the slow rank, with their times and its severity; one tick a second."""
    stage, events, before = FindingStage(), [], None
    waiting = sorted(suspicions, key=lambda s: s.ts)
    for at in range(int(waiting[-1].ts - T0) + 2):
        while waiting and waiting[0].ts <= T0 + at:
            stage.process(waiting.pop(0))
        for finding in stage.tick(T0 + at):
            if finding.subject.type != "rank":
                continue
            after = NotifiedState.of(finding)
            event = event_of(before, after)
            before = after
            if event is not None:
                events.append((at, event.removeprefix("finding."), finding.severity))
    return events


def test_a_slow_rank_is_an_error_until_it_has_cost_half_a_minute():
    """A hundred seconds at 1.3x; the first report after that raises and notifies it, and no other does."""
    said = reports(5, [10, 40, 70, 100, 130, 160])
    assert told(*said) == [(10, "opened", "error"), (130, "escalated", "critical")]


def test_a_job_that_lasts_a_step_between_reports_pages_with_the_next_step():
    """Steps of 30 s that take twice as long: two of them cost half a minute and more."""
    assert told(*reports(5, [65, 125], ratio=2.0)) == [(65, "opened", "critical")]


def test_a_small_slowdown_pages_after_five_minutes():
    """At 1.06x it has cost 18 s by then."""
    said = reports(5, range(15, 400, 30), ratio=1.06)
    assert told(*said) == [(15, "opened", "error"), (315, "escalated", "critical")]


def test_a_profiled_rank_pages_nobody():
    """Half as slow again for fifteen steps of a second, and again in each of the next hours."""
    said = [s for start in (0, 2000, 4000) for s in (*reports(start + 5, [start + 9]), over(start + 20))]
    assert {severity for _, _, severity in told(*said)} == {"error"}


def test_what_comes_back_before_it_has_recovered_adds_up():
    """Three times forty seconds at 1.3x cost 36 s; the minutes between them are not counted."""
    said = [
        s
        for start in (0, 150, 300)
        for s in (*reports(start + 5, [start + 15, start + 45]), over(start + 50))
    ]
    assert told(*said) == [(15, "opened", "error"), (345, "escalated", "critical")]


def test_hardware_evidence_pages_at_once_and_its_end_takes_nothing_back():
    """The clock recovers first, the steps later: it is one finding, critical until it is over."""
    said = [*reports(5, [10, 40, 70]), slow(12, **POWER), slow(30, state="clear", **POWER)]
    assert told(*said) == [(10, "opened", "error"), (12, "escalated", "critical")]
    last, _ = run(*said, until=80)
    assert last["straggler.fail_slow", "rank"].severity == "critical"


def test_a_smaller_estimate_takes_nothing_back():
    """The cost so far stays: a ratio of 1.3 that is measured as 1.07 later, and the same the other way."""
    said = [*reports(5, [10, 40, 70, 100, 130]), *reports(5, [160, 190], ratio=1.07, state="update")]
    assert [event for _, event, _ in told(*said)] == ["opened", "escalated"]
    late = [*reports(5, [10, 40], ratio=1.07), *reports(5, [70], ratio=1.5, state="update")]
    assert told(*late) == [(10, "opened", "error")]


def test_a_machine_that_was_slow_before_its_job_was_pages_for_what_the_job_lost():
    """Ten minutes in which nobody waited for it do not count."""
    calm = reports(5, range(10, 600, 30), ratio=1.02)
    said = [*calm, *reports(5, [610, 640, 670], state="update")]
    assert told(*said) == [(10, "opened", "warning"), (610, "escalated", "error")]


def test_a_finding_that_was_resolved_opens_as_an_error_again():
    """What an earlier one has cost pages nobody for a new one."""
    said = [*reports(5, [10, 40, 70, 100, 130]), over(140), *reports(995, [1000])]
    assert told(*said) == [
        (10, "opened", "error"),
        (130, "escalated", "critical"),
        (440, "resolved", "critical"),
        (1000, "reopened", "error"),
    ]


def test_a_group_pages_for_the_cost_of_its_ranks():
    """At once with none of them, and with the report after half a minute."""
    said = [mate(rank, at, state=state) for at, state in REPORTS for rank in range(4)]
    _, versions = run(*said, until=120.0)
    found = [f.severity for f in versions if f.subject.type == "group" and f.status == "open"]
    assert (found[0], found[-1]) == ("error", "critical")


@pytest.mark.parametrize("seed", range(5))
def test_any_delivery_ends_in_the_same_severity(seed):
    """Whatever comes first within the lateness: the cost is counted in event time."""
    said = [
        *reports(5, [10, 40, 70]),
        slow(12, **POWER),
        slow(30, state="clear", **POWER),
        *reports(5, [100, 110], ratio=1.1, state="update"),
        hot(95),
    ]
    mixed = random.Random(seed).sample(said, len(said))
    assert run(*mixed, *mixed[:3], until=115)[0] == run(*said, until=115)[0]
