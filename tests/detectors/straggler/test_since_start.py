"""Ranks slower than their peers since the first step are named in some steps, warm-up or not."""

import numpy as np
import pytest

from detectors.peers.shared_work import SharedWork
from detectors.peers.step_times import StepTimes
from detectors.straggler.step_detector import StragglerDetector

RANKS = 16
ROLES = np.zeros(RANKS, dtype=np.intp)
NODES = np.arange(RANKS) // 4
SLOW = np.arange(RANKS) == 5


def job(factor, *, steps=40, noise=0.02, seed=1, warmup=3.0):
    """Return compute seconds [steps, ranks]: ``factor`` [ranks] lasts, ten steps are slow for all."""
    rng = np.random.default_rng(seed)
    compute = np.exp(noise * rng.normal(size=(steps, RANKS))) * factor
    compute[:10] *= np.linspace(warmup, 1.0, 10)[:steps, None]
    return compute


def detector(roles=ROLES, **of):
    """Return a detector of ranks on nodes of four."""
    return StragglerDetector(RANKS, roles, nodes=NODES, **of)


def named(core, compute, *, tokens=None, wait=None, data=None):
    """Return the number of the step in which each rank was found slow, the first one is 1.

    ``tokens`` are [ranks] or [steps, ranks], ``data`` seconds of each rank.
    """
    ranks = compute.shape[1]
    nan = np.full(ranks, np.nan)
    found: dict[int, int] = {}
    for number, work in enumerate(compute):
        times = StepTimes(
            number=number,
            ts=np.full(ranks, 1e9 + 2.0 * number),
            step=np.full(ranks, work.max() + 0.1),
            compute=work,
            wait=nan if wait is None else wait[number],
            data=nan if data is None else data,
            comm=nan,
            checkpoint=nan,
            tokens=nan if tokens is None else np.broadcast_to(tokens, compute.shape)[number],
        )
        for slow in core.update(times).slow:
            assert slow.lasting
            found.setdefault(slow.rank, number + 1)
    return found


@pytest.mark.parametrize("roles", [ROLES, None], ids=["roles", "no coordinates"])
def test_a_rank_at_twice_its_peers_is_named_in_three_steps(roles):
    """In the middle of warm-up, and it needs no second kind of evidence."""
    core = detector(roles)
    assert named(core, job(np.where(SLOW, 2.35, 1.0), steps=8)) == {5: 3}
    assert core.is_alone("compute", 5)


def test_a_rank_at_less_than_twice_its_peers_is_named_in_five_steps():
    """The first steps of one rank by itself may be slower."""
    assert named(detector(), job(np.where(SLOW, 1.8, 1.0), steps=8)) == {5: 5}


def test_a_smaller_slowdown_takes_as_many_steps_as_its_evidence():
    """Uneven work may make as much of a difference for some steps."""
    assert named(detector(), job(np.where(SLOW, 1.4, 1.0), steps=20, noise=0.05)) == {5: 11}


@pytest.mark.parametrize("factor", [1.12, 1.3])
def test_in_steady_work_a_smaller_slowdown_is_named_in_five_steps(factor):
    """No batch explains it."""
    assert named(detector(), job(np.where(SLOW, factor, 1.0), steps=20, noise=0.005)) == {5: 5}


def test_in_steady_work_all_of_few_steps_must_be_slow():
    """One rank by itself is quick in the fourth step: the evidence waits for the eighth."""
    compute = job(np.where(SLOW, 1.3, 1.0), steps=20, noise=0.005)
    compute[3, 5] /= 1.3
    assert named(detector(), compute) == {5: 8}


def test_a_machine_that_is_slower_by_as_much_as_a_power_limit_explains_is_left_to_many_steps():
    """A single rank of it is not limited by itself."""
    assert named(detector(), job(np.where(NODES == 1, 1.07, 1.0), steps=20, noise=0.003)) == {}
    found = named(detector(), job(np.where(NODES == 1, 1.12, 1.0), steps=20, noise=0.003))
    assert found == dict.fromkeys(range(4, 8), 5)
    loads = np.where(NODES == 1, 0.09, 0.01)
    found = named(detector(), job(1.0, steps=20, noise=0.003, warmup=1.0), data=loads)
    assert found == dict.fromkeys(range(4, 8), 5)


