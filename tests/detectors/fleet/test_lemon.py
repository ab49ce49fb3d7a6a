"""Machines that fail again and again."""

import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st

import detectors.fleet.lemon
from benchmarks.detection.lemons import run
from detectors.fleet.lemon import MachineFault, exceeds, lemons

DAY = 86_400.0


def faults(machine="n1", *, days=(0, 3, 9, 15), jobs=("a", "b", "c", "d")):
    return [MachineFault(machine, day * DAY + 1.0, job) for day, job in zip(days, jobs, strict=True)]


# One finding on each of 200 nodes: of 1,000, the fleet's ordinary trouble.
FLEET = [MachineFault(f"m{i}", i * DAY / 10, f"j{i}") for i in range(200)]


def test_a_machine_that_keeps_failing_is_named():
    """Five episodes in two weeks stand out of a fleet with one in five nodes troubled once."""
    mine = faults(days=(0, 3, 9, 12, 15), jobs=("a", "b", "b", "c", "d"))
    (lemon,) = lemons([*FLEET, *mine], fleet=1000)
    assert (lemon.machine, lemon.episodes, lemon.days, lemon.jobs) == ("n1", 5, 5, 4)
    assert (lemon.first_at, lemon.last_at) == (1.0, 15 * DAY + 1.0)
    assert lemon.probability > 0.95


@pytest.mark.parametrize(
    "mine",
    [
        faults(days=(0, 3), jobs=("a", "b")),
        faults(days=(0, 0.1, 0.2, 0.3, 0.4), jobs=("a", "b", "c", "d", "e")),
        faults(days=(0, 3, 6, 9, 12), jobs=("a",) * 5),
        faults(days=(0, 3, 6, 9, 12), jobs=(None,) * 5),
        [MachineFault("n1", 60.0 * i, f"j{i % 3}") for i in range(50)],
    ],
    ids=["twice", "one day", "one job", "no job", "one burst"],
)
def test_what_may_be_one_mishap_is_no_lemon(mine):
    """Two episodes, or many within a day, a job or an hour, accuse none."""
    assert lemons([*FLEET, *mine], fleet=1000) == ()


def test_where_all_fail_none_is_a_lemon():
    """In a fleet where five episodes are usual, five are no sign."""
    everybody = [t for i in range(50) for t in faults(f"m{i}")]
    assert lemons(everybody, fleet=50) == ()


def test_order_and_repeats_change_nothing():
    """The same findings in any order, and twice, name the same machines."""
    found = [*FLEET, *faults(days=(0, 3, 9, 12, 15), jobs=("a", "b", "b", "c", "d"))]
    assert lemons(found[::-1], fleet=1000) == lemons(found + found, fleet=1000) == lemons(found, fleet=1000)


def test_an_untroubled_fleet_has_none():
    """Without findings, none is named."""
    assert lemons([], fleet=10) == ()


@given(st.integers(0, 300), st.floats(0.0, 50.0), st.floats(0.01, 5.0))
def test_more_episodes_make_surer(episodes, rate, prior):
    """The probability grows with the episodes, falls with the rate asked for, and is one."""
    sure = exceeds(episodes, rate, prior)
    rounding = 1e-12
    assert 0.0 <= sure <= exceeds(episodes + 1, rate, prior) + rounding <= 1.0 + rounding
    assert exceeds(episodes, rate + 1.0, prior) <= sure + rounding


def test_precision_recall_and_delay_on_drawn_histories():
    """At 20 faults per 1,000 node-days nine of ten lemons are named, half in ten days, one wrong in ten."""
    tally = run(20.0, seeds=range(10))
    assert tally.lemons > 200
    assert tally.recall >= 0.9
    assert tally.precision >= 0.9
    assert sorted(tally.days)[len(tally.days) // 2] <= 10


def test_examples():
    """The docstring's figures are what comes out."""
    assert doctest.testmod(detectors.fleet.lemon).failed == 0
