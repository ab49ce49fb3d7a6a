"""Which ranks are slow as one group: chosen from what each family of groups leaves unexplained."""

import numpy as np
import pytest

from detectors.straggler.candidate import Candidate
from detectors.straggler.onset_time import Dated
from detectors.straggler.slow_groups import GroupFamilies, SlowGroups, likelihood

RANKS = 64
AT = np.arange(RANKS)
NODE = AT // 8

# Tensor-parallel groups of eight on four nodes each, two ranks on a node.
COORDS = {"dp": AT % 4 + 4 * (AT // 32), "tp": AT // 4 % 8, "pp": 0 * AT, "cp": 0 * AT - 1, "ep": 0 * AT - 1}


def families(coords=COORDS, node=NODE):
    return GroupFamilies.from_coords(coords, node)


def found(rank, effect, *, steps=10):
    """Return a rank found slow ``steps`` ago, with what all ranks show since then."""
    x = np.tile(np.asarray(effect, dtype=float), (steps, 1))
    return Candidate(
        timing="compute", rank=rank, lasting=False, onset=Dated(0.0, 0.0, 0.0), x=x, effect=x[0], sigma=0.01,
        baseline=100,
    )  # fmt: skip


def effects(ranks, by=0.2, *, others=0.0):
    effect = np.full(RANKS, others)
    effect[ranks] = by
    return effect


GROUP = np.flatnonzero(COORDS["dp"] == 5)


@pytest.mark.parametrize("slow", [GROUP, GROUP[:6]], ids=["all", "three quarters"])
def test_most_of_a_group_explain_each_other(slow):
    group = SlowGroups(families()).take(
        found(GROUP[0], effects(GROUP if slow.size == 8 else GROUP[[0, 1, 2, 4, 6, 7]])), 100
    )
    assert group is not None
    assert (group.family, group.members.tolist()) == ("tp", GROUP.tolist())


@pytest.mark.parametrize(
    "slow",
    [
        GROUP[:1],
        GROUP[:5],
        np.union1d(GROUP, np.arange(0, 24, 3)),
        np.arange(32, 40),
        np.arange(32, 64),
    ],
    ids=["one", "five of eight", "others besides", "its node", "all groups of its nodes"],
)
def test_what_a_group_does_not_explain_is_no_group(slow):
    """Machines come first where they have as many slow ranks."""
    assert SlowGroups(families()).take(found(33, effects(slow)), 100) is None


# Pipelines of four stages, two on each machine.
PIPELINES = {"dp": AT // 4, "pp": AT % 4, "tp": 0 * AT - 1, "cp": 0 * AT - 1, "ep": 0 * AT - 1}


def test_a_replica_on_one_machine_is_a_group_unless_all_of_the_machine_is_slow():
    taken = SlowGroups(families(PIPELINES)).take(found(20, effects(np.arange(20, 24))), 100)
    assert taken is not None
    assert (taken.family, taken.members.tolist()) == ("replica", [20, 21, 22, 23])
    assert SlowGroups(families(PIPELINES)).take(found(20, effects(np.arange(16, 24))), 100) is None
    whole = PIPELINES | {"dp": NODE}
    assert SlowGroups(families(whole)).take(found(20, effects(np.arange(16, 24))), 100) is None


@pytest.mark.parametrize(("by", "is_group"), [(0.03, False), (0.05, True)])
def test_a_machine_on_which_a_replica_is_half_as_slow_at_least_is_part_of_it(by, is_group):
    """Its stages are on two machines; batches that are a little longer by chance make the other no part."""
    coords = {"dp": AT // 8, "pp": AT // 4 % 2, "tp": 0 * AT - 1, "cp": 0 * AT - 1, "ep": 0 * AT - 1}
    effect = effects(np.arange(16, 20), 0.08) + effects(np.arange(20, 24), by)
    taken = SlowGroups(families(coords, AT // 4)).take(found(16, effect), 100)
    assert (taken is not None) is is_group


def test_ranks_of_one_machine_that_wait_within_their_compute_are_no_group_here():
    """They are gathered when all of them are found, and one may be slower than the others."""
    coords = PIPELINES | {"pp": 0 * AT - 1, "tp": AT % 4}
    assert not list(families(coords).of(20))


@pytest.mark.parametrize(("unread", "is_group"), [(2, True), (4, True), (5, False)])
def test_what_was_not_read_speaks_against_no_group(unread, is_group):
    """As long as half of its ranks were: some stages may report no compute."""
    effect = effects(GROUP)
    effect[GROUP[8 - unread :]] = np.nan
    assert (SlowGroups(families()).take(found(GROUP[0], effect), 100) is not None) is is_group


def test_who_is_well_again_makes_no_group():
    """A rank that stays slow has been so together with them, and is not any more."""
    one = found(GROUP[0], effects(GROUP), steps=60)
    one.x[-25:, GROUP[1:]] = 0.0
    assert SlowGroups(families()).take(one, 100) is None


def test_ranks_that_were_slow_at_another_time_are_no_part():
    groups = SlowGroups(families())
    for rank in GROUP[:3]:
        assert groups.take(found(rank, effects([rank])), 100) is None
    assert groups.take(found(GROUP[3], effects(GROUP)), 200) is None


def test_ranks_found_at_once_are_together_however_they_are_dated():
    """What is slow on and off may be dated to the time before, of one rank and not of the other."""
    groups = SlowGroups(families())
    assert groups.take(found(GROUP[0], effects(GROUP[:1]), steps=60), 200) is None
    group = groups.take(found(GROUP[1], effects(GROUP), steps=5), 200)
    assert group is not None
    assert group.slow == set(GROUP[:2].tolist())


def test_who_is_found_later_joins_if_it_began_with_the_others():
    groups = SlowGroups(families())
    groups.take(found(GROUP[0], effects(GROUP[:1], 0.3)), 100)
    group = groups.take(found(GROUP[1], effects(GROUP)), 105)
    assert group is not None
    assert group.slow == set(GROUP[:2].tolist())
    assert groups.take(found(GROUP[2], effects(GROUP), steps=30), 128) is group
    assert groups.take(found(GROUP[3], effects(GROUP)), 160) is None
    assert groups.of(int(GROUP[3])) is None


def test_a_group_lasts_until_most_of_it_are_well():
    """The others are slow by themselves then, and told to be examined again."""
    groups, raised = SlowGroups(families()), np.zeros(RANKS, dtype=bool)
    for rank in GROUP:
        groups.take(found(rank, effects(GROUP)), 100)
    raised[GROUP] = True
    assert groups.settle(raised, 101) == []
    raised[GROUP[:5]] = False
    assert [groups.settle(raised, now) for now in (110, 130, 149)] == [[], [], []]
    assert groups.settle(raised, 150) == GROUP[5:].tolist()
    assert not groups.open


def test_a_member_alone_on_its_machine_may_not_show_it_yet():
    """Of a group with one rank on each machine seven of eight suffice. Two that are well on one are none of
    it."""
    strided = {"dp": AT % 8, "tp": 0 * AT, "pp": AT // 8, "cp": 0 * AT - 1, "ep": 0 * AT - 1}
    group = np.flatnonzero(strided["dp"] == 3)
    found_in = SlowGroups(families(strided)).take(found(group[0], effects(group[:7])), 100)
    assert found_in is not None
    assert found_in.members.tolist() == group.tolist()
    assert SlowGroups(families()).take(found(GROUP[0], effects(GROUP[:6])), 100) is None


def test_of_two_groups_of_a_family_either_may_be_well_first():
    one, two = GROUP, np.flatnonzero(COORDS["dp"] == 6)
    groups, raised = SlowGroups(families()), np.zeros(RANKS, dtype=bool)
    for rank in one:
        groups.take(found(rank, effects(one)), 100)
    for rank in two:
        groups.take(found(rank, effects(two)), 300)
    assert len(groups.open) == 2
    raised[one] = True
    assert groups.settle(raised, 310) == []
    assert [group.members.tolist() for group in groups.open] == [one.tolist()]


def test_a_rank_that_relapses_while_its_group_is_slow_is_part_of_it_again():
    groups, raised = SlowGroups(families()), np.zeros(RANKS, dtype=bool)
    for rank in GROUP:
        group = groups.take(found(rank, effects(GROUP)), 100)
    raised[GROUP[1:]] = True
    groups.settle(raised, 130)
    assert groups.of(int(GROUP[0])) is None
    assert groups.take(found(GROUP[0], effects(GROUP)), 200) is group


def test_slow_ranks_of_before_are_a_group_again():
    """Of a job whose ranks changed: nearly all of a group were held slow."""
    groups = SlowGroups(families())
    groups.resume(np.append(GROUP[:6], 3))
    assert [g.members.tolist() for g in groups.open] == [GROUP.tolist()]
    assert groups.of(3) is None


def test_a_machine_that_was_slow_before_a_restart_is_no_group_after_it():
    """Each of its replicas is slow as a whole, and so are the others on it."""
    groups = SlowGroups(families(PIPELINES))
    groups.resume(np.arange(16, 24))
    assert groups.open == []
    groups.resume(np.arange(16, 20))
    assert [g.members.tolist() for g in groups.open] == [[16, 17, 18, 19]]


def test_the_larger_of_two_explanations_is_told():
    """A replica of several stages explains more than each of its pipelines and tensor-parallel groups."""
    coords = {"dp": AT // 4 % 4, "tp": AT % 4, "pp": AT // 16}
    replica = np.flatnonzero(coords["dp"] == 2)
    group = SlowGroups(families(coords)).take(found(replica[0], effects(replica)), 100)
    assert group is not None
    assert (group.family, group.members.tolist()) == ("replica", replica.tolist())
    pipeline = replica[::4]
    group = SlowGroups(families(coords)).take(found(pipeline[0], effects(pipeline)), 100)
    assert group is not None
    assert (group.family, group.members.tolist()) == ("pp", pipeline.tolist())


@pytest.mark.parametrize(
    ("coords", "node"),
    [
        ({"dp": AT // 8, "tp": AT % 8}, NODE),
        ({"dp": AT // 40, "tp": AT % 40}, NODE),
        ({"tp": AT}, NODE),
        ({"pp": 0 * AT, "tp": AT // 4 % 8}, NODE),
        (dict.fromkeys(("dp", "tp", "pp"), 0 * AT - 1), NODE),
    ],
    ids=["on one node", "more than half of the job", "the whole job", "not told apart", "unknown"],
)
def test_no_group_is_made_of_these(coords, node):
    assert not list(families(coords, node).of(0))


def test_expert_groups_divide_the_data_parallel_ranks():
    """Experts 0 ... 15 of every sixteen ranks, as Megatron-LM numbers them."""
    [(family, members)] = [
        f for f in families({"dp": AT, "ep": AT % 16, "pp": 0 * AT}).of(20) if f[0] == "ep"
    ]
    assert (family, members.tolist()) == ("ep", list(range(16, 32)))


def test_the_slowest_is_the_likeliest_as_far_as_noise_allows():
    alike, apart = (
        likelihood(np.array([0.20, 0.201, 0.199]), 0.01),
        likelihood(np.array([0.2, 0.25, 0.1]), 0.01),
    )
    assert alike == pytest.approx([1 / 3] * 3, abs=0.01)
    assert apart.argmax() == 1
    assert apart[1] > 0.99
