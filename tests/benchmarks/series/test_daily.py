"""The time-of-day profile."""

import math

import numpy as np

from benchmarks.series.daily import DailyProfile


def day(number: int, hour: float) -> float:
    return 86_400.0 * number + 3600.0 * hour


def test_compares_with_the_same_half_hour_only():
    """A load that follows the sun is at home in its half hour and foreign in another."""
    profile = DailyProfile()
    for number in range(5):
        for hour in np.arange(0, 24, 0.25):
            distance = profile.update(day(number, hour), math.sin(hour / 24 * math.tau))

    assert distance < 0.2
    assert profile.update(day(5, 6.0), -1.0) > 1.9


def test_needs_two_days():
    """With one day seen nothing is reported."""
    profile = DailyProfile()
    assert math.isnan(profile.update(day(0, 3), 1.0))
    assert math.isnan(profile.update(day(1, 3), 1.0))
    assert profile.update(day(2, 3), 1.0) == 0.0


def test_forgets_after_seven_days():
    """A week at a new level is the new usual."""
    profile = DailyProfile()
    found = [profile.update(day(number, 12), 10.0 if number >= 10 else 0.0) for number in range(20)]

    assert found[10] == 10.0
    assert (found[13], found[14]) == (10.0, 0.0)


def test_a_half_hour_is_half_an_hour():
    """What is known of it holds from its first second to its last, and not of the next."""
    profile = DailyProfile()
    for number in range(20_000, 20_003):
        profile.update(day(number, 3), 1.0)
    assert profile.update(day(20_003, 3.499), 5.0) == 4.0
    assert math.isnan(profile.update(day(20_003, 3.5), 5.0))
