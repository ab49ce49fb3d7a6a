import numpy as np
import pytest

from detectors.robust import median, nan_max, nan_mean, nan_median, spread


def test_statistics_leave_out_what_was_not_read():
    """NaN is skipped, and a row of nothing gives NaN without a warning."""
    values = np.array([[1.0, np.nan, 3.0, 8.0], [np.nan] * 4])
    assert nan_median(values, axis=1) == pytest.approx([3.0, np.nan], nan_ok=True)
    assert nan_mean(values, axis=1) == pytest.approx([4.0, np.nan], nan_ok=True)
    assert nan_max(values, axis=1) == pytest.approx([8.0, np.nan], nan_ok=True)
    assert spread(values, axis=1) == pytest.approx([1.4826 * 2, np.nan], nan_ok=True)


def test_median_agrees_with_numpy():
    """Along either axis the median is numpy's."""
    values = np.random.default_rng(1).normal(size=(7, 6))
    assert nan_median(values) == pytest.approx(np.median(values, axis=0))
    assert nan_median(values, axis=1) == pytest.approx(np.median(values, axis=1))
    assert median(values).tolist() == np.median(values, axis=0).tolist()
    assert median(values, axis=1).tolist() == np.median(values, axis=1).tolist()


def test_median_of_single_precision_is_taken_in_double():
    """Half-way between two float32 that are neighbours is neither of them."""
    low = np.float32(1.0)
    high = np.nextafter(low, np.float32(2.0))
    half_way = (float(low) + float(high)) / 2

    assert float(nan_median(np.array([low, high]))) == half_way
    assert float(nan_median(np.array([high, np.nan, low], np.float32))) == half_way
