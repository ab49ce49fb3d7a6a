"""Figures with their uncertainty."""

import math
from dataclasses import astuple

import numpy as np
import pytest

from benchmarks.quality.scoring.metrics import (
    bootstrap,
    calibration,
    calibration_error,
    f1,
    pooled,
    precision,
    quantile,
    recall,
    resampled,
    share,
    upper_rate,
)


def test_shares_of_sums():
    """Precision, recall and F1 of nine found, one false alarm and three missed."""
    sums = np.array([9.0, 1.0, 3.0])
    assert [float(s(sums)) for s in (precision, recall, f1)] == pytest.approx([0.9, 0.75, 18 / 22])


@pytest.mark.parametrize(
    ("count", "upper"), [(0, 2.996), (1, 4.744), (5, 10.513), (50, 63.287)], ids=lambda v: str(v)
)
def test_upper_bound_of_a_rate(count, upper):
    """The exact one-sided Poisson bound; with no event, the rule of three."""
    assert upper_rate(count, 1.0) == pytest.approx(upper, abs=1e-3)
    assert upper_rate(count, 1000.0) == pytest.approx(upper / 1000, rel=1e-3)


def test_a_rate_needs_an_exposure():
    """No exposure is an error, not a rate of zero."""
    with pytest.raises(ValueError, match="exposure"):
        upper_rate(0, 0.0)


def test_bootstrap_draws_seeds_not_events():
    """Forty events in two unlike seeds leave the whole range open; in forty seeds they do not."""
    few = bootstrap(np.array([[20.0, 20.0], [0.0, 20.0]]), share)
    many = bootstrap(np.array([[1.0, 1.0], [0.0, 1.0]] * 20), share)
    assert (few.value, few.low, few.high) == (0.5, 0.0, 1.0)
    assert many.value == 0.5
    assert 0.3 < many.low < 0.4 < 0.6 < many.high < 0.7


def test_bootstrap_covers_the_truth():
    """The 95 % interval holds the true share in about 95 % of 200 experiments of 30 seeds."""
    rng = np.random.default_rng(1)
    held = 0
    for n in range(200):
        found = rng.binomial(5, 0.8, 30)
        e = bootstrap(np.column_stack([found, np.full(30, 5)]).astype(float), share, seed=n)
        held += e.low <= 0.8 <= e.high
    assert 180 <= held <= 198


def test_nothing_to_count_is_not_a_number():
    """A share of nothing has no value and no interval."""
    e = bootstrap(np.zeros((3, 2)), share)
    assert all(math.isnan(v) for v in (e.value, e.low, e.high))


def test_never_is_the_longest_delay():
    """A quantile counts events never found as infinitely late."""
    delays = [3.0, math.inf, 1.0, 2.0]
    assert [quantile(delays, q) for q in (0.5, 0.75, 0.95)] == [2.0, 3.0, math.inf]
    assert math.isnan(quantile([], 0.5))


def middle(delays):
    return quantile(delays, 0.5)


def test_delays_are_resampled_by_seed():
    """Twenty delays of two unlike seeds leave the whole range open; in forty seeds they do not."""
    few = resampled({1: [4.0] * 10, 2: [8.0] * 10}, middle)
    many = resampled({seed: [4.0 + 0.1 * seed] for seed in range(41)}, middle)
    assert (few.low, few.high) == (4.0, 8.0)
    assert many.value == pytest.approx(6.0)
    assert 5.0 < many.low < 5.8 < 6.2 < many.high < 7.0


def test_a_bound_may_be_never():
    """Where one of three events was missed, the P95 is infinite and its lower bound need not be."""
    seen = {1: [1.0], 2: [2.0], 3: [math.inf]}
    e = resampled(seen, lambda delays: quantile(delays, 0.95))
    assert pooled(seen) == [1.0, 2.0, math.inf]
    assert (e.value, e.low, e.high) == (math.inf, 1.0, math.inf)


def test_seeds_without_an_event_are_drawn_too():
    """They make the interval wider, and nothing is known where no seed has any."""
    e = resampled({1: [3.0], 2: [], 3: [5.0]}, middle)
    assert (e.low, e.value, e.high) == (3.0, 3.0, 5.0)
    assert all(math.isnan(v) for v in astuple(resampled({1: [], 2: []}, middle)))


def test_the_calibration_error_has_an_interval():
    """It is that of all pairs, between those of draws in which one seed counts more."""
    pairs = {1: [(0.9, True)] * 4, 2: [(0.9, False)] * 4, 3: [(0.9, True)] * 4}
    e = resampled(pairs, calibration_error)
    assert e.value == pytest.approx(0.9 - 2 / 3)
    assert e.low == pytest.approx(0.1)
    assert e.high == pytest.approx(0.9)


def test_calibration():
    """Confidence 0.95 that is right half the time is off by 0.45, in proportion to its share."""
    fit = calibration([0.95, 0.95, 0.05, 0.05], [True, False, False, False])
    assert fit.error == pytest.approx(0.25)
    assert fit.brier == pytest.approx((0.05**2 + 0.95**2 + 2 * 0.05**2) / 4)
    assert [n for *_, n in fit.bins] == [2, 2]
    assert fit.bins[1][:2] == pytest.approx((0.95, 0.5))
    assert calibration([1.0], [True]).error == 0.0
