"""The CUSUM bank."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detectors.changepoint.cusum import CusumBank
from tests.detectors.state import same


@pytest.mark.parametrize("sign", [1, -1])
def test_alarm_index_of_a_constant_shift(sign):
    """A constant shift of 1.5 adds 1.0 a sample and passes a threshold of 10 at the eleventh."""
    bank = CusumBank(1)

    assert [bool(bank.update([1.5 * sign])[0]) for _ in range(12)] == [False] * 10 + [True] * 2


@given(st.lists(st.floats(-5, 5), max_size=60))
def test_equals_the_textbook_recursion(samples):
    """Both sums follow max(0, S + ±z - k)."""
    bank = CusumBank(1, slack=0.25, threshold=3.0)
    up = down = 0.0
    for z in samples:
        up, down = max(0.0, up + z - 0.25), max(0.0, down - z - 0.25)

        assert bool(bank.update([z])[0]) == (max(up, down) > 3.0)


def test_age_is_the_time_since_the_sum_left_zero():
    """The age points at the first sample of the excursion."""
    bank = CusumBank(1)
    for z in [0.0] * 30 + [2.0] * 8:
        bank.update([z])

    assert bank.age(0) == 8


def test_nan_changes_nothing():
    """A missing sample leaves sums and ages as they were."""
    bank, other = CusumBank(2), CusumBank(2)
    for z in (1.0, 2.0, 3.0):
        bank.update([z, z])
        bank.update([math.nan, math.nan])
        other.update([z, z])

    assert same(bank, other)


def test_reset_and_refusals():
    """A reset series starts at zero; wrong shapes and limits are refused."""
    bank = CusumBank(2)
    bank.update([50.0, 50.0])
    bank.reset(0)

    assert bank.update([0.0, 0.0]).tolist() == [False, True]
    with pytest.raises(ValueError, match="expected"):
        bank.update([1.0])
    with pytest.raises(ValueError, match="slack"):
        CusumBank(1, threshold=0.0)


def test_a_reset_series_is_as_good_as_new():
    """Its sums, its age and its next alarm are those of a series that has just begun."""
    used, fresh = CusumBank(2), CusumBank(2)
    for _ in range(5):
        used.update([3.0, -3.0])
    used.reset(np.array([0, 1]))
    for _ in range(11):
        assert used.update([1.5, -1.5]).tolist() == fresh.update([1.5, -1.5]).tolist()
        assert (used.age(0), used.age(1)) == (fresh.age(0), fresh.age(1))


@given(
    st.lists(st.lists(st.sampled_from([-2.0, 0.0, 0.7, 2.0, math.nan]), min_size=3, max_size=3), max_size=30)
)
def test_a_bank_is_its_series_one_by_one_in_either_direction(rows):
    """Fed together, lane by lane or turned upside down, the alarms and ages are the same."""
    bank, alone, turned = (
        CusumBank(3, threshold=3.0),
        CusumBank(3, threshold=3.0),
        CusumBank(3, threshold=3.0),
    )
    for row in rows:
        alarms = bank.update(row).tolist()
        assert [bool(alone.update([z], np.array([i]))[0]) for i, z in enumerate(row)] == alarms
        assert turned.update([-z for z in row]).tolist() == alarms
        assert [bank.age(i) for i in range(3)] == [alone.age(i) for i in range(3)]
