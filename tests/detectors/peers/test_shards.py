"""Which slowness is that of a position of the layer, and which is a machine's."""

import numpy as np
import pytest

from detectors.peers.peers import PeerGroups
from detectors.peers.shards import Shards

TP = np.tile(np.arange(4), 8)
NODE = np.arange(32) // 8
CP = NODE // 2
ROLE = np.ones(32, dtype=bool)


def explained(slow, *, by=0.1, role=ROLE, node=NODE, **coords):
    """Return which of the slow ranks a position explains; ``slow`` [ranks] marks them."""
    effect = np.where(slow, by, 0.0) + np.linspace(0, 0.005, 32)
    shards = Shards.from_coords(coords, node)
    return [int(rank) for rank in np.flatnonzero(slow) if shards.explain(effect, int(rank), role)]


def test_all_ranks_of_a_position_have_more_to_do():
    """Alike on all nodes, it is their part of the layer."""
    assert explained(TP == 3, tp=TP) == np.flatnonzero(TP == 3).tolist()
    assert explained((TP == 3) & (NODE != 2), tp=TP) == np.flatnonzero((TP == 3) & (NODE != 2)).tolist()


@pytest.mark.parametrize(
    "slow",
    [np.arange(32) == 5, np.isin(np.arange(32), (1, 5, 9)), np.arange(32) < 8, np.arange(32) % 5 == 0],
)
def test_slow_ranks_are_not_explained(slow):
    """One, a few of a position, a node, or some of every position."""
    assert explained(slow, tp=TP) == []


def test_one_slower_than_its_position_is_not_explained():
    """What it is slow by beyond the others is its own."""
    effect = np.where(TP == 0, 0.08, 0.0)
    effect[8] = 0.24
    shards = Shards.from_coords({"tp": TP}, NODE)
    assert [shards.explain(effect, rank, ROLE) for rank in (0, 8)] == [True, False]


def test_two_machines_are_no_position_and_three_are():
    """Where a position has whole machines, few of them may be slow by themselves."""
    assert explained(CP == 1, cp=CP) == []
    four = np.arange(32) // 4
    assert explained(four % 2 == 1, cp=four % 2, node=four) == np.flatnonzero(four % 2 == 1).tolist()


def test_only_the_same_role_is_asked():
    """Another stage may be cut otherwise."""
    first = np.arange(32) < 16
    slow = (TP == 0) & first
    assert explained(slow, tp=TP, role=first) == np.flatnonzero(slow).tolist()
    assert explained(slow, tp=TP) == []


def test_unknown_positions_explain_nothing():
    """Nor does a dimension in which there is one position."""
    assert explained(TP == 3, tp=np.where(TP == 1, -1, TP)) == []
    assert explained(TP == 3, tp=np.zeros(32, dtype=np.intp)) == []
    assert explained(TP == 3) == []


@pytest.mark.parametrize(("healthy", "is_position"), [((2,), True), ((2, 5), True), ((2, 5, 6), False)])
def test_three_in_four_of_a_position_are_slow(healthy, is_position):
    """A node or two on which it is not slow are exceptions; three of eight are not."""
    node = np.arange(32) // 4
    slow = (TP == 3) & ~np.isin(node, healthy)
    assert explained(slow, tp=TP, node=node) == np.flatnonzero(slow).tolist() * is_position


def test_a_position_of_which_one_rank_is_left_may_explain_it():
    """The other one of its expert was lost: whether that would be as slow is not known."""
    ep, role = np.arange(8) % 4, np.ones(8, dtype=np.bool_)
    shards = Shards.from_coords({"ep": ep}, np.zeros(8, dtype=np.intp))
    effect = np.where(np.arange(8) == 2, 0.2, 0.0)
    assert not shards.explain(effect, 2, role)
    effect[6] = np.nan
    assert shards.explain(effect, 2, role)
    assert not shards.explain(np.roll(effect, 1), 3, np.roll(ep, 1) == 2)
    cut = Shards.from_coords({"tp": ep}, np.zeros(8, dtype=np.intp))
    assert not cut.explain(effect, 2, role)


@pytest.mark.parametrize(("own", "explains"), [(0.10, True), (0.15, True), (0.17, False)])
def test_a_position_explains_twice_what_it_is_slow_by_and_no_more(own, explains):
    """A rank that is slower than that has something of its own."""
    effect = np.where(TP == 0, 0.08, 0.0)
    effect[8] = own
    assert Shards.from_coords({"tp": TP}, NODE).explain(effect, 8, ROLE) == explains


@pytest.mark.parametrize(("more", "explains"), [(0.04, True), (0.06, False)])
def test_ranks_at_a_position_are_alike_by_half_of_what_it_is_slow_by(more, explains):
    """Where three of eight differ by more than that, no position has been found."""
    effect = np.where(TP == 0, 0.10, 0.0)
    effect[[0, 12, 24]] += more
    assert Shards.from_coords({"tp": TP}, NODE).explain(effect, 4, ROLE) == explains


@pytest.mark.parametrize("machines", [(1, 4), (1, 4, 6), (1, 4, 6, 7)])
def test_whole_machines_are_a_position_from_three_on(machines):
    """Two may both be slow by themselves."""
    node = np.arange(32) // 4
    slow = np.isin(node, machines)
    expected = np.flatnonzero(slow).tolist() if len(machines) >= 3 else []
    assert explained(slow, cp=slow.astype(np.intp), node=node) == expected


CONTEXT = np.arange(32) // 2 % 4
MORE = np.array([0.0, 0.1, 0.2, 0.3])


@pytest.mark.parametrize(
    ("usual", "context", "uneven"),
    [
        (MORE[CONTEXT], CONTEXT, True),
        (MORE[CONTEXT] + 0.3 * (np.arange(32) == 5), CONTEXT, True),
        (0.05 * MORE[CONTEXT], CONTEXT, False),
        (0.3 * (NODE == 2), CONTEXT, False),
        (0.3 * (NODE == 3), NODE, False),
        (MORE[NODE], NODE, True),
        (0.3 * np.isin(np.arange(32), (6, 14)), CONTEXT, False),
    ],
    ids=[
        "parts",
        "a slow rank besides",
        "hardly",
        "a node",
        "the part is a node",
        "parts are nodes",
        "ranks",
    ],
)
def test_parts_of_a_sequence_are_uneven_where_their_ranks_agree(usual, context, uneven):
    """On all machines alike, from the start; one machine that has a part alone may be slow."""
    shards = Shards.from_coords({"cp": context}, NODE)
    at = shards.uneven(usual + np.linspace(0, 0.005, 32), PeerGroups.of(np.zeros(32, dtype=np.intp)))
    assert (at is not None) == uneven
