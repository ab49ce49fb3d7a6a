"""Machines that are slower or quicker for good: by whom they are compared from then on."""

import numpy as np
import pytest

from detectors.peers.ratios import StepTimes
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


@pytest.mark.parametrize("first", [0, 500])
def test_two_machines_that_are_slow_by_different_amounts_are_no_class(first):
    named, detector = run(compute([1.2, 1.0, 1.45, 1.0, 1.0], steps=60), first=first)
    assert named == {2}
    assert detector.ratios.groups.sizes.tolist() == [40]


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
    assert sorted(detector.ratios.groups.sizes) == [16, 32]
    assert detector.ratios.class_mates(0).sum() == ON_NODE


def test_a_machine_that_is_a_little_slower_for_good_is_no_role():
    """Without coordinates, stages have several machines each; what it becomes later shows."""
    seconds = compute([1.0, 1.02, 1.0, 1.0], slow={1}, by=1.1, noise=0.005)
    nodes = np.arange(32) // ON_NODE
    detector, named = StragglerDetector(32, None, nodes=nodes), set()
    for number, work in enumerate(seconds):
        named |= {int(nodes[slow.rank]) for slow in detector.update(times(500 + number, work)).slow}
    assert named == {1}
