import numpy as np
import pytest

from detectors.job_kind import classify

RNG = np.random.default_rng(7)


@pytest.mark.parametrize(("noise", "kind"), [(0.005, "fixed"), (0.03, "between"), (0.10, "variable")])
def test_kind_follows_the_spread_of_ranks_within_a_step(noise, kind):
    """Equal work, packed sequences and what lies between are told apart by dispersion."""
    assert classify(RNG.normal(0, noise, (50, 16))).kind == kind


def test_lasting_differences_are_not_variable_work():
    """Ranks that always differ the same way are not called a variable job."""
    lasting = RNG.normal(0, 0.10, 16) + RNG.normal(0, 0.01, (50, 16))
    found = classify(lasting)
    assert found.kind == "between"
    assert found.persistence > 0.9


def test_unread_ranks_and_steps_do_not_matter():
    """NaN is left out, and a job of which nothing was read is judged by the careful rule."""
    ratios = RNG.normal(0, 0.005, (30, 8))
    ratios[:, 2] = np.nan
    ratios[4] = np.nan
    assert classify(ratios).kind == "fixed"
    assert classify(np.full((3, 4), np.nan)).kind == "between"
