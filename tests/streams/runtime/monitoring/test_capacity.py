import random

import pytest

from streams.runtime.monitoring.capacity import CapacityTrend, Forecast

NOW = 1_795_160_000.0


def trend(load_at, *, minutes, every=15.0, noise=0.0):
    """The forecast after so many minutes of a load that depends on the minute."""
    chance, made = random.Random(1), CapacityTrend()
    steps = int(minutes * 60 / every)
    for step in range(steps + 1):
        at = step * every
        made.note(NOW + at, load_at(at / 60) + chance.gauss(0, noise))
    return made.forecast(NOW + steps * every)


def test_nothing_is_forecast_from_a_few_minutes():
    """A start is always busy."""
    assert trend(lambda minute: 1.0, minutes=4) is None


def test_a_steady_load_never_ends():
    """Whatever its jitter."""
    found = trend(lambda minute: 0.5, minutes=30, noise=0.05)
    assert found is not None
    assert found.load == pytest.approx(0.5, abs=0.05)
    assert found.behind_in is None
    assert not found.short


def test_growth_gives_the_time_that_is_left():
    """One per cent a minute from 45 %: after 25 minutes 70 %, and half an hour left."""
    found = trend(lambda minute: 0.45 + 0.01 * minute, minutes=25)
    assert found is not None
    assert found.behind_in is not None
    assert found.behind_in / 60 == pytest.approx((1 - found.load) / 0.01, rel=0.1)
    assert trend(lambda minute: 0.5 + 0.012 * minute, minutes=25).short


def test_growth_that_leaves_hours_is_no_lack():
    """There is time until the next look of a person."""
    found = trend(lambda minute: 0.6 + 0.002 * minute, minutes=30)
    assert found is not None
    assert not found.short


def test_a_high_load_is_a_lack_without_growth():
    """The next burst would not be read in time."""
    assert trend(lambda minute: 0.9, minutes=10).short


def test_a_rebuild_of_a_minute_is_none():
    """It is busy by itself, and over soon."""
    found = trend(lambda minute: 1.0 if 9 < minute <= 10 else 0.2, minutes=10)
    assert not found.short


def test_loads_that_stop_give_no_forecast():
    """A role whose workers report no more has no forecast: its lag is a finding."""
    made = CapacityTrend()
    for step in range(100):
        made.note(NOW + 15 * step, 0.9)
    assert made.forecast(NOW + 1485) == Forecast(0.9)
    assert made.forecast(NOW + 1485 + 301) is None
