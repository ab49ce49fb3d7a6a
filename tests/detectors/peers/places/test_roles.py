import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detectors.peers.peers import PeerGroups
from detectors.peers.places.roles import (
    is_one_machine,
    is_regular,
    looks_like_stage,
    roles_from_coords,
    roles_from_times,
    split_by_gap,
)


def test_roles_are_model_and_stage():
    """Ranks of one stage on one GPU model share a role; expert positions split only large groups."""
    pp = np.repeat([0, 1], 8)
    ep = np.tile([0, 1], 8)
    roles = roles_from_coords({"pp": pp, "ep": ep}, ["h100"] * 16)
    assert len(set(roles[:8])) == 1
    assert roles[0] != roles[8]
    mixed = roles_from_coords({"pp": pp}, ["h100"] * 4 + ["a100"] * 12)
    assert len(set(mixed)) == 3


def test_expert_positions_split_groups_that_stay_large():
    """With enough members, ranks are compared with the same expert position."""
    ep = np.tile([0, 1], 10)
    assert len(set(roles_from_coords({"ep": ep}, [""] * 20))) == 2


def test_classes_are_cut_at_wide_gaps():
    """Only gaps wider than asked separate; unread ranks join the fastest."""
    levels = np.array([0.0, 0.01, 0.5, 0.51, np.nan])
    assert split_by_gap(levels, gap=0.1).tolist() == [0, 0, 1, 1, 0]


@pytest.mark.parametrize(
    ("marked", "regular"),
    [
        ([6, 7], True),
        ([4, 5, 6, 7], True),
        ([1, 3, 5, 7], True),
        ([3], False),
        ([2, 5], False),
        ([1, 2], False),
        ([0, 1, 2], False),
        ([0, 1, 4, 5], False),
        ([1, 5], True),
        (list(range(8)), False),
    ],
)
def test_layouts_are_blocks_or_strides(marked, regular):
    """Stages are aligned blocks or residue classes; broken machines fall anywhere."""
    slow = np.zeros(8, dtype=bool)
    slow[marked] = True
    assert is_regular(slow) is regular


