"""Ranks of several machines that became slow in one step."""

import numpy as np
import pytest

from detectors.peers.peers import PeerGroups
from detectors.peers.places.risen_together import beside_the_middle, risen_together

NODES = PeerGroups.of(np.repeat(np.arange(6), 4))


def log_seconds(*rises):
    """Return [steps, ranks] in which ranks of each of ``rises`` (ranks, first step, by) are slower."""
    v = 0.02 * np.random.default_rng(3).normal(size=(40, 24))
    for ranks, first, by in rises:
        v[first:, ranks] += by
    return v


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        ([([9, 10], 20, 0.3)], [1, 2, 9, 10]),
        ([([9, 10], 20, 0.27), ([17, 18], 20, 0.33)], [1, 2, 9, 10, 17, 18]),
        ([([9, 10], 20, 0.5)], []),
        ([([9, 10], 30, 0.3)], []),
        ([([8, 10], 20, 0.3)], []),
        ([([8, 9, 10, 11], 20, 0.3)], []),
        ([], []),
    ],
    ids=["two machines", "three", "by more", "later", "at another place", "a whole machine", "alone"],
)
def test_as_much_in_the_same_steps_at_the_same_places_is_together(others, expected):
    found = risen_together(beside_the_middle(log_seconds(([1, 2], 20, 0.3), *others)), 1, NODES)
    assert np.flatnonzero(found).tolist() == expected


def test_noise_may_hide_it_from_a_rank_of_a_machine():
    """Three of four ranks show what all of another machine do."""
    v = log_seconds(([0, 1, 2, 3, 12, 13, 14], 20, 0.3))
    found = risen_together(beside_the_middle(v), 0, NODES)
    assert np.flatnonzero(found).tolist() == [0, 1, 2, 3, 12, 13, 14, 15]


def test_a_rank_that_was_never_read_is_none_of_them():
    v = log_seconds(([1], 20, 0.3), ([9], 20, 0.3))
    v[:, 17] = np.nan
    v[5, 9] = np.nan
    assert np.flatnonzero(risen_together(beside_the_middle(v), 1, NODES)).tolist() == [1, 9]


@pytest.mark.parametrize("seed", range(20))
def test_those_found_are_those_of_the_definition_over_all_ranks(seed):
    """Ranks that need not be looked at are left out of the computation, and change nothing."""
    rng = np.random.default_rng(seed)
    nodes = PeerGroups.of(np.repeat(np.arange(12), [4, 4, *rng.integers(1, 9, 10)]))
    rose = rng.random(nodes.index.size) < 0.7
    rose[4:8] = rose[:4] = [True, *rose[1:4]]
    v = 0.3 * rose * (np.arange(40) >= 20)[:, None] + 0.02 * rng.normal(size=(40, rose.size))
    v[rng.random(v.shape) < 0.05] = np.nan
    x = beside_the_middle(v)
    found = [risen_together(x, rank, nodes).tolist() for rank in range(x.shape[1])]
    assert found == [by_definition(x, rank, nodes).tolist() for rank in range(x.shape[1])]
    assert np.any(found)


def by_definition(x, rank, nodes):
    well, high = np.quantile(x, (0.1, 0.9), axis=0)
    rise, slow = high - well, x > (well + high) / 2
    same = np.mean(slow == slow[:, [rank]], axis=0) >= 0.9
    risen = same & (rise >= 2 / 3 * rise[rank]) & (rise <= 3 / 2 * rise[rank])
    on = (nodes.members >= 0) & risen[nodes.members]
    own = on[nodes.index[rank]]
    alike = (on & own).sum(axis=1) >= 0.75 * (on | own).sum(axis=1)
    together = nodes.members[alike] * own - ~own if alike.sum() > 1 else nodes.members[:0]
    return np.isin(np.arange(x.shape[1]), together[together >= 0])
