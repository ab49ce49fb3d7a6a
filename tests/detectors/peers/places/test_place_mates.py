"""Whether ranks at one place of several machines are slow for what they do there."""

import numpy as np
import pytest

from detectors.peers.peers import PeerGroups
from detectors.peers.places.place_mates import PlaceMates
from detectors.peers.step_times import StepTimes
from detectors.straggler.slow_groups import GroupFamilies
from detectors.straggler.step_detector import StragglerDetector

PER_NODE = 8


def accused(compute, *, roles):
    """Return the ranks of ``compute`` [steps, ranks] that are found slow, for good or on and off."""
    ranks = compute.shape[1]
    node = np.arange(ranks) // PER_NODE
    core = StragglerDetector(ranks, np.zeros(ranks, dtype=np.intp) if roles else None, nodes=node)
    nan, out = np.full(ranks, np.nan), set[int]()
    for number, work in enumerate(compute):
        step = np.full(ranks, work.max() + 0.1)
        times = StepTimes(
            number=500 + number, ts=np.full(ranks, 1e9 + 2.0 * number), step=step, compute=work,
            wait=step - work - 0.1, data=nan, comm=nan, checkpoint=nan, tokens=nan,
        )  # fmt: skip
        result = core.update(times)
        out |= {slow.rank for slow in (*result.slow, *result.intermittent)}
    return out


def saving(writers, *, nodes, steps, factor=1.25, every=45):
    """Return compute [steps, ranks]: ``writers`` take longer for some ``steps`` again and again."""
    compute = np.exp(0.008 * np.random.default_rng(5).normal(size=(320, nodes * PER_NODE)))
    since = np.arange(320) % every
    now = np.flatnonzero((np.arange(320) >= every) & (since < steps))
    compute[np.ix_(now, writers)] *= factor
    return compute


@pytest.mark.parametrize("roles", [True, False])
@pytest.mark.parametrize("steps", [2, 4, 9])
@pytest.mark.parametrize("nodes", [2, 4])
def test_the_first_ranks_of_all_nodes_may_save_in_the_background(roles, steps, nodes):
    """What all first ranks do in the same steps is the job's way to save."""
    writers = list(range(0, nodes * PER_NODE, PER_NODE))
    assert accused(saving(writers, nodes=nodes, steps=steps), roles=roles) == set()


@pytest.mark.parametrize("roles", [True, False])
@pytest.mark.parametrize("steps", [2, 4, 9])
def test_one_of_them_alone_is_named(roles, steps):
    """Its mates are well in the same steps: they do no such thing."""
    assert accused(saving([8], nodes=4, steps=steps), roles=roles) == {8}


@pytest.mark.parametrize("steps", [4, 320])
def test_two_of_many_at_one_place_are_both_named(steps):
    """Two of eight machines may fail, and what is done at a place is done on most of them."""
    both = saving([8, 40], nodes=8, steps=steps, every=45 if steps < 45 else 100)
    assert accused(both, roles=True) == {8, 40}


@pytest.mark.parametrize(("size", "expected"), [(0.02, True), (0.2, False)])
def test_of_small_effects_one_mate_may_rise_by_chance(size, expected):
    """In noise of 1 % one rank in six is 1 % above its usual ratio in any step, none is a tenth above."""
    x = 0.01 * np.random.default_rng(1).normal(size=(200, 16))
    places = PlaceMates(PeerGroups.of(np.arange(16) // PER_NODE), None)
    assert places.by_chance(0, x, 1, size=size, rose=1) is expected


def test_before_anything_is_known_of_others_all_may_be_chance():
    """Of three steps no block can be told from another."""
    places = PlaceMates(PeerGroups.of(np.arange(16) // PER_NODE), None)
    assert places.by_chance(0, np.zeros((3, 16)), 3, size=1.0, rose=1)


def test_the_others_of_its_replica_are_no_mates():
    """Each stage is a node, and each replica one rank of every node: all wait for the slow one of them."""
    node = np.arange(32) // PER_NODE
    families = GroupFamilies.from_coords({"dp": np.arange(32) % PER_NODE, "pp": node}, node)
    assert not PlaceMates(PeerGroups.of(node), families).of(0).any()
    assert np.flatnonzero(PlaceMates(PeerGroups.of(node), None).of(0)).tolist() == [8, 16, 24]


def test_ranks_of_machines_that_rose_as_a_whole_are_no_company():
    """A machine may be slow beside the rank of another."""
    rise = np.zeros(32)
    rise[[0, *range(8, 16)]] = 0.2
    places = PlaceMates(PeerGroups.of(np.arange(32) // PER_NODE), None)
    assert not places.rose(0, rise, size=0.2, least=0.1).any()
    rise[9:16] = 0.0
    assert np.flatnonzero(places.rose(0, rise, size=0.2, least=0.1)).tolist() == [8]


@pytest.mark.parametrize(
    ("slow", "replicas", "expected"),
    [([1, 9, 17], 4, True), ([1, 9, 18], 4, False), ([1, 9, 17], 1, False)],
    ids=["one replica", "two replicas", "all of the job"],
)
def test_ranks_of_one_group_over_several_machines(slow, replicas, expected):
    """A group of which all ranks are distinguishes none of them."""
    rank = np.arange(4 * PER_NODE)
    coords = {"dp": rank % replicas, "pp": rank // replicas}
    places = PlaceMates(PeerGroups.of(rank // PER_NODE), GroupFamilies.from_coords(coords, rank // PER_NODE))
    assert places.in_one_group(np.isin(rank, slow)) is expected
