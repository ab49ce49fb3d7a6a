import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detectors.peers.job_kind import classify

RNG = np.random.default_rng(7)


@pytest.mark.parametrize(("noise", "kind"), [(0.005, "fixed"), (0.03, "between"), (0.10, "variable")])
def test_kind_follows_the_spread_of_ranks_within_a_step(noise, kind):
    """Equal work, packed sequences and what lies between are distinguished by dispersion."""
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


def wobble(dispersion, persistence):
    """Ranks that differ by just so much in a step, of which so much of the spread stays with the rank."""
    sign = np.where(np.arange(16) % 2, 1.0, -1.0)
    turn = np.where(np.arange(40)[:, None] // 2 % 2, sign, np.roll(sign, 1)) * np.repeat([1, -1], 8)
    return dispersion / 1.4826 * (turn + np.sqrt(persistence / (1 - persistence)) * sign)


@pytest.mark.parametrize(
    ("dispersion", "persistence", "kind"),
    [
        (0.019, 0.0, "fixed"),
        (0.021, 0.0, "between"),
        (0.039, 0.0, "between"),
        (0.041, 0.0, "variable"),
        (0.041, 0.28, "variable"),
        (0.041, 0.32, "between"),
    ],
)
def test_limits_of_the_kinds(dispersion, persistence, kind):
    """Fixed up to 2 %; variable from 4 % on, unless three tenths of the spread stay with the ranks."""
    found = classify(wobble(dispersion, persistence))
    assert found.kind == kind
    assert (found.dispersion, found.persistence) == pytest.approx((dispersion, persistence))


@given(st.permutations(range(8)), st.permutations(range(12)))
def test_numbering_and_order_do_not_matter(ranks, steps):
    """The same ratios under other rank numbers and in another order of steps are the same job."""
    ratios = np.random.default_rng(3).normal(0, 0.03, (12, 8))
    found, other = classify(ratios), classify(ratios[steps][:, ranks])
    assert (other.kind, other.dispersion) == (found.kind, found.dispersion)
    assert other.persistence == pytest.approx(found.persistence)
