import numpy as np
import pytest

from detectors.peers.peers import PeerGroups
from detectors.peers.places.positions import Positions
from detectors.peers.ratios import Ratios
from detectors.peers.step_times import StepTimes
from detectors.straggler.config import StragglerConfig

STEPS = 60


def logs(ranks, *, seed=0, noise=0.01):
    return np.random.default_rng(seed).normal(0.0, noise, (STEPS, ranks))


def hot(x, where, *, by=0.05, steps=slice(20, 40)):
    x[steps, np.asarray(where, dtype=np.intp if isinstance(where, list) else None)] += by
    return x


def refined(x, *, gpus=8, numbers=None, roles=None):
    ranks = np.arange(x.shape[1])
    numbers = ranks if numbers is None else np.asarray(numbers)
    groups = PeerGroups.of(np.zeros_like(ranks) if roles is None else roles)
    found = Positions.from_numbers(numbers, numbers // gpus).refine(x, groups)
    return None if found is None else found.index.tolist()


@pytest.mark.parametrize(("each", "positions"), [(1, 2), (1, 4), (2, 2), (4, 2)])
def test_an_expert_that_is_popular_for_a_while_shows_its_position(each, positions):
    """Every k-th rank, or every k-th tensor-parallel group of b ranks."""
    at = np.arange(32) // each % positions
    x = hot(hot(logs(32), at == 0), at == 1, steps=slice(45, 60))
    assert refined(x, gpus=4 if each == 1 else 8) == at.tolist()


@pytest.mark.parametrize("seed", range(5))
def test_one_tensor_parallel_group_is_no_position(seed):
    """Its ranks take as long at the same steps; of a role of every second one few positions have two."""
    groups = np.random.default_rng(seed).normal(0.0, 0.01, (STEPS, 22)).repeat(8, axis=1)
    roles = np.arange(176) // 8 % 2
    assert refined(groups + logs(176, noise=0.001), roles=roles) is None


def test_stages_have_experts_of_their_own():
    """One is popular in the first half of the ranks only: all halves of positions are kept apart."""
    ranks = np.arange(64)
    found = refined(hot(logs(64), (ranks < 32) & (ranks % 2 == 0)))
    assert found == (ranks // 32 * 2 + ranks % 2).tolist()


def test_positions_go_by_the_number_of_a_rank_not_by_its_place():
    """With rank 5 lost, those after it stand one place earlier."""
    numbers = np.delete(np.arange(24), 5)
    assert refined(hot(logs(23), numbers % 2 == 1), numbers=numbers) == (numbers % 2).tolist()


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("slow", [[], [3], list(range(8, 16)), [0, 1, 2, 3]])
def test_slow_ranks_and_machines_are_no_position(slow, seed):
    """Noise, one rank, a machine, or half of one, however much slower."""
    assert refined(hot(logs(32, seed=seed), slow, by=0.3)) is None


def test_noise_of_machines_is_no_position():
    """Every second machine is one of four: what machines have in common shows in few of them."""
    rng = np.random.default_rng(1)
    assert (
        refined(logs(32) + np.repeat(rng.normal(0.0, 0.03, 4), 8)[None] * np.linspace(-1, 1, STEPS)[:, None])
        is None
    )


def test_lasting_differences_are_no_position():
    """What never changes is the ranks' usual time."""
    assert refined(logs(32) + 0.1 * (np.arange(32) % 2)) is None


def test_positions_leave_each_rank_three_peers():
    """Of 12 ranks at four positions each has two: they are compared as they are."""
    assert refined(hot(logs(12), np.arange(12) % 4 == 0)) is None


def test_with_coordinates_the_experts_alone_are_positions():
    """Where they are few, their groups may be as small as four."""
    ep, node = np.tile([0, 1], 4), np.zeros(8, dtype=np.intp)
    everyone = PeerGroups.of(node)
    x = hot(logs(8), ep == 1)
    found = Positions.from_coords({"ep": ep}, node).refine(x, everyone)
    assert found is not None
    assert found.index.tolist() == ep.tolist()
    for coords in ({}, {"ep": np.full(8, -1)}, {"ep": np.zeros(8, dtype=np.intp)}):
        assert Positions.from_coords(coords, node).refine(x, everyone) is None


@pytest.mark.parametrize(
    ("roles", "regular"),
    [
        ([0, 1] * 9 + [0, 0], [0, 1] * 10),
        ([0] * 10 + [1] * 9 + [0], [0] * 10 + [1] * 10),
        ([0] * 11 + [1] * 9, [0] * 10 + [1] * 10),
        ([0] * 15 + [1] * 5, None),
        ([0] * 16 + [1] * 4, None),
        ([0] * 20, [0] * 20),
        ([0, 0, 1, 1, 0, 1, 0, 1, 1, 1, 0, 0, 1, 0, 0, 0, 1, 1, 0, 1], None),
    ],
)
def test_few_ranks_are_put_into_the_role_of_their_position(roles, regular):
    """One of 20 that was held up while roles were learnt; roles that follow no positions stay as they are."""
    ranks = np.arange(20)
    found = Positions.from_numbers(ranks, ranks // 4).regular(np.array(roles))
    assert found.tolist() == (regular or roles)


def test_roles_of_whole_machines_are_no_misfits():
    """Two of six machines are of another model; 40 of the 44 ranks would fit other positions too."""
    ranks = np.arange(44)
    roles = np.isin(ranks // 8, (0, 3)).astype(np.intp)
    assert Positions.from_numbers(ranks, ranks // 8).regular(roles).tolist() == roles.tolist()


def test_a_rank_that_a_limit_would_make_as_slow_keeps_the_role_of_its_machine():
    """Two of four machines are under a power limit; the job has three ranks on the last one."""
    ranks = np.arange(27)
    roles = np.isin(ranks // 8, (0, 2)).astype(np.intp)
    found = np.where(ranks == 11, 1, roles)
    assert Positions.from_numbers(ranks, ranks // 8).regular(found).tolist() == roles.tolist()
    # Ranks whose rows name no node have one each, of a negative number.
    unnamed = np.where(ranks < 24, ranks // 8, -1 - ranks)
    assert Positions.from_numbers(ranks, unnamed).regular(found).tolist() == roles.tolist()


def test_a_stage_may_begin_within_a_machine():
    """Machines of two models by turns, and two stages: the first rank of the second one shares a machine."""
    ranks = np.arange(94)
    roles = np.where(ranks < 47, 0, 2) + ranks // 8 % 2
    assert ranks[roles == roles[47]].size > 1
    assert Positions.from_numbers(ranks, ranks // 8).regular(roles).tolist() == roles.tolist()


def test_positions_are_sought_again_when_other_times_are_compared():
    """For some steps no rank reports its compute: roles are learnt anew afterwards, and positions too."""
    at, ratios, nan = np.arange(32) % 2, Ratios(32, None, StragglerConfig()), np.full(32, np.nan)
    work = np.exp(np.vstack([hot(logs(32), at == 0), logs(32)[:6], hot(logs(32, seed=1), at == 1)]))
    for number, compute in enumerate(work):
        step = np.full(32, compute.max() + 0.1)
        reported = nan if STEPS <= number < STEPS + 6 else compute
        ratios.observe(
            StepTimes(
                number=500 + number, ts=np.full(32, 1e9 + number), step=step, compute=reported, wait=nan,
                data=nan, comm=nan, checkpoint=nan, tokens=nan,
            )
        )  # fmt: skip
        ratios.learn()
        if number in (STEPS - 1, len(work) - 1):
            assert ratios.comparison.groups.index.tolist() == at.tolist()
