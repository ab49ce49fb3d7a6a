import doctest
import math

import numpy as np
import pytest

import detectors.job.loss
from detectors.job.loss import LossWatch


def feed(watch, values, start=0):
    """What stands after each value, one step a second."""
    return [watch.update(float(start + i), float(value)) for i, value in enumerate(values)]


def ordinary(steps=400, *, seed=1, noise=0.03):
    """A decaying loss with noise."""
    t = np.arange(steps)
    return (1.7 + 6.3 / np.sqrt(1 + t / 80)) * np.exp(
        noise * np.random.default_rng(seed).standard_normal(steps)
    )


def first(found):
    return next((i for i, anomaly in enumerate(found) if anomaly is not None), None)


def test_documented_example_runs():
    """The example in the docstring prints what it shows."""
    assert doctest.testmod(detectors.job.loss).failed == 0


@pytest.mark.parametrize("noise", [0.0, 0.03, 0.3])
@pytest.mark.parametrize("seed", range(5))
def test_ordinary_losses_are_no_anomaly(seed, noise):
    """Decay and noise, from hardly any to a third, are no anomaly."""
    assert first(feed(LossWatch("loss"), ordinary(2000, seed=seed, noise=noise))) is None


@pytest.mark.parametrize("factor", [2.0, 4.5])
def test_schedule_spikes_below_five_are_no_anomaly(factor):
    """Spikes of a few steps, less than five times the level, come with restarts of the schedule."""
    values = ordinary(2000)
    for at in range(300, 2000, 300):
        values[at : at + 5] *= factor
    assert first(feed(LossWatch("loss"), values)) is None


def test_a_first_hundred_steps_may_leap():
    """Before the first hundred steps only what is no number counts."""
    values = ordinary(100)
    values[60] *= 20
    assert first(feed(LossWatch("loss"), values)) is None


@pytest.mark.parametrize("series", ["loss", "grad_norm"])
def test_a_leap_is_found_at_its_step_and_ends(series):
    """Six times the level is reported at once with the level before, and over after twenty calm steps."""
    values = np.full(400, 2.0)
    values[250:253] = 12.0
    found = feed(LossWatch(series), values)
    assert first(found) == 250
    assert (found[250].shape, found[250].ratio, found[250].median, found[250].onset) == (
        "leap",
        6.0,
        2.0,
        250.0,
    )
    assert found[271] is not None
    assert found[272] is None


def test_a_noisy_loss_must_leap_out_of_its_noise():
    """Five times the level is nothing where values differ by factors anyway."""
    noise = np.random.default_rng(3).standard_normal(1000)
    assert first(feed(LossWatch("loss"), np.exp(0.6 * noise))) is None


def test_a_loss_that_is_no_number_is_found_at_once():
    """Even at the first steps."""
    found = feed(LossWatch("loss"), [2.0, math.inf])
    assert found[0] is None
    assert (found[1].shape, found[1].onset) == ("not_finite", 1.0)
    assert math.isnan(found[1].median)


def test_single_gradient_overflows_are_no_anomaly():
    """Loss scaling skips them; three in a row are no scaling."""
    norms = np.full(300, 0.7)
    norms[100::50] = math.inf
    assert first(feed(LossWatch("grad_norm"), norms)) is None
    norms[200:203] = math.inf
    assert first(feed(LossWatch("grad_norm"), norms)) == 202


def test_a_loss_that_keeps_rising_diverges():
    """A third more for twenty steps is a divergence, dated at its beginning; a graver thing replaces it."""
    values = np.full(200, 2.0)
    values[150:] = 2.7
    watch = LossWatch("loss")
    found = feed(watch, values)
    assert 165 <= first(found) <= 171
    assert found[first(found)].shape == "divergence"
    assert 140.0 <= found[first(found)].onset <= 152.0
    worse = watch.update(200.0, math.inf)
    assert worse is not None
    assert worse.shape == "not_finite"


def test_what_lasts_is_the_new_normal():
    """A level that stays ten times higher is reported for some hundred steps and then learnt."""
    found = feed(LossWatch("loss"), np.concatenate([np.full(200, 1.0), np.full(400, 10.0)]))
    assert found[399] is not None
    assert found[-1] is None


def test_missing_values_change_nothing():
    """A step without a loss neither ends nor starts anything, nor is it learnt."""
    gappy, whole = LossWatch("loss"), LossWatch("loss")
    values = ordinary(300)
    values[250] *= 8
    with_gaps = np.stack([values, np.full(300, math.nan)], axis=1).ravel()
    found = [a.value if a else None for a in feed(gappy, with_gaps)[::2]]
    assert found == [a.value if a else None for a in feed(whole, values)]
    assert first(feed(LossWatch("loss"), [math.nan] * 300)) is None


def test_rewards_have_no_ratio():
    """Zero and negative values are left alone, and what crosses zero starts anew."""
    assert first(feed(LossWatch("loss"), np.linspace(-3.0, 3.0, 1000))) is None
    assert first(feed(LossWatch("loss"), np.where(np.arange(1000) % 7, 1.0, 0.0))) is None


@pytest.mark.parametrize(
    ("at", "value", "leaps"), [(150, 9.9, 0), (150, 10.1, 1), (99, 20.0, 0), (101, 20.0, 1)]
)
def test_a_leap_is_five_times_the_median_after_a_hundred_steps(at, value, leaps):
    """Less is a spike, and sooner is the start."""
    values = np.full(160, 2.0)
    values[at] = value
    assert [first(feed(LossWatch("loss"), values))] == [at if leaps else None]


@pytest.mark.parametrize(
    ("series", "factor", "found"), [("loss", 1.2, False), ("loss", 1.25, True), ("grad_norm", 1.5, False)]
)
def test_a_divergence_is_a_fifth_in_logs_and_of_the_loss(series, factor, found):
    """Gradients grow as training goes on; a loss that is higher by less comes and goes."""
    values = np.concatenate([np.full(150, 2.0), np.full(40, 2.0 * factor)])
    assert (first(feed(LossWatch(series), values)) is not None) == found


def test_scatter_is_the_usual_distance_from_the_median():
    """Of values that are one per cent above and below two it is two hundredths."""
    values = 2.0 * np.exp(np.tile([0.01, -0.01], 75))
    found = LossWatch("loss")
    feed(found, values)
    results = found.update(150.0, 20.0)
    assert results is not None
    assert (results.median, results.scatter, results.steps) == pytest.approx((2.0, 0.02, 50), rel=0.01)
