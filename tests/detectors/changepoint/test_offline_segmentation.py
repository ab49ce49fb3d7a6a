"""The offline referee of a change."""

import numpy as np
import pytest

from detectors.changepoint import offline_segmentation
from detectors.changepoint.offline_segmentation import MIN_STEPS, WINDOW, change_points, offline_check


def noise(seed, steps=WINDOW, sigma=0.01):
    """Ratios of a healthy rank with collection spikes."""
    rng = np.random.default_rng(seed)
    spikes = np.where(rng.random(steps) < 0.01, rng.uniform(0.05, 0.5, steps), 0.0)
    return rng.normal(0, sigma, steps) + spikes


def checked(x, age):
    """The check of a change about which there is a result."""
    told = offline_check(x, age)
    assert told is not None
    return told


@pytest.mark.parametrize("sigmas", [4.0, 10.0])
@pytest.mark.parametrize("off", [-4, 0, 4])
def test_a_change_is_confirmed_and_dated(sigmas, off):
    """A change that is there is confirmed, dated to the sample and measured, though it was put elsewhere."""
    found = []
    for seed in range(40):
        x = noise(seed)
        x[-50:] += sigmas * 0.01
        found.append(checked(x, 50 + off))
    assert all(o.confirmed for o in found)
    assert np.mean([abs(o.age - 50) <= 1 for o in found]) >= 0.95
    assert np.median([o.after - o.before for o in found]) == pytest.approx(sigmas * 0.01, rel=0.1)
    assert sum(o.further for o in found) <= 2


def test_what_is_not_there_is_not_confirmed():
    """Healthy noise with single spikes is confirmed in at most a few per cent of cases."""
    assert sum(checked(noise(seed), 50).confirmed for seed in range(100)) <= 4


def test_a_change_elsewhere_is_no_confirmation():
    """A change long before the one claimed does not confirm it, and is counted as another."""
    x = noise(3)
    x[-120:] += 0.1
    told = checked(x, 20)
    assert (told.confirmed, told.age, told.further) == (False, 20, 1)


def test_rungs_of_a_ladder_are_counted():
    """Three more steps up after the first are three further changes."""
    x = noise(4)
    for age in (120, 90, 60, 30):
        x[-age:] += 0.05
    told = checked(x, 120)
    assert (told.confirmed, told.further) == (True, 3)


def test_missing_samples_do_not_shift_the_change():
    """With a third of the samples not read the change is dated within the gap it fell into."""
    x = noise(5)
    x[-60:] += 0.08
    x[np.random.default_rng(0).random(WINDOW) < 0.33] = np.nan
    told = checked(x, 60)
    assert told.confirmed
    assert abs(told.age - 60) <= 3


@pytest.mark.parametrize(
    ("x", "age"),
    [
        (noise(1), MIN_STEPS - 1),
        (noise(1), WINDOW),
        (noise(1)[:8], 4),
        (np.full(WINDOW, np.nan), 50),
        (np.zeros(0), 5),
    ],
)
def test_too_little_is_no_checked(x, age):
    """Nothing is reported with fewer than five samples on either side."""
    assert offline_check(x, age) is None


def test_equal_samples_hold_no_change():
    """A series without any noise is judged, and nothing is found in it."""
    told = checked(np.zeros(WINDOW), 50)
    assert (told.confirmed, told.before, told.after) == (False, 0.0, 0.0)


def test_without_ruptures_there_is_no_result(monkeypatch):
    """The optional package is not missed."""
    x = noise(1)
    x[-50:] += 0.1
    monkeypatch.setattr(offline_segmentation, "_ruptures", lambda: None)
    assert offline_check(x, 50) is None


def test_the_same_samples_give_the_same_result():
    """Older samples than the window and repeated asking change nothing."""
    x = noise(1)
    x[-50:] += 0.1
    assert offline_check(x, 50) == offline_check(np.concatenate((noise(9), x)), 50) == offline_check(x, 50)


def test_levels_of_a_series_are_found_and_small_moves_are_not():
    """A step up and back is dated to the sample; drift and what is smaller than the least change is not."""
    x = np.log(noise(3, 300, 0.004) + 2.2)
    x[120:] += np.log(1.2)
    x[200:] -= np.log(1.2)
    assert [
        abs(found - at) <= 1 for found, at in zip(change_points(x, np.log(1.03)), (120, 200), strict=True)
    ]
    drift = 0.011 * np.sin(np.arange(300) / 30.0)
    assert change_points(np.log(noise(4, 300, 0.004) + 2.2) + drift, np.log(1.03)) == []


def test_gaps_do_not_move_a_change_point():
    """An index is that of the series with its gaps, and too few samples have no change."""
    x = np.where(np.arange(60) < 30, 0.0, 0.5) + noise(5, 60, 0.004)
    x[5:15] = np.nan
    assert change_points(x, 0.03) == [30]
    assert change_points(x[26:34], 0.03) == []
