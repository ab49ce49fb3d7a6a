"""What numbers of their ranks show of whole machines."""

import numpy as np
import pytest

from detectors.peers.node_effects import (
    LATELY,
    alike,
    majorities,
    scatter,
    slowed_majority,
    step_noise,
    suspected,
)
from detectors.peers.peers import PeerGroups


def machines(count, *, ranks=8):
    return PeerGroups.of(np.repeat(np.arange(count), ranks))


def those(ranks, of):
    return np.isin(np.arange(of), list(ranks))


@pytest.mark.parametrize(
    ("suspects", "expected"),
    [
        ({0, 1, 2, 3}, range(8)),
        ({0, 1, 2}, ()),
        ({0, 8, 9, 10, 11, 12}, range(8, 16)),
        (range(16), range(16)),
    ],
)
def test_half_of_a_machine_makes_it_suspect(suspects, expected):
    """All of its ranks, and of no other machine."""
    everyone = PeerGroups.of(np.zeros(32))
    assert np.flatnonzero(suspected(those(suspects, 32), machines(4), everyone)).tolist() == list(expected)


def test_a_role_keeps_somebody_to_be_compared_with():
    """Of a role whose ranks are all suspect none is left out, and of the others those who are."""
    roles = PeerGroups.of([0] * 10 + [1] * 22)
    assert np.flatnonzero(suspected(those(range(16), 32), machines(4), roles)).tolist() == list(range(10, 16))


def test_a_machine_with_most_of_a_role_is_suspected_by_its_ranks_of_others():
    """Of nine ranks of a role six are its own, and in the next it has two."""
    nodes, roles = machines(9), PeerGroups.of(np.arange(72) // 9)
    most = majorities(nodes, roles)
    assert np.flatnonzero(suspected(those({54, 55}, 72), nodes, roles, most)).tolist() == [*range(48, 56)]
    assert not suspected(those({54}, 72), nodes, roles, most).any()
    assert not suspected(those({54, 55}, 72), nodes, roles).any()


def test_what_moves_no_median_is_no_machine():
    """A machine of one rank is that rank, and one machine of seventeen changes nothing."""
    assert not suspected(those({5}, 16), machines(16, ranks=1), PeerGroups.of(np.zeros(16))).any()
    assert not suspected(those(range(8), 136), machines(17), PeerGroups.of(np.zeros(136))).any()
    assert suspected(those(range(8), 128), machines(16), PeerGroups.of(np.zeros(128))).sum() == 8


def test_most_of_a_machine_changes_with_it():
    """Six of its eight ranks have one cause, five do not; the only machine of a job is no cause."""
    assert alike(those(range(6), 16), machines(2), 3).tolist() == those(range(6), 16).tolist()
    assert alike(those(range(5), 16), machines(2), 3).tolist() == those({3}, 16).tolist()
    assert alike(those(range(8), 8), machines(1), 3).tolist() == those({3}, 8).tolist()


def step(shift, *, noise=0.01, ranks=32):
    """Return a step and those before it of ranks on four machines, the step shifted by ``shift`` [ranks]."""
    rng = np.random.default_rng(0)
    before = noise * rng.normal(size=(LATELY, ranks))
    return noise * rng.normal(size=ranks) + shift, before


def test_machines_that_moved_and_stay_are_no_noise():
    """They stay where they were lately, and their ranks together; in the step that moves them all scatter."""
    slow = np.repeat([0.1, 0.1, 0.1, 0.0], 8)
    residual, before = step(slow)
    assert step_noise(residual, before + slow, machines(4), usual=0.01) < 0.02
    assert step_noise(residual, before, machines(4), usual=0.01) == scatter(residual) > 0.05


def test_ranks_that_scatter_are_noise():
    """Where it is not whole machines that moved, and where machines are not distinguished."""
    apart = 0.1 * np.random.default_rng(1).normal(size=32)
    residual, before = step(apart)
    assert step_noise(residual, before + apart, machines(4), usual=0.01) == scatter(residual)
    residual, before = step(slow := np.repeat([0.1, 0.1, 0.1, 0.0], 8))
    for nodes in (machines(16, ranks=2), machines(1, ranks=32)):
        assert step_noise(residual, before + slow, nodes, usual=0.01) == scatter(residual)


def test_what_needs_no_explanation_or_has_none_is_as_it_looks():
    """A scatter that is usual, and a step before which nothing was read."""
    residual, before = step(slow := np.repeat([0.1, 0.1, 0.1, 0.0], 8))
    assert step_noise(residual, before + slow, machines(4), usual=0.2) == scatter(residual)
    assert step_noise(residual, np.full_like(before, np.nan), machines(4), usual=0.01) == scatter(residual)


def test_few_values_do_not_scatter():
    """Of fewer than four read there is no scatter; half of what was read may be wild."""
    assert scatter(np.array([1.0, -1.0, 5.0, np.nan])) == 0.0
    assert scatter(np.array([1.0, -1.0, 5.0, 9.0])) == 1.4826


@pytest.mark.parametrize(
    ("mine", "others", "expected"),
    [(0.3, 0.0, True), (0.3, 0.3, False), (0.0, -0.3, False), (0.03, 0.0, False), (0.2, -0.1, True)],
)
def test_a_machine_with_most_of_a_role_slowed_if_it_fell_behind_by_its_own(mine, others, expected):
    """Not all of a job, not the others that became quicker, and nothing small."""
    nodes, everyone = PeerGroups.of([0] * 8 + [1] * 6), PeerGroups.of(np.zeros(14))
    v = 0.01 * np.random.default_rng(3).normal(size=(60, 14))
    v[-20:, :8] += mine
    v[-20:, 8:] += others
    of = majorities(nodes, everyone)
    assert slowed_majority(v, of).tolist() == [expected] * 8 + [False] * 6
    v[-2] = 0.0
    assert not slowed_majority(v, of).any()


def test_half_of_a_role_or_nearly_all_of_it_is_no_majority():
    for sizes in ((7, 7), (8, 2)):
        nodes = PeerGroups.of(np.repeat([0, 1], sizes))
        assert not majorities(nodes, PeerGroups.of(np.zeros(sum(sizes))))
