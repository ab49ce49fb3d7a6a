"""The table from fused log-odds to probability."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alerts.reasoning.calibration import FITTED, Calibration


@given(st.floats(-50, 50), st.floats(-50, 50))
def test_more_evidence_is_never_less_sure(one, two):
    """The map is monotone and stays strictly between 0 and 1."""
    low, high = sorted((one, two))
    assert 0 < FITTED.probability(low) <= FITTED.probability(high) < 1


def test_the_fitted_table_ascends():
    """Its knots ascend in log-odds, and their probabilities never fall."""
    assert all(x0 < x1 and p0 <= p1 for (x0, p0), (x1, p1) in pairwise(FITTED.knots))


def test_between_knots_it_is_linear_and_outside_constant():
    """At a knot it says what the knot says."""
    table = Calibration("t", ((-1.0, 0.2), (1.0, 0.4), (3.0, 0.9)))
    said = [table.probability(x) for x in (-9.0, -1.0, 0.0, 1.0, 2.0, 3.0, 9.0)]
    assert said == pytest.approx([0.2, 0.2, 0.3, 0.4, 0.65, 0.9, 0.9])
