"""Votes of groups: the group that shares a delay, the rank in all slow groups, none without a pattern."""

import numpy as np
import pytest

from detectors.job.group_votes import GroupVotes

DP, PP, TP = 8, 4, 4
SHAPE = (PP, DP, TP)


def coords(shape=SHAPE):
    pp, dp, tp = np.unravel_index(np.arange(np.prod(shape)), shape)
    return {"dp": dp, "pp": pp, "tp": tp, "cp": np.full(pp.size, -1)}


def seconds(seed=0, *, groups=(), ranks=(), factor=1.5, noise=0.02):
    """Transfers of 0.1 s with noise; slow DP groups as (pp, tp) and slow single ranks."""
    rng = np.random.default_rng(seed)
    at = coords()
    out = 0.1 * np.exp(rng.normal(0, noise, at["pp"].size))
    for pp, tp in groups:
        out[(at["pp"] == pp) & (at["tp"] == tp)] *= factor
    out[list(ranks)] *= factor
    return out


def after(rounds, *, voters=None, **what):
    votes = voters or GroupVotes(coords())
    for r in range(rounds):
        ballot = votes.round(seconds(r, **what))
    return ballot


def test_a_slow_data_parallel_group_is_found_after_four_rounds():
    """All replicas of one stage and shard transfer slowly: that group, and each of its ranks alike."""
    assert after(3, groups=[(2, 1)]).groups == ()
    ballot = after(4, groups=[(2, 1)])
    at = coords()
    (found,) = ballot.groups
    assert found.dimension == "dp"
    assert found.members.tolist() == np.flatnonzero((at["pp"] == 2) & (at["tp"] == 1)).tolist()
    assert found.ratio == pytest.approx(1.5, rel=0.1)
    assert ballot.suspects().tolist() == found.members.tolist()
    assert ballot.probability.sum() == pytest.approx(1.0)


def test_the_rank_in_two_slow_groups_is_the_culprit():
    """Where its tensor group is slow as well, one rank is left."""
    at = coords()
    votes = GroupVotes(at)
    tensor = np.flatnonzero((at["pp"] == 2) & (at["dp"] == 5))
    for r in range(5):
        values = seconds(r, groups=[(2, 1)])
        values[tensor] = np.maximum(values[tensor], 0.15)
        ballot = votes.round(values)
    (culprit,) = ballot.suspects()
    assert (at["pp"][culprit], at["dp"][culprit], at["tp"][culprit]) == (2, 5, 1)
    assert ballot.probability[culprit] > 0.9


@pytest.mark.parametrize("seed", range(5))
def test_healthy_transfers_name_no_rank(seed):
    """Noise of 5 % leads to no slow group in fifty rounds."""
    votes = GroupVotes(coords())
    assert not any(votes.round(seconds(100 * seed + r, noise=0.05)).groups for r in range(50))


def test_one_slow_rank_is_not_a_slow_group():
    """A rank whose own transfers take long does not make its groups slow."""
    assert after(8, ranks=[17]).groups == ()


def test_what_most_groups_share_is_no_groups():
    """Congestion that slows half of the groups names none."""
    assert after(8, groups=[(p, t) for p in range(4) for t in (0, 1)]).groups == ()


def test_a_slow_stage_is_not_a_slow_group():
    """Groups are compared within their stage: one that transfers more in all its groups is no fault."""
    assert after(8, groups=[(3, t) for t in range(TP)]).groups == ()


def test_recovery_takes_the_votes_back():
    """Two quiet rounds end it."""
    votes = GroupVotes(coords())
    after(5, voters=votes, groups=[(1, 1)])
    assert after(2, voters=votes).groups == ()


def test_unread_ranks_are_no_evidence():
    """Ranks without transfer times neither vote nor hide the slow group."""
    votes = GroupVotes(coords())
    for r in range(5):
        values = seconds(r, groups=[(2, 1)])
        values[::5] = np.nan
        ballot = votes.round(values)
    assert [g.dimension for g in ballot.groups] == ["dp"]
    assert votes.round(np.full(DP * PP * TP, np.nan)).probability.sum() == pytest.approx(1.0)


def test_too_few_groups_to_compare():
    """A job of one dimension has one group, and nothing to compare it with."""
    assert not GroupVotes(coords((1, 64, 1))).able
    assert not GroupVotes({}).able


@pytest.mark.parametrize(("factor", "slow"), [(1.14, 0), (1.16, 1)])
def test_a_group_is_slow_from_fifteen_per_cent_on(factor, slow):
    """Where transfers hardly scatter, less is nothing."""
    ballot = after(4, groups=[(2, 1)], factor=factor, noise=0.001)
    assert len(ballot.groups) == slow
    assert ballot.suspects().size == DP * slow


@pytest.mark.parametrize(("more", "slow"), [([], 4), ([(0, 2)], 0)])
def test_a_quarter_of_the_groups_may_be_slow(more, slow):
    """What more of them share is not theirs."""
    assert len(after(4, groups=[(0, 0), (1, 1), (2, 2), (3, 3), *more]).groups) == slow


def test_a_dimension_of_which_one_position_is_not_reported_is_left_out():
    """Without the shards, a replica that transfers slowly is one group of its stages."""
    at = coords()
    votes = GroupVotes(at | {"tp": np.where(np.arange(at["tp"].size) == 5, -1, at["tp"])})
    for r in range(4):
        ballot = votes.round(np.where(at["dp"] == 5, 1.5, 1.0) * seconds(r))
    (found,) = ballot.groups
    assert (found.dimension, found.members.tolist()) == ("pp", np.flatnonzero(at["dp"] == 5).tolist())
