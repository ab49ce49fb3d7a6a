import doctest

import numpy as np
import pytest

import detectors.job.startup
from detectors.job.startup import judge

ALONE = np.zeros(2, np.bool_)


def starts(nodes=8, *, seed=1):
    """Image pull and environment of some nodes, healthy: a minute and ten seconds, a few per cent apart."""
    rng = np.random.default_rng(seed)
    return np.array([60.0, 10.0]) * (1 + 0.05 * rng.standard_normal((nodes, 2)))


def gpus(nodes):
    return np.full(nodes, 8)


def judged(seconds, together=ALONE):
    found = judge(seconds, gpus(len(seconds)), together=together)
    assert found is not None
    return found


def test_documented_example_runs():
    """The example in the docstring prints what it shows."""
    assert doctest.testmod(detectors.job.startup).failed == 0


@pytest.mark.parametrize("seed", range(10))
def test_a_healthy_start_names_no_node(seed):
    """Ordinary spread has a slowest phase and no straggler."""
    found = judged(starts(seed=seed))
    assert found.slowest == 0
    assert found.slow_starts == ()


def test_both_ratio_and_seconds_are_demanded():
    """Three times five seconds is nothing, nor is half a minute on ten."""
    short, long = np.full((8, 2), 5.0), np.full((8, 2), 600.0)
    short[3, 0], long[3, 0] = 15.0, 660.0
    assert judged(short).slow_starts == ()
    assert judged(long).slow_starts == ()


def test_stragglers_come_worst_first_with_what_they_cost():
    """Two slow nodes in two phases are named in order of what they hold up; the cost is max less median."""
    seconds = np.full((8, 2), 60.0)
    seconds[2, 0], seconds[5, 1] = 160.0, 360.0
    found = judged(seconds)
    assert [(s.node, s.phase, s.seconds, s.usual) for s in found.slow_starts] == [
        (5, 1, 360.0, 60.0),
        (2, 0, 160.0, 60.0),
    ]
    assert found.slowest == 1
    assert found.lost == 64 * (100.0 + 300.0)


@pytest.mark.parametrize("nodes", [1, 2, 3])
def test_too_few_peers_name_no_node(nodes):
    """With fewer than three others a slow node is not distinguished from a slow job."""
    seconds = starts(nodes)
    seconds[0, 0] = 900.0
    assert judged(seconds).slow_starts == ()


def test_who_waits_for_the_others_is_no_straggler():
    """In a phase that all end together the first to come takes longest."""
    seconds = np.full((8, 2), 60.0)
    seconds[:, 1] = 2.0
    seconds[4] = [10.0, 52.0]
    found = judged(seconds, np.array([False, True]))
    assert found.slow_starts == ()
    assert found.lost == 0.0


def test_what_was_not_reported_is_left_out():
    """Missing phases and nonsense durations count for nothing; without any, nothing is found."""
    seconds = starts()
    seconds[0, 0], seconds[1, 0], seconds[:, 1] = np.nan, -5.0, np.nan
    found = judged(seconds)
    assert found.slowest == 0
    assert np.isnan(found.longest[1])
    assert judge(np.full((4, 2), np.nan), gpus(4), together=ALONE) is None


@pytest.mark.parametrize(
    ("usual", "own", "named"),
    [(60, 90, True), (60, 89, False), (20, 50, True), (20, 49, False), (100, 149, False)],
)
def test_a_straggler_takes_half_as_long_again_and_half_a_minute_longer(usual, own, named):
    """Both limits are inclusive."""
    seconds = np.full((8, 2), float(usual))
    seconds[3, 0] = own
    assert [s.node for s in judged(seconds).slow_starts] == [3] * named


def test_a_phase_without_a_second_was_reported():
    """Who had nothing to pull counts among the others, and shows how long the one took that had."""
    seconds = np.zeros((4, 1))
    seconds[2] = 300.0
    found = judged(seconds, np.zeros(1, np.bool_))
    assert [(s.node, s.usual) for s in found.slow_starts] == [(2, 0.0)]
    assert found.lost == 32 * 300.0


@pytest.mark.parametrize("seed", range(3))
def test_nodes_may_come_in_any_order(seed):
    """The same start under other numbers has the same stragglers, slowest phase and cost."""
    seconds, order = starts(), np.random.default_rng(seed).permutation(8)
    seconds[2, 0], seconds[5, 1] = 300.0, 200.0
    one, other = judged(seconds), judged(seconds[order])
    assert [int(order[s.node]) for s in other.slow_starts] == [s.node for s in one.slow_starts] == [2, 5]
    assert (other.slowest, other.lost) == (one.slowest, pytest.approx(one.lost))