def test_half_of_a_role_on_one_machine_is_slow_and_not_the_others_quick():
    """What is usual comes from the faster part of a role; mates at another stage show nothing."""
    core = detector(np.arange(RANKS) // 8)
    assert named(core, job(np.where(NODES == 1, 1.8, 1.0), steps=8)) == dict.fromkeys(range(4, 8), 5)


@pytest.mark.parametrize("slow", [SLOW, NODES == 1], ids=["rank", "machine"])
def test_loading_that_takes_longer_since_the_start_is_named_in_five_steps(slow):
    """Whatever the work is."""
    core = detector()
    found = named(core, job(1.0, steps=8, noise=0.1, warmup=1.0), data=np.where(slow, 0.4, 0.01))
    assert found == dict.fromkeys(np.flatnonzero(slow).tolist(), 5)
    assert {held.timing for held in core.held()} == {"data"}


def test_it_stays_one_finding_and_recovers():
    """After warm-up the usual evidence takes over; twenty quick steps end it."""
    core, slow = detector(), job(np.where(SLOW, 2.35, 1.0), steps=80, noise=0.005)
    assert named(core, slow) == {5: 3}
    assert [held.rank for held in core.held()] == [5]
    assert named(core, job(1.0, steps=40, seed=2, warmup=1.0, noise=0.005)) == {}
    assert list(core.held()) == []


def test_the_first_step_may_be_filled_with_compilation():
    """It takes all ranks a minute, of which a slow rank's work is little."""
    compute = job(np.where(SLOW, 2.35, 1.0), steps=8)
    compute[0] += 60.0
    assert named(detector(), compute) == {5: 5}


def test_a_slow_machine_is_named_with_all_its_ranks():
    """Ranks of one machine are one cause."""
    assert named(detector(), job(np.where(NODES == 1, 1.8, 1.0), steps=8)) == dict.fromkeys(range(4, 8), 5)


@pytest.mark.parametrize(
    ("factor", "about"),
    [
        (np.ones(RANKS), "healthy"),
        (np.where(NODES % 2 == 1, 1.8, 1.0), "two machines of four: a class of them"),
        (np.exp(0.35 * np.random.default_rng(3).normal(size=RANKS)), "ranks that all differ"),
    ],
    ids=lambda about: about if isinstance(about, str) else "",
)
def test_nothing_is_named_early(factor, about):
    """What may be benign is left to the evidence of many steps."""
    assert named(detector(), job(factor, steps=20)) == {}


def test_a_rank_that_is_slow_in_some_of_the_first_steps_is_not_named_early():
    """It loads, compiles or saves."""
    compute = job(1.0, steps=20)
    compute[[0, 1, 3, 5, 8], 5] *= 2.35
    assert named(detector(), compute) == {}


def test_work_explains_what_it_explains():
    """A rank with twice the tokens is not slow; one with as many as the others is."""
    tokens = np.where(SLOW, 2000.0, 1000.0)
    factor = np.where(SLOW, 2.0, 1.0) * np.where(np.arange(RANKS) == 11, 2.0, 1.0)
    assert named(detector(), job(factor, steps=8), tokens=tokens) == {11: 5}


def test_amounts_that_vary_from_step_to_step_hide_no_slow_machine():
    """What they explain is fitted as soon as there are enough of them."""
    amounts = np.exp(0.3 * np.random.default_rng(5).normal(size=(20, 4)))[:, NODES]
    compute = job(np.where(NODES == 1, 1.8, 1.0), steps=20) * amounts
    assert named(detector(), compute, tokens=1000 * amounts) == dict.fromkeys(range(4, 8), 5)
    assert named(detector(), job(1.0, steps=20) * amounts, tokens=1000 * amounts) == {}


@pytest.mark.parametrize("factor", [1.3, 1.8])
def test_without_coordinates_equal_amounts_show_that_a_machine_is_no_stage(factor):
    """A stage has ranks in every replica. Where all amounts are alike, machine and stage look the same."""
    amounts = np.exp(0.1 * np.random.default_rng(5).normal(size=(60, 4)))[:, NODES]
    slow = job(np.where(NODES == 1, factor, 1.0), steps=60, noise=0.005)
    assert named(detector(None), slow * amounts, tokens=1000 * amounts).keys() == {4, 5, 6, 7}
    assert named(detector(None), slow, tokens=np.full(RANKS, 1000.0)) == {}


@pytest.mark.parametrize(
    ("machines", "factor", "expected"),
    [((1, 7), 1.6, True), ((1, 8), 1.6, False), ((2, 3), 1.6, False), ((1, 7), 1.2, False)],
    ids=["one", "two", "a rack", "longer sequences"],
)
def test_one_of_six_replicas_may_be_slow_since_the_start(machines, factor, expected):
    """Two machines that stand apart are one replica seldom by chance; two neighbours may be of one rack, and
    tokens leave some tenths of the work unexplained."""
    machine = np.arange(48) // 4
    of_six = np.where(machine < 12, machine // 2 if machines == (2, 3) else machine % 6, 0)
    amounts = np.exp(0.1 * np.random.default_rng(5).normal(size=(60, 6)))[:, of_six]
    compute = np.exp(0.005 * np.random.default_rng(6).normal(size=(60, 48))) * amounts
    slow = np.isin(machine, machines)
    compute[: 20 if factor < 1.5 else 60, slow] *= factor
    found = named(StragglerDetector(48, None, nodes=machine), compute, tokens=1000 * amounts)
    assert found == (dict.fromkeys(np.flatnonzero(slow).tolist(), 5) if expected else {})


def test_without_coordinates_a_stage_that_all_replicas_have_is_not_named():
    """Its ranks report the amounts of all replicas."""
    amounts = np.exp(0.1 * np.random.default_rng(5).normal(size=(60, 4)))[:, np.arange(RANKS) % 4]
    stage = job(np.where(NODES == 1, 1.3, 1.0), steps=60, noise=0.005)
    assert named(detector(None), stage * amounts, tokens=1000 * amounts) == {}


def test_a_small_slowdown_among_uneven_ranks_is_left_to_many_steps():
    """Evidence with a known noise finds it."""
    assert named(detector(), job(np.where(SLOW, 1.12, 1.0), steps=20, noise=0.05)) == {}


def test_one_that_waits_longer_than_its_mates_is_no_culprit():
    """Some time that it waits is within its compute."""
    compute = job(np.where(SLOW, 2.35, 1.0), steps=20)
    wait = np.broadcast_to(np.where(SLOW, 3.0, 0.1), compute.shape)
    assert named(detector(), compute, wait=wait) == {}


def test_experts_without_counts_may_have_more_work_from_the_start():
    """A hot expert cannot be distinguished from a slow rank in a few steps."""
    experts = SharedWork.from_coords({"ep": np.arange(RANKS)}, NODES)
    assert named(detector(shared_work=experts), job(np.where(SLOW, 2.35, 1.0), steps=8)) == {}


def test_an_expert_that_is_quick_on_another_machine_has_no_more_work():
    """Ranks of one machine are slow, those with the same experts elsewhere are not."""
    experts = SharedWork.from_coords({"ep": np.arange(RANKS) % 2}, NODES)
    found = named(detector(shared_work=experts), job(np.where(NODES == 1, 2.35, 1.0), steps=8))
    assert found == dict.fromkeys(range(4, 8), 3)


def test_an_infinite_amount_of_one_rank_hides_no_other():
    """It is as one that was not reported."""
    tokens = np.where(np.arange(RANKS) == 2, np.inf, 4096.0)
    assert named(detector(), job(np.where(SLOW, 2.35, 1.0), steps=8), tokens=tokens) == {5: 3}
