"""Ranks of several machines that became slow in one step."""

import numpy as np
import pytest

from detectors.peers.peers import PeerGroups
from detectors.peers.places.risen_together import risen_together

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
    found = risen_together(log_seconds(([1, 2], 20, 0.3), *others), 1, NODES)
    assert np.flatnonzero(found).tolist() == expected


def test_noise_may_hide_it_from_a_rank_of_a_machine():
    """Three of four ranks show what all of another machine do."""
    found = risen_together(log_seconds(([0, 1, 2, 3, 12, 13, 14], 20, 0.3)), 0, NODES)
    assert np.flatnonzero(found).tolist() == [0, 1, 2, 3, 12, 13, 14, 15]


def test_a_rank_that_was_never_read_is_none_of_them():
    v = log_seconds(([1], 20, 0.3), ([9], 20, 0.3))
    v[:, 17] = np.nan
    v[5, 9] = np.nan
    assert np.flatnonzero(risen_together(v, 1, NODES)).tolist() == [1, 9]
