import doctest

import numpy as np
import pytest

import detectors.job.pauses
from detectors.job.pauses import Pauses


def pauses_after(pauses_at, *, steps, first=0, seconds=20.0):
    """Pauses of a job with 1 s steps that paused before the steps ``pauses_at``; and its time at the end."""
    pauses, ts = Pauses(), 0.0
    for number in range(first, steps):
        gap = seconds if number in pauses_at else 1.0
        ts += gap
        pauses.step(number, ts, gap=gap, usual=1.0)
    return pauses, ts


def allowed(pauses, numbers, ts):
    return [n for n in numbers if pauses.before(n, ts).longest]


def test_documented_example_runs():
    """The example in the docstring prints what it shows."""
    assert doctest.testmod(detectors.job.pauses).failed == 0


def test_a_period_is_allowed_for_and_nothing_else():
    """Pauses every hundred steps are awaited at the next hundred, a step early or late."""
    pauses, ts = pauses_after(range(100, 600, 100), steps=600)
    assert allowed(pauses, range(600, 800), ts) == [600, 601, 699, 700, 701, 799]
    assert pauses.before(700, ts).longest == 20.0


def test_two_kinds_of_pauses_fall_on_what_they_share():
    """Checkpoints every 200 and evaluations every 300 steps are awaited on hundreds."""
    pauses, ts = pauses_after({*range(0, 3000, 200), *range(0, 3000, 300)}, steps=3000, first=1)
    assert set(allowed(pauses, range(3000, 3300), ts)) <= {
        3000,
        3001,
        3099,
        3100,
        3101,
        3199,
        3200,
        3201,
        3299,
    }
    assert pauses.before(3200, ts).longest == 20.0


def pauses_of_a_rhythm(seconds, *, odd):
    """Pauses of a job that pauses before every 100th step, and once for ``odd`` seconds besides."""
    pauses, ts = Pauses(), 0.0
    for number in range(1000):
        gap = seconds if number and number % 100 == 0 else odd if number == 537 else 1.0
        ts += gap
        pauses.step(number, ts, gap=gap, usual=1.0)
    return pauses, ts


def test_one_odd_pause_does_not_hide_the_rhythm():
    """A pause of its own kind counts elsewhere with its own length only."""
    pauses, ts = pauses_of_a_rhythm(60.0, odd=8.0)
    assert pauses.before(1050, ts).longest == 8.0
    assert pauses.before(1100, ts).longest == 60.0


def test_one_odd_pause_that_was_longer_is_no_habit():
    """A fault that passed does not make a pause of the rhythm usual that is as long."""
    pauses, ts = pauses_of_a_rhythm(20.0, odd=600.0)
    assert pauses.before(1050, ts) == (600.0, 0.0)
    assert pauses.before(1100, ts) == (600.0, 20.0)


@pytest.mark.parametrize("seed", range(20))
def test_pauses_without_a_rhythm_are_allowed_anywhere(seed):
    """What came at random may come again at any step."""
    at = set(np.random.default_rng(seed).choice(np.arange(100, 1000), 6, replace=False).tolist())
    pauses, ts = pauses_after(at, steps=1000)
    assert allowed(pauses, range(1000, 1300), ts) == list(range(1000, 1300))


def test_two_pauses_without_a_rhythm_are_no_habit():
    """The third longest of those without one is usual; of those that are due, the longest."""
    pauses, ts = Pauses(), 0.0
    for number, seconds in ((70, 30.0), (110, 10.0), (260, 20.0)):
        ts += 1000.0 + number
        pauses.step(number, ts, gap=seconds, usual=1.0)
        expected = (30.0, 10.0) if number == 260 else (30.0, 0.0)
        assert pauses.before(300, ts) == expected
    pauses, ts = pauses_after(range(100, 600, 100), steps=600)
    assert (pauses.before(650, ts), pauses.before(700, ts)) == ((0.0, 0.0), (20.0, 20.0))


def test_pauses_by_the_clock_are_awaited_by_the_clock():
    """Checkpoints every ten minutes, at whatever step, are not expected five minutes after the last."""
    rng = np.random.default_rng(4)
    pauses, ts, number, next_at = Pauses(), 0.0, 0, 600.0
    while ts < 3700.0:
        gap = (1.0 if ts < 1500.0 else 0.8) + 0.05 * rng.standard_normal()
        if ts > next_at:
            gap, next_at = 20.0, next_at + 600.0
        ts, number = ts + gap, number + 1
        pauses.step(number, ts, gap=gap, usual=1.0)
    assert pauses.before(number + 1, ts + 200.0).longest == 0.0
    assert pauses.before(number + 1, ts + 550.0).longest == 20.0


def test_what_never_came_again_is_forgotten():
    """A single long gap is allowed for during some hundred steps and not for ever."""
    for steps, expected in ((300, 30.0), (460, 0.0)):
        pauses, ts = pauses_after({100}, steps=steps, seconds=30.0)
        assert pauses.before(steps, ts).longest == expected


def test_rare_pauses_are_remembered_for_as_long_as_they_are_rare():
    """Checkpoints every thousand steps are still known after nine hundred without one."""
    pauses, ts = pauses_after({1000, 2000, 3000, 4000}, steps=4900)
    assert pauses.before(5000, ts).longest == 20.0
    assert pauses.before(4900, ts).longest == 0.0


@pytest.mark.parametrize(
    ("gap", "usual", "pause"), [(4.0, 1.0, 0), (4.1, 1.0, 1), (5.9, 2.0, 0), (6.0, 2.0, 0), (6.1, 2.0, 1)]
)
def test_a_pause_is_longer_than_four_seconds_and_three_steps(gap, usual, pause):
    """Shorter gaps end before they are asked for."""
    pauses = Pauses()
    pauses.step(1, gap, gap=gap, usual=usual)
    assert len(pauses) == pause


@pytest.mark.parametrize("shift", [1, 37, 1000])
def test_a_job_that_was_resumed_pauses_by_its_own_count(shift):
    """The same pauses at later steps are awaited so much later."""
    pauses, ts = pauses_after(range(100, 600, 100), steps=600)
    later, end = pauses_after(range(100 + shift, 600 + shift, 100), steps=600 + shift, first=shift)
    assert end == ts
    assert [n - shift for n in allowed(later, range(600 + shift, 800 + shift), ts)] == allowed(
        pauses, range(600, 800), ts
    )
