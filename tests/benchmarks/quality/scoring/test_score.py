"""Counting: outcomes in, scores out."""

import math
from dataclasses import replace

import pytest

from benchmarks.quality.run import OURS, Outcome
from benchmarks.quality.scoring.matching import Suspects
from benchmarks.quality.scoring.score import abstentions, noise, scores
from tests.benchmarks.quality.alarm_rows import alarm, event

NODES = {"a": "job", "b": "job", "c": "other"}


def outcome(events, alarms, *, seed=1, expected=None, seconds=86_400.0):
    return Outcome(
        part="slow", row="rest", seed=seed, nodes=2, seconds=seconds, tick_seconds=1.0, rank_steps=1000,
        events=tuple(events), alarms={OURS: tuple(alarms)}, expected=expected or {}, job_of=NODES,
    )  # fmt: skip


def row(score, *names):
    return score.counts(*names).sum(axis=0).tolist()


def test_counts_by_row_and_over_all():
    """A found event, a missed one and an alarm about a healthy node of another job, each in its row."""
    events = [event(row="5 %"), event(node="c", job_id="other", row="10 %")]
    table = scores([outcome(events, [alarm(), alarm(node="b", sent_at=300.0)])], whole="all")
    assert row(table["5 %"], "true", "false", "missed") == [1, 1, 0]
    assert row(table["10 %"], "true", "false", "missed") == [0, 0, 1]
    assert row(table["all"], "true", "false", "missed") == [1, 1, 1]
    assert table["all"].delays == table["all"].opened == {1: [5.0, math.inf]}
    assert (table["all"].events, table["5 %"].events) == (2, 1)


def test_a_wrong_machine_named_first_costs_the_top_place():
    """Top-1 goes by the first machine named about the event's job, top-3 by the first three."""
    [score] = scores([outcome([event()], [alarm(node="b", sent_at=101.0), alarm(sent_at=103.0)])]).values()
    assert row(score, "top1", "top3", "true", "false") == [0, 1, 1, 1]


def test_suspects_are_what_a_finding_about_a_job_names():
    """Its suspects count in their order; the machine itself was not accused."""
    suspects = Suspects(105.0, ((("b", 3),), (("a", 3),), (("a", 4),)))
    told = replace(alarm(node=None), suspects=(Suspects(104.0, ((("a", 3),),)), suspects))
    [score] = scores([outcome([event()], [told])]).values()
    assert row(score, "true", "top1", "top3", "named") == [1, 0, 1, 0]


def test_a_machine_that_is_named_stands_before_its_suspects():
    """A finding about a GPU names that one first, whoever it suspects besides."""
    told = replace(alarm(), suspects=(Suspects(104.0, ((("b", 3),), (("a", 3),))),))
    [score] = scores([outcome([event()], [told])]).values()
    assert row(score, "top1", "named") == [1, 1]


def test_other_culprits_do_not_count_against_a_finding():
    """Of two that are at fault at once each may be first; a healthy one named before them costs the place."""
    events, both = [event(), event(node="b")], [alarm(sent_at=105.0), alarm(node="b", sent_at=106.0)]
    wrong = alarm(node="a", gpu=7, sent_at=104.0)
    assert row(scores([outcome(events, both)])["slow"], "top1", "top3") == [2, 2]
    assert row(scores([outcome(events, [wrong, *both])])["slow"], "top1", "top3") == [0, 2]


def test_an_event_without_a_verdict_is_never_missed():
    """A fault without verdicts is no event of a row; an alarm about it is false all the same."""
    silent = event(verdicts=(), machine=False, row="records twice")
    score = scores([outcome([silent], [alarm()])], whole="all")
    assert [*score] == ["all"]
    assert row(score["all"], "missed", "false") == [0, 1]


def test_soon_is_thirty_steps():
    """A finding counts as soon up to 30 steps of its job after the onset."""
    told = [outcome([event(step_seconds=2.0)], [alarm(sent_at=100.0 + s)], seed=s) for s in (60, 61)]
    [score] = scores(told).values()
    assert score.counts("soon", "events").tolist() == [[1, 1], [0, 1]]


def test_a_duplicate_counts_as_false():
    """The second finding about one event is a false alarm."""
    [score] = scores([outcome([event()], [alarm(), alarm(sent_at=200.0)])]).values()
    assert row(score, "true", "false", "wrong", "named") == [1, 1, 0, 1]
    assert score.duplicates == 1


def test_a_fault_found_without_its_machine_is_not_named():
    """A hang without a named machine is found, but counts against the naming of machines."""
    silent = event(verdicts=("hang.job",))
    [score] = scores([outcome([silent], [alarm(node=None, kind="hang.job")])]).values()
    assert row(score, "true", "named", "unnamed") == [1, 0, 1]


def test_noise_per_node_day():
    """Accusations of the healthy count as tickets or pages; a right verdict about a job does not."""
    said = [alarm(node="b"), alarm(node=None, kind="imbalance.stage"), alarm(node=None, kind="hang.job")]
    n = noise([outcome([], said, expected={"job": ("imbalance.stage",)})])
    assert (n.pages, n.tickets, n.accusations, n.node_days) == (0, 2, 1, 2.0)


def test_abstentions_by_job():
    """Per healthy job: whether a machine was accused, and whether the accusation is right."""
    said = [alarm(node=None, kind="imbalance.stage"), alarm(node="c", job_id="other")]
    table = abstentions([outcome([], said, expected={"job": ("imbalance.stage",)})])
    assert [(t.jobs, t.accused, t.right, t.wrong) for t in (table["job"], table["other"])] == [
        (1, 0, 1, 0),
        (1, 1, 0, 0),
    ]


@pytest.mark.parametrize(("low", "high", "held"), [(100, 103, 1), (100.1, 103, 0), (95, 99.9, 0)])
def test_the_onset_interval_holds_the_true_onset(low, high, held):
    """It does from its first moment on, and neither before nor after."""
    told = replace(alarm(), onset_lo=low, onset_hi=high)
    [score] = scores([outcome([event()], [told])]).values()
    assert row(score, "covered", "true") == [held, 1]
