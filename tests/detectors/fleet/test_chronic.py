"""GPUs that are a little slow in job after job."""

import doctest
import random
from statistics import fmean, stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

import detectors.fleet.chronic
from detectors.fleet.chronic import Day, Fleet, Machine, chronic, fleet_of

DAY = 86_400.0
T0 = 20_775 * DAY


def drawn(machines=1000, days=28, *, spread=0.005, noise=0.001, seed=0, slow=None, shared=0.0):
    """Days of a fleet in jobs of three days; ``slow``: machine -> (day it begins, log ratio, jobs or all).

    Of the machines a share of ``shared`` runs jobs in which all differ four times as much, job by job.
    """
    rng = random.Random(seed)
    found = []
    for m in range(machines):
        usual, machine = rng.gauss(0, spread), Machine("c", f"n{m // 8}", m % 8)
        in_job, told = 0.0, spread
        for day in range(days):
            job = f"j{(day + m % 3) // 3}-{m // 64}"
            if m < shared * machines and (day + m % 3) % 3 == 0:
                in_job, told = rng.gauss(0, 4 * spread), 4 * spread
            ratio = usual + in_job + rng.gauss(0, noise)
            begins, size, jobs = (slow or {}).get(m, (days, 0.0, None))
            if day >= begins and (jobs is None or job in jobs):
                ratio += size
            found.append(
                Day(
                    machine=machine,
                    job=job,
                    rank=rng.randrange(64),
                    at=T0 + day * DAY,
                    hours=24,
                    log_ratio=ratio,
                    spread=told,
                )
            )
    return found


def fleet(days):
    """The store's rows of all machines, taken together."""
    by: dict[Machine, list[float]] = {}
    for day in days:
        by.setdefault(day.machine, []).append(day.log_ratio)
    usual = fleet_of([(fmean(mine), stdev(mine) if len(mine) > 1 else None) for mine in by.values()])
    assert usual is not None
    return usual


def named(days, usual=None):
    return chronic(days, usual or fleet(days))


@pytest.mark.slow
@pytest.mark.parametrize("spread", [0.002, 0.005, 0.02])
@pytest.mark.parametrize("seed", range(4))
def test_a_healthy_fleet_names_none(seed, spread):
    """Of 1,000 healthy GPUs in 28 days none is slow for good, however much they differ."""
    assert named(drawn(spread=spread, seed=seed)) == ()


@pytest.mark.parametrize("seed", range(4))
def test_a_fleet_of_which_a_tenth_shares_its_hardware_names_none(seed):
    """Where one job in ten has GPUs that differ four times as much, that is what these are judged by."""
    assert named(drawn(shared=0.1, seed=seed)) == ()


def test_a_gpu_three_percent_slow_is_named_with_the_day_it_began():
    """Slow from the tenth day on, it is named with that day, its size and how many jobs show it."""
    days = drawn(slow={123: (10, 0.03, None)}, spread=0.004)
    [found] = named(days)
    assert found.machine == Machine("c", "n15", 3)
    assert found.since == T0 + 10 * DAY
    assert found.ratio == pytest.approx(1.03, abs=0.01)
    assert (found.hours, found.days, found.jobs) == (18 * 24, 18, 7)
    assert found.spreads > 5.0
    assert found.certainty > 0.999
    assert found.ranks > 1


@pytest.mark.parametrize(
    "slow",
    [
        {123: (0, 0.05, ("j3-1",))},
        {123: (27, 0.05, None)},
        {123: (0, 0.006, None)},
        {123: (0, -0.05, None)},
    ],
    ids=["one job", "one day", "a little", "fast"],
)
def test_what_may_be_something_else_names_none(slow):
    """Slow in one job, for one day, or by little more than the healthy, or fast: none is named."""
    assert named(drawn(slow=slow, spread=0.003)) == ()


def test_a_gpu_that_was_repaired_is_named_no_more():
    """Two healthy days take back what two weeks have shown."""
    days = [d for d in drawn(slow={123: (0, 0.04, None)}, spread=0.004) if d.at < T0 + 14 * DAY]
    assert len(named(days)) == 1
    well = [
        Day(machine=Machine("c", "n15", 3), job="j", rank=0, at=T0 + d * DAY, hours=24, log_ratio=0, spread=0)
        for d in (14, 15)
    ]
    assert named(days + well) == ()


def test_hours_say_no_more_than_their_share_of_a_day():
    """An hour a day on two days names none, a whole day does, though each is as slow."""
    usual = Fleet(1000, 0.002, 0.001)

    def of(hours):
        machine = Machine("c", "n", 0)
        return [
            Day(machine=machine, job=f"j{d}", rank=0, at=T0 + d * DAY, hours=hours, log_ratio=0.1, spread=0)
            for d in range(2)
        ]

    assert chronic(of(1), usual) == ()
    assert len(chronic(of(24), usual)) == 1


def test_few_machines_say_nothing():
    """Seven GPUs are too few for a usual pace."""
    assert fleet_of([(0.0, None)] * 7) is None


def test_a_fleet_that_differs_by_more_than_all_tests_names_none():
    """Where healthy ones differ by 3 %, no slowdown tested for is one."""
    assert named(drawn(100, spread=0.03, slow={5: (0, 0.1, None)})) == ()


SMALL = drawn(16, 12, slow={5: (3, 0.04, None), 9: (7, 0.06, None)}, spread=0.003)


@given(st.randoms(use_true_random=False))
def test_order_changes_nothing(rng):
    """Days of several jobs and partitions, in any order, give the same answer."""
    usual, expected = fleet(SMALL), named(SMALL)
    assert sorted(c.machine.node for c in expected) == ["n0", "n1"]
    assert chronic(rng.sample(SMALL, len(SMALL)), usual) == expected


def test_healthy_machines_may_be_left_out():
    """Only days of machines with two days and jobs of half the least count: the store gives no others."""
    days = drawn(slow={5: (3, 0.04, None), 300: (0, 0.03, None)}, spread=0.003)
    usual = fleet(days)
    suspects: dict[Machine, list[Day]] = {}
    for day in days:
        if day.log_ratio >= usual.least / 2:
            suspects.setdefault(day.machine, []).append(day)
    kept = {m for m, mine in suspects.items() if len({d.at for d in mine}) > 1 < len({d.job for d in mine})}
    assert len(kept) < 50
    assert chronic([d for d in days if d.machine in kept], usual) == named(days)


def test_examples():
    """The docstring's figures are what comes out."""
    assert doctest.testmod(detectors.fleet.chronic).failed == 0
