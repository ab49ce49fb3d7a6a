"""Machines that are slower or quicker for good: by whom they are compared from then on."""

import numpy as np
import pytest

from detectors.peers.peers import PeerGroups
from detectors.peers.places.machine_classes import LEAST_CLASS, is_clear, slow_class
from detectors.peers.step_times import StepTimes
from detectors.straggler.step_detector import StragglerDetector

ON_NODE, CHANGED, STEPS = 8, 100, 200


def times(number, work, *, tokens=None):
    """Return a step of compute alone; what is NaN was not read."""
    nan = np.full(work.size, np.nan)
    step = np.full(work.size, 2.0 if np.isnan(work).all() else np.nanmax(work))
    return StepTimes(
        number=number, ts=np.full(work.size, 1e9 + 2.0 * number), step=step, compute=work, wait=nan, data=nan,
        comm=nan, checkpoint=nan, tokens=nan if tokens is None else tokens,
    )  # fmt: skip


def compute(level, *, slow=(), by=1.0, steps=STEPS, noise=0.01, seed=1):
    """Return seconds [steps, ranks] of machines of eight ranks at a ``level`` each, of which some are slower
    from ``CHANGED`` on."""
    rng, nodes = np.random.default_rng(seed), np.repeat(np.arange(len(level)), ON_NODE)
    seconds = np.asarray(level)[nodes] * np.exp(noise * rng.normal(size=(steps, nodes.size)))
    seconds[CHANGED:, np.isin(nodes, list(slow))] *= by
    return seconds


def run(seconds, *, roles=None, tokens=None, first=500):
    """Return the machines of which ranks were found slow, and the detector after the last step."""
    nodes = np.arange(seconds.shape[1]) // ON_NODE
    roles = np.zeros_like(nodes) if roles is None else np.asarray(roles)[nodes]
    detector, named = StragglerDetector(nodes.size, roles, nodes=nodes), set()
    for number, work in enumerate(seconds):
        given = None if tokens is None else tokens[number]
        for slow in detector.update(times(first + number, work, tokens=given)).slow:
            named.add(int(nodes[slow.rank]))
    return named, detector


TWO_OF_SIX = [1.3, 1.0, 1.0, 1.0, 1.0, 1.3]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("silent", [[], [3]], ids=["all read", "one rank is not"])
def test_a_class_that_slows_as_a_whole_is_not_named(silent, seed):
    """However few machines it has."""
    seconds = compute(TWO_OF_SIX, slow={0, 5}, by=1.05, seed=seed)
    seconds[:, silent] = np.nan
    assert run(seconds)[0] == set()


def test_a_class_with_a_machine_in_each_of_two_stages_is_one_class():
    level = [1.3, 1.0, 1.0, 1.0, 1.0, 1.3, 1.0, 1.0]
    seconds = compute(level, slow={0, 5}, by=1.1)
    assert run(seconds, roles=np.arange(8) % 2)[0] == set()
    assert run(compute(level, slow={5}, by=1.1), roles=np.arange(8) % 2)[0] == {5}


