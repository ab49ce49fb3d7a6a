"""The lines from what a finding rests on and its fused log-odds to probability."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alerts.reasoning.calibration import BASES, FITTED, Calibration

# Of five families and the prior.
ODDS = st.floats(-23, 27)


@given(st.sampled_from(BASES), ODDS, ODDS)
def test_more_evidence_is_never_less_sure(basis, one, two):
    """The map is monotone and stays strictly between 0 and 1."""
    low, high = sorted((one, two))
    assert 0 < FITTED.probability(basis, low) <= FITTED.probability(basis, high) < 1


def test_each_basis_has_a_line():
    assert [basis for basis, _ in FITTED.lines] == list(BASES)


def test_a_line_is_in_log_odds():
    """With offset 0 and slope 1 they are those of the probability; without slope it is constant."""
    table = Calibration("t", (("stop", (math.log(4.0), 0.0)), ("large", (0.0, 1.0))))
    assert [table.probability("stop", x) for x in (-9.0, 0.0, 9.0)] == pytest.approx([0.8] * 3)
    rising = [table.probability("large", math.log(x)) for x in (0.25, 1.0, 3.0)]
    assert rising == pytest.approx([0.2, 0.5, 0.75])


def test_a_basis_without_a_line_is_refused():
    with pytest.raises(KeyError, match="small"):
        Calibration("t", (("large", (0.0, 1.0)),)).probability("small", 0.0)
