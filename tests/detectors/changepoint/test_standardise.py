"""Transforms, history and robust baselines."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detectors.changepoint.standardise import History, Scale, Transformer, baseline, median_error


@pytest.mark.parametrize("transform", ["identity", "log", "log1p", "sqrt"])
@given(x=st.floats(1e-3, 1e6))
def test_raw_inverts_the_transform(transform, x):
    """A reading survives the way there and back."""
    scale = Scale(transform, 0.1)

    assert scale.raw(float(Transformer([scale])(np.array([x]))[0])) == pytest.approx(x, rel=1e-9, abs=1e-9)


def test_readings_outside_the_domain_are_missing():
    """Non-positive times, negative rates and infinities become NaN, each series by its own transform."""
    transform = Transformer([Scale("log"), Scale("log1p"), Scale("sqrt"), Scale("identity")])

    assert np.isnan(transform(np.array([0.0, -1.0, -1.0, np.inf]))).all()
    assert transform(np.array([1.0, 0.0, 0.0, -5.0])).tolist() == [0.0, 0.0, math.sqrt(0.375), -5.0]


def test_baseline_is_robust_and_floored():
    """A tenth of wild samples moves neither level nor sigma much; a constant series gets the floor."""
    values = np.random.default_rng(1).normal(50, 2, size=100)
    values[::10] = 500

    level, sigma = baseline(values, 0.1)

    assert level == pytest.approx(50, abs=1)
    assert sigma == pytest.approx(2, rel=0.4)
    assert baseline(np.full(60, 7.0), 0.5) == (7.0, 0.5)


def test_baseline_widens_for_autocorrelation():
    """Correlated samples say less: sigma grows with the lag-1 correlation."""
    rng = np.random.default_rng(2)
    noise = rng.normal(size=20_000)
    slow = np.zeros(20_000)
    for t in range(1, 20_000):
        slow[t] = 0.75 * slow[t - 1] + noise[t] * math.sqrt(1 - 0.75**2)

    assert baseline(noise, 0.01)[1] == pytest.approx(1.0, rel=0.05)
    assert baseline(slow, 0.01)[1] == pytest.approx(math.sqrt(1.75 / 0.25), rel=0.1)


def test_median_error_matches_simulation():
    """The standard error of the median of 61 normal samples is the simulated one."""
    medians = np.median(np.random.default_rng(3).normal(size=(4000, 61)), axis=1)

    assert medians.std() == pytest.approx(median_error(61), rel=0.05)


def test_history_skips_gaps_and_forgets_the_oldest():
    """The last readings of a series come oldest first, without gaps, at their own times."""
    history = History(4, 2)
    for t in range(6):
        history.append(float(t), np.array([float(t), math.nan if t % 2 else 10.0 * t]))

    times, values = history.last(0, 3)
    assert (times.tolist(), values.tolist()) == ([3.0, 4.0, 5.0], [3.0, 4.0, 5.0])
    times, values = history.last(1, 3)
    assert (times.tolist(), values.tolist()) == ([2.0, 4.0], [20.0, 40.0])


def test_history_of_many_series_holds_the_same_rows_in_whatever_order():
    """In order or not, what is read of several series is what was appended, each at its own time."""
    history = History(4, 2, groups=2)
    for t in range(6):
        history.append([float(t), t + 0.5], np.array([[t, -t], [10.0 * t, math.nan]]))

    assert history.stretches(np.array([0, 2]), 3).tolist() == [[3.0, 4.0, 5.0], [30.0, 40.0, 50.0]]
    times, values = history.unordered(np.array([[0, 2], [1, 3]]))
    assert sorted(zip(times[0], *values[:, 0], strict=True)) == [(t, t, -t) for t in (2, 3, 4, 5)]
    assert sorted(zip(times[1], values[0, 1], strict=True)) == [(t + 0.5, 10 * t) for t in (2, 3, 4, 5)]
    assert np.isnan(values[1, 1]).all()


@pytest.mark.parametrize("bad", [("cube", 1.0), ("log", 0.0), ("log", math.nan)])
def test_scale_rejects_nonsense(bad):
    """Unknown transforms and floors that are not positive are refused."""
    with pytest.raises(ValueError, match=r"transform|floor"):
        Scale(*bad)
