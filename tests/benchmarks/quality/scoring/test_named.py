"""Groups and several culprits: who was named, how soon, and whether all were."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.quality.run import OURS, Outcome
from benchmarks.quality.scenarios.groups import groups
from benchmarks.quality.scenarios.scenario import events_of
from benchmarks.quality.scoring.matching import Suspects
from benchmarks.quality.scoring.named import named_rows, set_recall, set_rows, where_named
from simulator.cluster.truth import truths
from tests.benchmarks.quality.alarm_rows import alarm, event

GROUP, OTHER = (("pp", 0), ("tp", 2)), (("pp", 0), ("tp", 3))
PORT = event(groups=(GROUP,), verdicts=("link.nic_slow",))


def outcome(events, alarms, *, seed=1):
    return Outcome(
        part="groups", row="rest", seed=seed, nodes=2, seconds=200.0, tick_seconds=1.0, rank_steps=1000,
        events=tuple(events), alarms={OURS: tuple(alarms)}, expected={}, job_of={"a": "job", "b": "job"},
    )  # fmt: skip


def of_group(group, told):
    return replace(alarm(node=None, kind="straggler.job_wide", sent_at=told), group=group)


def test_a_group_or_its_port_within_twenty_seconds():
    """What comes first of both counts; another group is wrong, and never named is never."""
    told = [
        outcome([PORT], [of_group(GROUP, 130.0), alarm(sent_at=119.0)]),
        outcome([PORT], [of_group(OTHER, 110.0), of_group(GROUP, 121.0)], seed=2),
        outcome([PORT], [alarm(node="b", sent_at=105.0)], seed=3),
    ]
    named = where_named(told)["slow"]
    assert (named.groups, named.machines, named.wrong) == (2, 1, 1)
    assert named.after == {1: [19.0], 2: [21.0], 3: [np.inf]}
    assert named.within().tolist() == [[1, 1], [0, 1], [0, 1]]
    [row] = named_rows(told)
    assert row[-1].startswith("21.0 [19.0, never], never [")


def test_a_hung_job_is_named_by_its_suspects():
    """The node that the others wait for counts from when it was first among three, not when it opened."""
    hung = event(fault="job_hang", machine=False, gpu=None, verdicts=("hang.job",))
    places = [((node, None),) for node in "bcda"]
    said = (Suspects(112.0, tuple(places)), Suspects(130.0, tuple(places[1:])))
    told = replace(alarm(node=None, kind="hang.job", sent_at=112.0), suspects=said)
    assert where_named([outcome([hung], [told])])["slow"].after == {1: [30.0]}


def test_all_of_several_culprits():
    """Two of three are among the first three named, the third comes fourth; one is reported twice."""
    events = [event(node=node, row="3 at once") for node in "abc"]
    order = ["a", "healthy", "b", "b", "c"]
    said = [alarm(node=node, sent_at=101.0 + i) for i, node in enumerate(order)]
    table = set_recall([outcome(events, said)])["3 at once"]
    assert table.tolist() == [[3, 3, 2, 1, 0, 2, 1]]
    [row] = set_rows([outcome(events, said)])
    assert row[:3] == ("3 at once", "1", "3")


@pytest.mark.parametrize(
    "second", [event(120.0, node="b", job_id="other"), event(120.0, node="b", end=130.0)], ids=["job", "end"]
)
def test_culprits_of_other_jobs_or_times_are_not_several(second):
    """Only what is wrong in one job at one time asks for more than one name."""
    first = event(end=119.0) if second.job_id == "job" else event()
    assert not set_recall([outcome([first, second], [])])


def test_each_slow_port_has_one_group():
    """A port of one GPU carries one data-parallel group, and step rows show no more than that."""
    both, steps = groups(5)
    found = [events_of(scenario, truths(scenario.spec, scenario.faults)) for scenario in (both, steps)]
    assert all(len(e.groups) == 1 for events in found for e in events)
    assert [e.causes for e in found[1]] == [("group",)] * len(found[1])
    assert "straggler.job_wide" not in found[0][0].verdicts
