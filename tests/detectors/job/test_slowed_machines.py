"""Most machines of a job that became slow at one moment: found beside those that did not, by the past."""

import numpy as np
import pytest

from detectors.job.slowed_machines import STEPS, SlowedMachinesWatch
from detectors.peers.peers import PeerGroups

RANKS, PER_NODE = 64, 8
NODE = np.arange(RANKS) // PER_NODE
NOBODY = np.zeros(RANKS, dtype=np.bool_)
SCATTERED = (0, 2, 5, 6, 7)


def logs(by_node, *, steps=100, onset=60, until=None, noise=0.01, seed=0):
    """Logs of seconds of ranks whose nodes are slower by a factor from the onset on."""
    v = np.random.default_rng(seed).normal(0.0, noise, (steps, RANKS))
    for node, factor in by_node.items():
        v[onset:until, node == NODE] += np.log(factor)
    return v


def look(v, *, roles=None, slow=NOBODY):
    """Return what a watch that looks every five steps holds in the end."""
    watch, found = SlowedMachinesWatch(), None
    for n in range(5, len(v) + 1, 5):
        found = watch.look(v[:n][-STEPS:], PeerGroups.of(NODE), slow, roles=roles)
    return found


@pytest.mark.parametrize("nodes", [SCATTERED, (0, 1, 3, 4, 6, 7), (0, 3, 5, 6)])
@pytest.mark.parametrize("factor", [1.08, 1.2, 2.0])
@pytest.mark.parametrize("steps", [75, 100, 400])
def test_most_nodes_that_become_slow_are_found_with_their_effect(nodes, factor, steps):
    """At once and for as long as they are slow, though the steps before it are no longer looked at."""
    v = logs(dict.fromkeys(nodes, factor), steps=steps)
    found = look(v)
    assert np.unique(NODE[found.ranks]).tolist() == list(nodes)
    assert np.exp(found.effect) == pytest.approx(factor, rel=0.02)
    first = np.flatnonzero(found.high(v, PeerGroups.of(NODE)))[0]
    assert 58 <= first <= 62


@pytest.mark.parametrize(
    "by_node",
    [
        {},
        dict.fromkeys(range(8), 1.2),
        dict.fromkeys((1, 4), 1.2),
        dict.fromkeys((0, 2, 5, 6, 7), 1.03),
        dict.fromkeys((1, 3, 4), 1 / 1.2),
        dict.fromkeys(range(7), 1.2),
        {0: 1.1, 1: 1.15, 2: 1.2, 3: 1.25, 4: 1.3, 5: 1.35},
        dict.fromkeys(SCATTERED, 1.3) | dict.fromkeys((1, 3, 4), 1.15),
    ],
    ids=[
        "nothing",
        "all",
        "few",
        "little",
        "the others are quicker",
        "all but one",
        "by unlike amounts",
        "all, unlike",
    ],
)
def test_nothing_else_is_taken_for_it(by_node):
    assert look(logs(by_node)) is None


@pytest.mark.parametrize("seed", range(20))
def test_noise_is_none(seed):
    """Not of whole nodes either, which differs from step to step and drifts."""
    rng = np.random.default_rng(seed)
    of_node = rng.normal(0.0, 0.03, (300, 8)) + np.cumsum(rng.normal(0.0, 0.004, (300, 8)), axis=0)
    assert look(logs({}, steps=300, noise=0.03, seed=seed) + of_node[:, NODE]) is None


def test_it_ends_with_the_slowness():
    v = logs(dict.fromkeys(SCATTERED, 1.2), steps=200, until=140)
    assert look(v[:140]) is not None
    assert look(v) is None


def test_ranks_that_are_slow_by_themselves_explain_it():
    slow = NOBODY.copy()
    slow[NODE == 2] = True
    assert look(logs(dict.fromkeys(SCATTERED, 1.2)), slow=slow) is None


@pytest.mark.parametrize("roles", [np.isin(NODE, SCATTERED), NODE])
def test_what_roles_have_in_common_is_their_work(roles):
    v = logs(dict.fromkeys(SCATTERED, 1.2))
    assert look(v, roles=roles.astype(np.intp)) is None
    assert look(v, roles=np.arange(RANKS) % 2) is not None


@pytest.mark.parametrize("nodes", [range(4), range(4, 8), (0, 1, 4, 5)])
def test_a_stage_that_no_coordinates_tell_may_have_more_work(nodes):
    """The ranks of one half, or every second pair of nodes."""
    found = look(logs(dict.fromkeys(nodes, 1.2)))
    assert (found is None) == (tuple(nodes) != (0, 1, 4, 5))
