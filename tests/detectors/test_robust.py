import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from detectors.robust import FEW, MANY, Pool, median, nan_max, nan_mean, nan_median, nan_middle, spread


def test_statistics_leave_out_what_was_not_read():
    """NaN is skipped, and a row of nothing gives NaN without a warning."""
    values = np.array([[1.0, np.nan, 3.0, 8.0], [np.nan] * 4])
    assert nan_median(values, axis=1) == pytest.approx([3.0, np.nan], nan_ok=True)
    assert nan_mean(values, axis=1) == pytest.approx([4.0, np.nan], nan_ok=True)
    assert nan_median(values, axis=1, least=4) == pytest.approx([np.nan, np.nan], nan_ok=True)
    assert nan_max(values, axis=1) == pytest.approx([8.0, np.nan], nan_ok=True)
    assert spread(values, axis=1) == pytest.approx([1.4826 * 2, np.nan], nan_ok=True)


def test_median_agrees_with_numpy():
    """Along either axis the median is numpy's."""
    values = np.random.default_rng(1).normal(size=(7, 6))
    assert nan_median(values) == pytest.approx(np.median(values, axis=0))
    assert nan_median(values, axis=1) == pytest.approx(np.median(values, axis=1))
    assert median(values).tolist() == np.median(values, axis=0).tolist()
    assert median(values, axis=1).tolist() == np.median(values, axis=1).tolist()


@pytest.mark.parametrize("size", range(1, FEW + 1))
def test_median_of_a_few_long_lines_is_that_of_each_column(size):
    """A few long lines give what their columns give one by one, whatever was not read of them."""
    values = np.random.default_rng(size).normal(size=(size, MANY))
    values[np.random.default_rng(9).random(values.shape) < 0.2] = np.nan

    for held in (values, np.nan_to_num(values)):
        columns = [float(nan_median(column)) for column in held[:, :200].T]
        np.testing.assert_array_equal(nan_median(held)[:200], columns)
        np.testing.assert_array_equal(nan_median(held.T, axis=1)[:200], columns)


def test_median_of_single_precision_is_taken_in_double():
    """Half-way between two float32 that are neighbours is neither of them."""
    low = np.float32(1.0)
    high = np.nextafter(low, np.float32(2.0))
    half_way = (float(low) + float(high)) / 2

    assert float(nan_median(np.array([low, high]))) == half_way
    assert float(nan_median(np.array([high, np.nan, low], np.float32))) == half_way


def test_fewer_than_asked_for_have_no_median():
    """Also where all that there is was read."""
    assert np.isnan(nan_median(np.ones((2, 3)), least=3)).tolist() == [True] * 3
    assert nan_median(np.ones((3, 2)), least=3).tolist() == [1.0, 1.0]


@pytest.mark.parametrize("unread", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("decimals", [0, 6], ids=["many are equal", "all differ"])
def test_a_pool_has_the_median_of_the_others(decimals, unread):
    """Of all values without those of one column, as if they were put in order without them."""
    rng = np.random.default_rng(decimals)
    for steps, ranks in ((1, 1), (1, 2), (2, 3), (7, 5), (40, 8)):
        values = rng.normal(size=(steps, ranks)).round(decimals).astype(np.float32)
        values[rng.random(values.shape) < unread] = np.nan
        pool = Pool(values, most=steps)
        for rank in range(ranks):
            others = np.delete(values, rank, axis=1).ravel()
            expected = float(nan_median(others)) if others.size else np.nan
            np.testing.assert_array_equal(pool.median_without(values[:, rank]), expected)


def test_the_median_lies_between_the_middle_values():
    """Of an odd number it is one of them, and nothing was read of the last column."""
    values = np.array([[3.0, 1.0, np.nan], [1.0, np.nan, np.nan], [2.0, 4.0, np.nan]])
    low, high = nan_middle(values)
    np.testing.assert_array_equal(low, [2.0, 1.0, np.nan])
    np.testing.assert_array_equal(high, [2.0, 4.0, np.nan])


readings = st.one_of(st.just(np.nan), st.floats(-1e6, 1e6))


@given(hnp.arrays(np.float64, hnp.array_shapes(max_dims=3, max_side=5), elements=readings), st.data())
def test_statistics_along_any_axis_are_those_of_what_was_read(values, data):
    """Of one to three dimensions each line gives what its finite values give, NaN where there is none."""
    axis = data.draw(st.integers(0, values.ndim - 1))
    for ours, of in ((nan_median, np.median), (nan_mean, np.mean), (nan_max, np.max)):

        def read(line, of=of):
            return of(line[line == line]) if (line == line).any() else np.nan

        np.testing.assert_allclose(ours(values, axis), np.apply_along_axis(read, axis, values), atol=1e-9)
