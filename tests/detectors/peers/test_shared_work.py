"""Who gets more work together."""

import numpy as np
import pytest

from detectors.peers.shared_work import MovingWork, SharedWork


def slow(ranks, of=16):
    """Return a mask of some slow ranks."""
    return np.isin(np.arange(of), ranks)


RANK = np.arange(16)
TWO_NODES = RANK // 8


def test_an_expert_of_one_rank_may_have_more_work():
    """No other rank has it, so that no other shows what it costs."""
    work = SharedWork.from_coords({"ep": RANK}, TWO_NODES)
    assert work.may_explain(5, slow([5]), batch_known=True)


def test_an_expert_on_several_machines_shows_by_itself():
    """Its other ranks would be as slow."""
    work = SharedWork.from_coords({"ep": RANK % 8, "dp": RANK // 8}, TWO_NODES)
    assert not work.may_explain(5, slow([5]), batch_known=True)
    assert not work.may_explain(5, slow([5, 13]), batch_known=True)


def test_the_tensor_group_of_an_expert_has_its_work():
    """All of its ranks compute for the same expert."""
    work = SharedWork.from_coords({"ep": RANK // 4, "tp": RANK % 4}, TWO_NODES)
    assert work.may_explain(5, slow([4, 5, 6, 7]), batch_known=True)
    assert not work.may_explain(5, slow([5]), batch_known=True)


def test_one_expert_for_all_is_none():
    """Jobs without experts may report position 0 of one."""
    work = SharedWork.from_coords({"ep": RANK * 0}, TWO_NODES)
    assert not work.may_explain(5, slow([5]), batch_known=False)


def test_the_stages_of_a_replica_share_its_batch():
    """Unless ranks report how much is in it, or not all of them are slow."""
    work = SharedWork.from_coords({"dp": RANK // 4, "pp": RANK % 4}, TWO_NODES)
    assert work.may_explain(9, slow([8, 9, 10, 11]), batch_known=False)
    assert not work.may_explain(9, slow([8, 9, 10, 11]), batch_known=True)
    assert not work.may_explain(9, slow([8, 9, 10]), batch_known=False)


def test_a_replica_that_is_one_machine_may_be_the_machine():
    """Its slowness has a simpler explanation."""
    work = SharedWork.from_coords({"dp": RANK // 8, "pp": RANK % 8}, TWO_NODES)
    assert not work.may_explain(9, slow(range(8, 16)), batch_known=False)


def test_without_coordinates_nothing_is_shared():
    """Nor where single ranks lack them."""
    assert not SharedWork.from_coords({}, TWO_NODES).may_explain(5, slow([5]), batch_known=False)
    some = SharedWork.from_coords({"ep": np.where(RANK == 3, -1, RANK)}, TWO_NODES)
    assert not some.may_explain(5, slow([5]), batch_known=False)


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [([3, 7], True), ([3, 7, 8], True), ([1, 3, 5, 7], True), ([3, 5], False), ([3], False), ([3, 4], False)],
    ids=["a pair", "and one elsewhere", "every second", "another pair", "one", "neighbours"],
)
def test_every_kth_rank_of_a_machine_may_be_a_position_without_coordinates(ranks, expected):
    work = SharedWork.from_numbers(RANK, TWO_NODES)
    assert work.may_explain(3, slow(ranks), batch_known=True) is expected


def test_all_ranks_of_a_machine_are_the_machine():
    work = SharedWork.from_numbers(RANK, TWO_NODES)
    assert not work.may_explain(3, slow(range(8)), batch_known=True)
    assert not work.may_explain(3, slow([0, 1, 2, 3, 4, 6, 7]), batch_known=True)


def test_machines_whose_ranks_are_not_numbered_evenly_have_no_positions():
    """Rank 5 would be a position by itself."""
    work = SharedWork.from_numbers(np.array([0, 2, 4, 5]), np.zeros(4, dtype=np.intp))
    assert not work.may_explain(3, slow([3], of=4), batch_known=True)


def test_a_rank_of_a_smaller_machine_is_no_position_by_itself():
    """Of eight ranks every fourth may be one; of four it is one rank."""
    node = np.repeat([0, 1, 2, 3], [8, 8, 4, 4])
    work = SharedWork.from_numbers(np.arange(24), node)
    assert not work.may_explain(17, slow([17], of=24), batch_known=True)
    assert work.may_explain(17, slow([17, 19], of=24), batch_known=True)
    assert work.may_explain(9, slow([9, 13], of=24), batch_known=True)


def test_a_position_shows_itself_in_two_sets():
    """The same set twice is one, and so is one that grows."""
    moving = MovingWork(SharedWork.from_numbers(RANK, TWO_NODES))
    for ranks in ([3, 7], [3, 7], [1, 3, 5, 7]):
        assert moving.see(3, slow(ranks), 100)
        assert not moving.explains(3, slow(ranks))
    assert not moving.see(9, slow([9, 10]), 200)
    assert moving.see(9, slow([9, 13]), 200)
    assert moving.explains(3, slow([3, 7]))
    assert not moving.explains(3, slow([3]))


def test_a_position_that_was_seen_long_ago_is_forgotten():
    """Two pairs of a machine that fail a week apart are two faults."""
    for later, moved in ((1000, True), (1001, False)):
        moving = MovingWork(SharedWork.from_numbers(RANK, TWO_NODES))
        moving.see(3, slow([3, 7]), 50)
        moving.see(9, slow([9, 13]), 50 + later)
        assert moving.explains(9, slow([9, 13])) == moved
