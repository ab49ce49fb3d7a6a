"""What an attempt has shown of ranks, held against the next: three nodes of four ranks, of one role."""

import numpy as np
import pytest

from detectors.peers.peers import PeerGroups
from detectors.peers.places.attempt_before import AttemptBefore

NODES = PeerGroups.of(np.repeat(np.arange(3), 4))
LAST, PART = np.arange(12) >= 8, np.arange(12) >= 10
LEVEL = AttemptBefore(np.zeros(12, dtype=np.intp), np.zeros(12), np.zeros(12))


@pytest.mark.parametrize(("moved", "same"), [(0.0, True), (0.04, True), (0.06, False), (-0.06, False)])
def test_ranks_that_mostly_take_as_long_do_the_same_work(moved, same):
    assert LEVEL.is_same_work(np.where(LAST, 0.3, moved)) is same


@pytest.mark.parametrize(
    ("slow", "ratio", "since"),
    [
        (LAST, 0.0, True),
        (LAST, 0.09, True),
        (LAST, 0.11, False),
        (LAST, np.nan, False),
        (PART, 0.0, False),
        (~LAST, 0.0, False),
        (LAST & False, 0.0, False),
    ],
    ids=["level", "a little", "half as slow", "not known", "half a node", "two nodes", "nobody"],
)
def test_a_whole_node_that_was_level_has_slowed_since(slow, ratio, since):
    before = AttemptBefore(LEVEL.roles, LEVEL.levels, np.full(12, ratio))
    assert before.slowed_since(slow, NODES, size=0.2) is since


@pytest.mark.parametrize(
    ("now", "kept"),
    [(LAST, True), (LAST & False, True), (PART, False), (~LAST, True), (np.arange(12) % 4 == 3, False)],
    ids=["one node", "none", "half a node", "all but one", "one rank of each"],
)
def test_roles_of_before_hold_unless_more_than_a_node_differs(now, kept):
    roles = now.astype(np.intp)
    assert (LEVEL.unless_one_node(roles, NODES) is LEVEL.roles) is kept


def test_a_node_that_was_not_there_may_have_other_work():
    stayed = (~LAST).tolist()
    roles = LAST.astype(np.intp)
    assert LEVEL.of_those(stayed).unless_one_node(roles, NODES) is roles


def test_a_role_of_its_own_that_was_slow_before_has_not_slowed_since():
    before = AttemptBefore(LAST.astype(np.intp), np.where(LAST, 0.2, 0.0), np.zeros(12))
    assert not before.slowed_since(LAST, NODES, size=0.2)