def test_no_stage_is_less_than_a_sixteenth_of_the_ranks():
    """A machine of four among more is a machine."""
    assert is_regular(np.arange(64) // 4 == 2)
    assert not is_regular(np.arange(68) // 4 == 2)


@pytest.mark.parametrize(
    ("machine", "others", "expected"),
    [(3, 0.002, True), (0, 0.002, False), (7, 0.002, False), (3, 0.03, False)],
    ids=["between", "first", "last", "stages differ"],
)
def test_a_machine_between_others_that_are_alike_is_no_stage(machine, others, expected):
    """The first and the last stage have other work, and layers that divide unevenly make others differ."""
    node = PeerGroups.of(np.arange(64) // 8)
    levels = np.repeat(others * np.arange(8) / 7, 8)
    levels[node.index == machine] = 0.07
    assert is_one_machine(levels, node.index == machine, node) is expected
    # Neither is a part of it, nor two of them, nor one of a few.
    assert not is_one_machine(levels, np.arange(64) // 4 == 2 * machine, node)
    assert not is_one_machine(levels, np.arange(64) // 16 == machine // 2, node)
    assert not is_one_machine(levels, np.arange(64) // 16 == 1, PeerGroups.of(np.arange(64) // 16))


def test_two_slow_machines_may_stand_like_a_stage():
    """Every 16th of 32 ranks is a stage when both are equally slow, and two slow ranks when they differ."""
    slow = np.isin(np.arange(32), (9, 25))
    levels = np.where(slow, 0.3, 0.0)
    assert looks_like_stage(levels, slow)
    levels[9] = 0.14
    assert not looks_like_stage(levels, slow)
    assert not looks_like_stage(np.where(np.arange(32) == 9, 0.3, 0.0), np.arange(32) == 9)


@pytest.mark.parametrize(("ranks", "roles"), [(10, 2), (8, 1)])
def test_a_finer_role_keeps_four_peers(ranks, roles):
    """Groups are split by expert position where five are left in each, and not where four are."""
    assert len(set(roles_from_coords({"ep": np.arange(ranks) % 2}, ["h100"] * ranks))) == roles


@pytest.mark.parametrize(("other", "stage"), [(1.21, True), (1.19, False), (1.42, True), (1.48, False)])
def test_members_of_a_stage_are_alike_by_half_their_distance(other, stage):
    """What they differ by is compared with how far they stand from all others, at any level."""
    slow = np.isin(np.arange(32), (9, 25))
    levels = np.where(slow, 1.3, 1.0)
    levels[25], levels[2] = other, np.nan
    assert looks_like_stage(levels, slow) == stage


@given(st.lists(st.integers(-20, 20), min_size=1, max_size=12), st.integers(-50, 50), st.randoms())
def test_classes_follow_the_ranks_and_no_level(levels, shift, random):
    """Times of another unit and ranks in another order are cut into the same classes."""
    values, order = np.array(levels, float), random.sample(range(len(levels)), len(levels))
    found = split_by_gap(values, gap=1.5)
    assert split_by_gap(values[order] + shift, gap=1.5).tolist() == found[order].tolist()
    assert sorted(set(found.tolist())) == list(range(found.max() + 1))


@pytest.mark.parametrize(("slow_from", "is_role"), [(0, True), (7, False)])
def test_a_machine_that_slows_while_roles_are_learnt_is_none(slow_from, is_role):
    """A stage has its work from the start; every fourth machine is of a slower model here."""
    nodes = np.repeat(np.arange(12), 8)
    v = 0.01 * np.random.default_rng(4).normal(size=(20, nodes.size)) + 0.14 * (nodes % 4 == 0)
    v[slow_from:, nodes == 6] += 0.56
    roles = roles_from_times(v, PeerGroups.of(nodes), None, floor=0.005)
    assert (roles[nodes == 6] != roles[nodes == 5]).all() == is_role
    assert (roles[nodes == 4] != roles[nodes == 5]).all()


def test_stages_are_found_around_a_slow_machine():
    """Four stages of nine machines differ by a few per cent; one machine of the quickest is slow."""
    random, nodes = np.random.default_rng(8), np.repeat(np.arange(36), 4)
    machines = np.repeat([0.02, -0.025, -0.055, 0.007], 9) + 0.003 * random.normal(size=36)
    machines[20] += 0.14
    v = machines[nodes] + 0.005 * random.normal(size=(20, nodes.size))
    roles = roles_from_times(v, PeerGroups.of(nodes), None, floor=0.005)
    assert roles[::36].tolist() == [3, 1, 0, 2]
    assert (roles == np.repeat(roles[::36], 36)).all()


@pytest.mark.parametrize("seed", range(5))
def test_machines_that_differ_at_random_are_no_stages(seed):
    """Sixteen healthy machines differ by half a per cent for good."""
    random, nodes = np.random.default_rng(seed), np.repeat(np.arange(16), 8)
    v = (0.005 * random.normal(size=16))[nodes] + 0.005 * random.normal(size=(20, nodes.size))
    assert not roles_from_times(v, PeerGroups.of(nodes), None, floor=0.005).any()


@pytest.mark.parametrize(("last", "is_role"), [(3, False), (8, True)])
def test_a_machine_of_a_few_that_is_no_regular_part_is_no_role(last, is_role):
    """Eight ranks are no stage of 27, but may be one of 32."""
    nodes = np.repeat(np.arange(4), (8, 8, 8, last))
    v = 0.01 * np.random.default_rng(4).normal(size=(20, nodes.size)) + 0.2 * (nodes == 1)
    assert roles_from_times(v, PeerGroups.of(nodes), None, floor=0.005).any() == is_role