def test_a_stage_that_reports_late_is_compared_though_another_has_classes():
    seconds = compute([*TWO_OF_SIX, 1.0, 1.0, 1.0], slow={7}, by=1.1)
    seconds[:50, 6 * ON_NODE :] = np.nan
    assert run(seconds, roles=np.arange(9) // 6)[0] == {7}


def test_one_slow_machine_of_three_is_no_class():
    """The last has two ranks: of all, more than a third are slow."""
    seconds = compute([1.2, 1.0, 1.0], steps=120)[:, : 2 * ON_NODE + 2]
    named, detector = run(seconds, first=0)
    assert named == {0}
    assert len(detector.held()) == ON_NODE


@pytest.mark.parametrize("slow", [{25}, {24, 25, 26, 27}])
def test_slow_ranks_of_a_machine_of_a_slower_class_are_named_without_the_others(slow):
    """Every third machine is of another model; of one of them some ranks are slower still from the start."""
    seconds = compute([1.4, 1.0, 1.0] * 4, steps=80)
    seconds[:, list(slow)] *= 1.6
    _, detector = run(seconds, roles=np.zeros(12))
    assert {held.rank for held in detector.held()} == slow


@pytest.mark.parametrize("first", [0, 500])
def test_two_machines_that_are_slow_by_different_amounts_are_no_class(first):
    named, detector = run(compute([1.2, 1.0, 1.45, 1.0, 1.0], steps=60), first=first)
    assert named == {0, 2}
    assert detector.ratios.comparison.groups.sizes.tolist() == [40]


def test_what_is_usual_of_a_class_is_learnt_anew_with_the_work():
    """Its ranks have less work, which is reported from later on."""
    less = np.repeat([0.7, 1.0, 1.0, 1.0, 1.0, 0.7], ON_NODE)
    rng = np.random.default_rng(3)
    tokens = 16384.0 * less * rng.uniform(0.9, 1.1, size=(STEPS, less.size))
    seconds = tokens / 16384.0 * np.exp(0.005 * rng.normal(size=tokens.shape))
    tokens[:25] = np.nan
    named, detector = run(seconds, tokens=tokens)
    assert named == set()
    assert np.abs(detector.paces(np.arange(less.size), least=10)).max() < 0.02


def test_classes_are_learnt_again_when_compute_is_reported_again():
    """Ten steps have their whole time alone."""
    seconds = compute(TWO_OF_SIX)
    seconds[50:60] = np.nan
    detector = run(seconds)[1]
    assert sorted(detector.ratios.comparison.groups.sizes) == [16, 32]
    assert detector.ratios.comparison.class_mates(0).sum() == ON_NODE


def test_a_machine_that_is_a_little_slower_for_good_is_no_role():
    """Without coordinates, stages have several machines each; what it becomes later shows."""
    seconds = compute([1.0, 1.02, 1.0, 1.0], slow={1}, by=1.1, noise=0.005)
    nodes = np.arange(32) // ON_NODE
    detector, named = StragglerDetector(32, None, nodes=nodes), set()
    for number, work in enumerate(seconds):
        named |= {int(nodes[slow.rank]) for slow in detector.update(times(500 + number, work)).slow}
    assert named == {1}


def machines(count):
    return PeerGroups.of(np.repeat(np.arange(count), ON_NODE))


@pytest.mark.parametrize(
    ("ratios", "expected"),
    [
        ({0: 0.5, 2: 0.55}, {0, 2}),
        ({0: 0.5}, set()),
        ({0: 0.5, 2: 0.12}, set()),
        ({0: 0.05, 2: 0.05}, set()),
        ({}, set()),
        ({0: 0.12, 2: 0.11, 3: 0.08}, {0, 2, 3}),
        ({0: 0.12, 2: 0.08}, set()),
    ],
    ids=["two alike", "one", "two that differ", "small", "none", "a small one with two", "one of two small"],
)
def test_machines_that_are_alike_slower_are_a_class(ratios, expected):
    """Two at least: one by itself is slow."""
    usual = np.random.default_rng(1).normal(0, 0.005, 32)
    for machine, ratio in ratios.items():
        usual[8 * machine : 8 * machine + 8] += ratio
    found = slow_class(usual, machines(4), least=LEAST_CLASS)
    assert set(np.flatnonzero(found) // 8) == expected
    assert found.sum() == 8 * len(expected)


@pytest.mark.parametrize(
    ("ratios", "clear"),
    [
        ([0.06, 0.06, 0.0, 0.005, -0.005, 0.0], True),
        ([0.06, 0.06, 0.03, 0.005, -0.005, 0.0], False),
        ([0.06, 0.06, 0.10, 0.005, -0.005, 0.0], True),
        ([0.06, 0.06, 0.015, 0.015, -0.015, -0.015], False),
        ([0.02, 0.02, 0.0, 0.0, 0.0, 0.0], False),
        ([0.20, 0.20, 0.10, 0.015, -0.015, -0.015], True),
    ],
    ids=["apart", "one between", "one beyond", "others differ", "too little", "by far"],
)
def test_a_class_that_differs_by_little_is_apart_from_all_others(ratios, clear):
    """Healthy machines differ, and a slow one may be anywhere."""
    usual = np.repeat(ratios, 8)
    assert is_clear(np.arange(48) < 16, usual, machines(6)) is clear


def test_a_rank_alone_on_its_machine_may_be_of_a_class():
    """As the last machine of a job may be; by themselves such ranks make none."""
    usual = np.array([0.5] * 16 + [0.0] * 16 + [0.52, 0.9])
    nodes = PeerGroups.of(np.repeat(np.arange(6), [8, 8, 8, 8, 1, 1]))
    assert set(np.flatnonzero(slow_class(usual, nodes, least=LEAST_CLASS))) == {*range(16), 32}
    alone = PeerGroups.of(np.arange(34))
    assert not slow_class(usual, alone, least=LEAST_CLASS).any()


def test_half_of_a_machine_is_no_class():
    """Its ranks differ, whatever their median is."""
    usual = np.where(np.arange(32) % 8 < 4, 0.5, 0.0)
    assert not slow_class(usual, machines(4), least=LEAST_CLASS).any()
