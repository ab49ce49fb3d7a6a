"""Gaps in many series, by rows and by time."""

import numpy as np
import pytest

from detectors.changepoint.gaps import Gaps


def feed(gaps, t, read, lanes=slice(None)):
    return gaps.update(np.full(len(read), float(t)), np.array(read), lanes).tolist()


def test_a_gap_is_of_rows_or_of_time():
    """More missing rows, or more seconds, than allowed end in a gap; as many are none."""
    gaps = Gaps(2, rows=2, seconds=10.0)
    assert feed(gaps, 0, [True, True]) == [False, False]
    assert feed(gaps, 1, [False, False]) == [False, False]
    assert feed(gaps, 2, [False, False]) == [False, False]
    assert feed(gaps, 3, [True, False]) == [False, False]
    assert feed(gaps, 4, [True, True]) == [False, True]
    assert feed(gaps, 14, [True, True]) == [False, False]
    assert feed(gaps, 24.5, [True, True]) == [True, True]


def test_the_readings_around_the_last_gap_are_kept():
    """Start and end are those of the series that had the gap; another's stay unknown."""
    gaps = Gaps(2, rows=60, seconds=10.0)
    feed(gaps, 0, [True, True])
    feed(gaps, 100, [True], np.array([1]))
    assert gaps.start == pytest.approx([np.nan, 0.0], nan_ok=True)
    assert gaps.end == pytest.approx([np.nan, 100.0], nan_ok=True)


def test_a_series_that_was_never_read_has_no_gap():
    """There is nothing before the first reading that could be compared."""
    gaps = Gaps(1, rows=1000, seconds=10.0)
    feed(gaps, 0, [False])
    assert feed(gaps, 100, [True]) == [False]
