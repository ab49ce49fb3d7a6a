import doctest

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import detectors.node.low_clock
from detectors.node.low_clock import below_others, compare, median_of_others


def test_examples():
    """The documented example holds."""
    assert doctest.testmod(detectors.node.low_clock).failed == 0


NAN = np.nan


@given(st.lists(st.floats(0, 3e9), min_size=2, max_size=20))
def test_each_is_left_out_of_its_own_reference(values):
    """The median of the others, whatever their number and however many are equal."""
    found = median_of_others(np.array(values))
    assert found.tolist() == [np.median(np.delete(values, i)) for i in range(len(values))]


@pytest.mark.parametrize(
    ("used", "works"),
    [
        ([0.97, 0.98, 0.99, 0.97], [True] * 4),
        ([0.97, 0.98, 0.99, 0.8], [True, True, True, False]),
        ([0.7, 0.7, 0.7, 0.99], [True] * 4),
    ],
)
def test_a_node_with_less_to_do_does_other_work(used, works):
    """More than a tenth below the others; one that is used more may wait less than they do."""
    clock, limit = np.full(4, 1.98e9), np.full(4, 700.0)
    found = compare(clock, limit, np.array(used))
    assert found is not None
    assert found.works.tolist() == works


def test_fewer_than_three_others_are_no_peers():
    """Of three nodes, either of two may be the odd one."""
    assert compare(np.ones(3), np.ones(3), np.ones(3)) is None
    assert compare(np.ones(4), np.ones(4), np.ones(4)) is not None


@pytest.mark.parametrize(
    ("limit", "usual"),
    [
        ([600.0, 600.0, 600.0, 700.0], [600.0] * 4),
        ([600.0, 600.0, 600.0, 700.0, NAN, NAN], [NAN] * 6),
    ],
)
def test_power_limits_are_compared_where_all_are_known(limit, usual):
    """A limit that was not read is neither high nor low."""
    same = np.ones(len(limit))
    found = compare(same, np.array(limit), same)
    assert found is not None
    np.testing.assert_array_equal(found.usual_limit, usual)


@pytest.mark.parametrize(
    ("values", "below"),
    [
        ([9.0, 10.0, 10.0, 10.0], [True, False, False, False]),
        ([9.5, 10.0, 10.0, 10.0], [False] * 4),
        ([5.0, 5.0, 10.0, 10.0, 10.0, 10.0], [True, True, False, False, False, False]),
        # The highest is the odd one.
        ([5.0, 5.0, 5.0, 10.0], [False] * 4),
        ([9.0, NAN, 10.0, 10.0, 10.0], [True, False, False, False, False]),
        # Two others are too few, and one that was not read is none.
        ([9.0, 10.0, 10.0], [False] * 3),
        ([9.0, NAN, 10.0, 10.0], [False] * 4),
        ([NAN] * 4, [False] * 4),
    ],
)
def test_a_device_is_held_against_at_least_three_others(values, below):
    """Below 95 % of their median; other nodes change nothing."""
    beside = [1.0] * len(values)
    found = below_others(np.array([beside, values]), 0.95)
    assert found.tolist() == [[False] * len(values), below]
