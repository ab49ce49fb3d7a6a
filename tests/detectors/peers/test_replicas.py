"""The share of a batch in what ranks take, from the rest of the replica."""

import numpy as np

from detectors.peers.replicas import Replicas

DP = np.tile([0, 0, 1, 1], 4)
NODE = np.arange(16) // 4


def replicas(dp=DP, node=NODE):
    return Replicas.from_coords({"dp": dp, "cp": np.arange(16) // 8}, node)


def test_the_batch_is_what_the_other_nodes_of_the_replica_show():
    """A large batch moves all of its replica; a slow rank, or a slow node, is not explained by itself."""
    ratio = np.where(DP == 1, 0.3, 0.0)
    np.testing.assert_allclose(replicas().batch(ratio), ratio)
    slow_node = np.where(NODE == 2, 0.5, 0.0)
    np.testing.assert_allclose(replicas().batch(slow_node), 0.0)


def test_missing_ranks_count_for_nothing():
    """The batch of a replica is read off those that reported, and is taken as usual where none did."""
    ratio = np.where(DP == 1, 0.3, 0.0)
    ratio[[2, 6]] = np.nan
    assert replicas().batch(ratio)[3] == 0.3
    assert (replicas().batch(np.full(16, np.nan)) == 0).all()


def test_in_a_job_on_one_node_each_rank_stands_for_itself():
    """The rest of the replica is all its other ranks."""
    ratio = np.where(DP == 1, 0.3, 0.0)
    ratio[2] = 0.8
    np.testing.assert_allclose(
        replicas(node=np.zeros(16, dtype=np.intp)).batch(ratio), np.where(DP == 1, 0.3, 0)
    )


def test_no_replicas_without_positions_or_second_nodes():
    """Unknown data-parallel positions, or replicas of one node each, allow no such comparison."""
    assert replicas(dp=np.full(16, -1)) is None
    assert replicas(dp=np.arange(16) // 4) is None


def test_two_nodes_of_a_replica_are_enough():
    """The batch is what the other one of the two shows."""
    dp, node = np.tile([0, 1], 8), np.arange(16) // 8
    ratio = np.where(dp == 1, 0.3, 0.0) + np.where(node == 1, 0.1, 0.0)
    np.testing.assert_allclose(
        replicas(dp, node).batch(ratio), np.where(dp == 1, 0.3, 0.0) + np.where(node == 0, 0.1, 0.0)
    )


def test_a_replica_is_slow_as_a_whole_from_three_quarters_of_its_ranks_on():
    slow = DP == 1
    assert (replicas().whole(slow) == slow).all()
    slow[[2, 3]] = False
    assert (replicas().whole(slow) == (DP == 1)).all()
    slow[6] = False
    assert not replicas().whole(slow).any()
