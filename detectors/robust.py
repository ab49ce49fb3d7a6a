"""Medians and other statistics in which NaN means "not read": never a warning, NaN where nothing was read."""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Reals = npt.NDArray[np.floating]


def nan_median(values: Reals, axis: int = 0) -> Floats:
    """Return the median of what was read along ``axis``; one sort, several times faster than
    ``np.nanmedian``.
    """
    ordered = np.sort(values, axis=axis)
    if axis:
        ordered = ordered.T if ordered.ndim == 2 else np.moveaxis(ordered, axis, 0)
    size = len(ordered)
    if size == 0:
        return np.full(ordered.shape[1:], np.nan)
    # What was not read is sorted to the end: where the last is finite, so is all of it.
    if np.isfinite(ordered[-1]).all():
        return _halfway(ordered[(size - 1) // 2], ordered[size // 2])
    count = np.isfinite(ordered).sum(axis=0)
    middle = np.stack((np.maximum(count - 1, 0) // 2, np.minimum(count // 2, size - 1)))
    low, high = np.take_along_axis(ordered, middle, axis=0)
    return np.where(count > 0, _halfway(low, high), np.nan)[()]


def median(values: Floats, axis: int = 0) -> Floats:
    """Return the median of values that were all read; for short rows much faster than ``np.median``."""
    ordered = np.sort(values, axis=axis)
    size = values.shape[axis]
    return _halfway(ordered.take((size - 1) // 2, axis), ordered.take(size // 2, axis))


def nan_mean(values: Floats, axis: int = 0) -> Floats:
    """Return the mean of what was read along ``axis``."""
    count = np.isfinite(values).sum(axis=axis)
    mean: Floats = np.where(count > 0, np.nansum(values, axis=axis) / np.maximum(count, 1), np.nan)
    return mean


def nan_max(values: Floats, axis: int = 0) -> Floats:
    """Return the largest value that was read along ``axis``."""
    largest = np.max(np.where(np.isfinite(values), values, -np.inf), axis=axis)
    result: Floats = np.where(np.isfinite(largest), largest, np.nan)
    return result


def spread(values: Floats, axis: int = 0) -> Floats:
    """Return 1.4826 times the median absolute deviation along ``axis``: sigma, if the values were
    Gaussian.
    """
    middle = np.expand_dims(nan_median(values, axis), axis)
    return 1.4826 * nan_median(np.abs(values - middle), axis)


def _halfway(low: Reals, high: Reals) -> Floats:
    middle: Floats = 0.5 * np.add(low, high, dtype=np.float64)
    return middle
