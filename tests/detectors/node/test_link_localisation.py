"""Links: rows, columns and cells of delays, and least squares over known paths."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detectors.node.link_localisation import LinkVerdict, classify, localise

N = 12


def delays(seed=0, noise=0.05):
    """Return healthy ratios of 12 machines to each other; no machine measures itself."""
    d = np.exp(np.random.default_rng(seed).normal(0, noise, (N, N)))
    np.fill_diagonal(d, np.nan)
    return d


def short(verdicts: list[LinkVerdict]):
    return [(v.pattern, v.source, v.target) for v in verdicts]


@pytest.mark.parametrize("seed", range(10))
def test_healthy_delays_say_nothing(seed):
    """Noise of 5 or 15 % is no link."""
    assert classify(delays(seed)) == []
    assert classify(delays(seed, 0.15)) == []


def test_a_hot_row_is_a_sender_and_a_hot_column_a_receiver():
    """What leaves one machine slowly, or arrives there slowly."""
    row, column = delays(1), delays(2)
    row[4, :] *= 2.0
    column[:, 7] *= 3.0
    assert short(classify(row)) == [("sender", 4, None)]
    assert short(classify(column)) == [("receiver", None, 7)]


def test_row_and_column_of_one_machine_are_the_machine():
    """Slow both ways is the port or its bus."""
    d = delays(3)
    d[4, :] *= 2.0
    d[:, 4] *= 2.0
    assert short(classify(d)) == [("machine", 4, 4)]
    assert classify(d)[0].ratio == pytest.approx(2.0, rel=0.1)


def test_a_hot_cell_is_a_path():
    """One slow pair, with both machines well to everybody else."""
    d = delays(4)
    d[2, 9] *= 4.0
    assert short(classify(d)) == [("path", 2, 9)]


def test_a_sender_and_a_path_at_once():
    """A slow sender does not hide a slow path elsewhere."""
    d = delays(5)
    d[4, :] *= 2.0
    d[2, 9] *= 4.0
    assert short(classify(d)) == [("sender", 4, None), ("path", 2, 9)]


def test_all_slow_is_congestion():
    """Nobody is named when everything is slow."""
    assert short(classify(2.0 * delays(6))) == [("congestion", None, None)]


def test_few_measurements():
    """Missing pairs are no evidence, and a row of two cells is no row."""
    d = delays(7)
    d[4, :] *= 2.0
    d[4, :10] = np.nan
    assert [v.pattern for v in classify(d)] == ["path", "path"]
    assert classify(np.full((N, N), np.nan)) == []


def fabric(leaves=4, spines=3):
    """Return the links of a leaf-spine fabric and the paths of all pairs of leaves over every spine."""
    links = {pair: i for i, pair in enumerate(itertools.product(range(leaves), range(spines)))}
    paths = [
        (links[a, s], links[b, s]) for a, b in itertools.permutations(range(leaves), 2) for s in range(spines)
    ]
    return links, paths


@pytest.mark.parametrize("loss", [0.3, 0.6])
def test_the_bad_link_of_a_fabric(loss):
    """One uplink that delays what crosses it is found, and only it."""
    links, paths = fabric()
    truth = np.ones(len(links))
    truth[links[2, 1]] = 1 - loss
    success = np.array([np.prod(truth[list(p)]) for p in paths])
    success *= 1 - np.abs(np.random.default_rng(1).normal(0, 0.005, len(paths)))
    assert localise(paths, success, len(links)).bad() == [(links[2, 1],)]


def test_two_bad_links_worst_first():
    """Both are found, the worse before the other."""
    links, paths = fabric()
    truth = np.ones(len(links))
    truth[[links[0, 0], links[3, 2]]] = (0.7, 0.4)
    success = np.array([np.prod(truth[list(p)]) for p in paths])
    assert localise(paths, success, len(links)).bad() == [(links[3, 2],), (links[0, 0],)]


def test_a_link_that_few_paths_cross_is_not_known():
    """A link on one path only cannot be judged."""
    found = localise([(0, 1), (0, 2)], np.array([0.5, 1.0]), 3)
    assert found.bad() == []
    assert not found.known.any()


def test_links_crossed_together_are_one_set():
    """Two links in a row that all the same paths cross are named together."""
    paths = [(0, 1, 2), (0, 1, 3), (0, 1, 4), (5, 2), (5, 3), (5, 4)]
    assert localise(paths, np.array([0.5, 0.5, 0.5, 1.0, 1.0, 1.0]), 6).bad() == [(0, 1)]


@pytest.mark.parametrize(("ratio", "hot"), [(1.49, 0), (1.5, 1)])
def test_a_cell_is_hot_from_one_and_a_half_on(ratio, hot):
    """Where delays hardly scatter the ratio alone decides; when all cells have it, it is congestion."""
    d = np.ones((N, N))
    d[2, 9] = ratio
    assert short(classify(d)) == [("path", 2, 9)] * hot
    assert short(classify(np.full((N, N), ratio))) == [("congestion", None, None)] * hot


@pytest.mark.parametrize(
    ("hot", "measured", "pattern"), [(3, 5, "sender"), (2, 5, "path"), (3, 3, "sender"), (2, 2, "path")]
)
def test_a_row_is_hot_when_three_in_five_of_at_least_three_cells_are(hot, measured, pattern):
    """With fewer, the cells are paths of their own."""
    d = np.ones((N, N))
    d[4] = np.nan
    d[4, 5 : 5 + measured] = 1.0
    d[4, 5 : 5 + hot] = 2.0
    assert {v.pattern for v in classify(d)} == {pattern}


@given(st.permutations(range(N)))
def test_machines_may_be_numbered_in_any_order(order):
    """A slow sender, receiver and path are found under their new numbers."""
    d = delays(6)
    d[4], d[2, 9] = 2.0 * d[4], 4.0
    told = {(v.pattern, v.source, v.target) for v in classify(d[np.ix_(order, order)])}
    assert told == {("sender", order.index(4), None), ("path", order.index(2), order.index(9))}
