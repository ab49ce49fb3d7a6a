"""The distance to siblings before and after a moment."""

import numpy as np
import pytest

from detectors.changepoint.sibling_contrast import contrast


def drifting(n, rho, rng):
    x = np.zeros(n)
    for t in range(1, n):
        x[t] = rho * x[t - 1] + rng.normal()
    return x


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.75])
def test_autocorrelated_noise_is_not_taken_for_a_shift(rho):
    """Of 2,000 stretches of correlated noise none stands out by six errors."""
    rng = np.random.default_rng(7)
    found = [contrast(x[:60], x[60:75], floor=0.1) for x in (drifting(75, rho, rng) for _ in range(2000))]
    assert max(abs(c.sigmas) for c in found if c is not None) < 6.0
    assert None not in found


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.75])
def test_a_shift_stands_out(rho):
    """Eight standard deviations of independent noise are seen, and their size is right."""
    rng = np.random.default_rng(8)
    x = drifting(120, rho, rng) / np.sqrt(1 / (1 - rho**2))
    x[60:] -= 8.0
    c = contrast(x[:60], x[60:], floor=0.1)
    assert c is not None
    assert c.sigmas < -6.0
    assert c.shift == pytest.approx(-8.0, abs=1.0)


def test_too_little_on_either_side_returns_nothing():
    """Readings that are missing do not count as readings."""
    assert contrast(np.zeros(19), np.ones(30), floor=0.1) is None
    assert contrast(np.zeros(60), np.array([1.0, np.nan, 1.0]), floor=0.1) is None
