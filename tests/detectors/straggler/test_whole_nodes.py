"""Machines that are slow as a whole: no rank is compared with them (leave-machine-out)."""

import numpy as np
import pytest

from detectors.straggler.step_detector import StragglerDetector
from tests.detectors.straggler.step_times import of_compute

ON_NODE = 8
CHANGED, ENDED, STEPS = 100, 200, 280


def judged(factor, *, nodes, on_last=ON_NODE, noise=0.01, placed=True, seed=1):
    """Return what became of the ranks: step and ratio at which each was found slow, and the detector.

    ``factor`` of the step [nodes] is how much longer a node takes; ``placed``: who shares a node is known;
    ``on_last``: the ranks on the last node.
    """
    rng, ranks = np.random.default_rng(seed), (nodes - 1) * ON_NODE + on_last
    node = np.arange(ranks) // ON_NODE
    detector = StragglerDetector(ranks, np.zeros(ranks, dtype=np.intp), nodes=node if placed else None)
    usual = 1 + 0.003 * rng.normal(size=ranks)
    ts = 1000.0
    found: dict[int, tuple[int, float]] = {}
    for s in range(STEPS):
        work = usual * np.exp(noise * rng.normal(size=ranks)) * np.asarray(factor(s))[node]
        ts += work.max()
        for a in detector.update(of_compute(500 + s, ts, work)).slow:
            found.setdefault(a.rank, (s - CHANGED, a.ratio))
    return found, detector


def slow(nodes, which, by, *, until=STEPS):
    """Return the factors of ``nodes`` of which some are slow for a time."""
    return lambda s: [by if n in which and CHANGED <= s < until else 1.0 for n in range(nodes)]


@pytest.mark.parametrize(
    ("nodes", "which", "by"),
    [(2, {1}, 1.05), (2, {1}, 1.10), (3, {0}, 1.03), (4, {1, 2}, 1.05), (8, {1, 2, 3}, 1.05)],
)
def test_slow_machines_are_measured_by_the_others(nodes, which, by):
    """Also where they are half of the job, and by how much they are slow in truth."""
    found, detector = judged(slow(nodes, which, by), nodes=nodes)
    ranks = [rank for rank in range(nodes * ON_NODE) if rank // ON_NODE in which]
    assert sorted(found) == ranks
    assert np.median([step for step, _ in found.values()]) <= 15
    ratios = [described.ratio for rank in ranks if (described := detector.describe("compute", rank))]
    assert len(ratios) == len(ranks)
    assert np.median(ratios) == pytest.approx(by, abs=0.004)


@pytest.mark.parametrize("on_last", [3, 6])
@pytest.mark.parametrize("by", [1.15, 1.3, 2.0])
def test_a_machine_with_most_of_the_job_is_slow_by_its_own_past(by, on_last):
    """Compared with its own median it would stay as it was, and the few others become quicker."""
    found, detector = judged(slow(2, {0}, by, until=ENDED), nodes=2, on_last=on_last)
    assert sorted(found) == list(range(ON_NODE))
    assert max(step for step, _ in found.values()) <= 20
    assert np.median([ratio for _, ratio in found.values()]) == pytest.approx(by, rel=0.03)
    assert not detector.held()


@pytest.mark.parametrize("on_last", [3, 6])
def test_the_few_that_become_quicker_make_no_machine_slow(on_last):
    """Nor does more work for all, or for a step."""
    for factor in (
        lambda s: [1.0, 1 / 1.3 if s >= CHANGED else 1.0],
        lambda s: [1.3, 1.3] if s >= CHANGED else [1.0, 1.0],
        lambda s: [1.3 if s % 20 == 0 else 1.0, 1.0],
    ):
        assert not judged(factor, nodes=2, on_last=on_last)[0]


def test_without_nodes_half_a_job_hides_itself():
    """What the comparison leaves out is machines: two halves by chance are not distinguished at this size."""
    assert not judged(slow(2, {1}, 1.05), nodes=2, placed=False)[0]


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [2, 4])
@pytest.mark.parametrize("seed", range(2))
def test_who_stays_as_it_was_is_not_slow(nodes, seed):
    """When half of the machines become faster, no rank has become slower."""
    assert not judged(slow(nodes, range(nodes // 2), 1 / 1.08), nodes=nodes, seed=seed)[0]


@pytest.mark.parametrize("nodes", [2, 4])
def test_a_recovery_after_a_slow_start_makes_no_rank_slow(nodes):
    """When half of the machines start slowly and are well from then on, the others have not become slower."""
    half = nodes // 2
    assert not judged(lambda s: [1.2 if n < half and s < 60 else 1.0 for n in range(nodes)], nodes=nodes)[0]


@pytest.mark.parametrize("seed", range(2))
def test_no_other_is_slow_when_they_are_well_again(seed):
    """The others are not taken for what they were beside the slow half."""
    found, detector = judged(slow(2, {0}, 1.08, until=ENDED), nodes=2, noise=0.005, seed=seed)
    assert sorted(found) == list(range(ON_NODE))
    assert not detector.ratios.comparison.left_out.any()


@pytest.mark.parametrize("seed", range(2))
def test_machines_that_waver_make_no_rank_suspect(seed):
    """A step in which whole machines scatter is no more evidence than one in which ranks do."""
    rng = np.random.default_rng(seed)
    storm = np.exp(0.08 * np.abs(rng.normal(size=(STEPS, 4))))
    assert not judged(lambda s: storm[s] if s >= CHANGED else np.ones(4), nodes=4, seed=seed)[0]


@pytest.mark.parametrize(("which", "named"), [({0, 3, 6}, set()), ({3}, set(range(24, 32)))])
def test_machines_that_are_as_slow_since_the_start_are_a_class(which, named):
    """Of another model or under a power limit; one machine by itself is slow. Neither has a change."""
    found, _ = judged(lambda s: [1.7 if n in which else 1.0 for n in range(7)], nodes=7, noise=0.02)
    assert set(found) == named


@pytest.mark.parametrize("usual", [1.6, 1 / 1.6])
@pytest.mark.parametrize(("which", "named"), [({0}, set(range(8))), ({0, 5}, set())])
def test_a_class_of_two_machines_is_compared_with_the_others_too(usual, which, named):
    """Of one of them that slows down gradually the other is a poor measure; both of them are their class."""

    def factor(s):
        grown = 1 + 0.0005 * max(s - CHANGED, 0)
        return [(usual if n in {0, 5} else 1.0) * (grown if n in which else 1.0) for n in range(6)]

    assert set(judged(factor, nodes=6, on_last=3)[0]) == named


def test_power_limits_of_some_machines_are_no_uneven_work():
    """Where half of the ranks are 6 % slower for good, 3 % more of one machine is as plain as elsewhere."""

    def factor(s):
        return [(1.06 if n % 2 else 1.0) * (1.03 if n == 3 and s >= CHANGED else 1.0) for n in range(16)]

    found, _ = judged(factor, nodes=16)
    assert set(found) == set(range(24, 32))
    assert np.median([step for step, _ in found.values()]) <= 15


def test_a_machine_that_slows_down_gradually_is_named_as_a_whole():
    """Its ranks pass what matters one by one; six of the eight are enough evidence that it is the machine."""
    found, _ = judged(lambda s: [1 + 0.0005 * max(s - CHANGED, 0) * (n == 1) for n in range(4)], nodes=4)
    steps = sorted(step for step, _ in found.values())
    assert sorted(found) == list(range(8, 16))
    assert steps[5] - steps[0] <= 5
