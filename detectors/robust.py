"""Medians and other statistics in which NaN means "not read": never a warning, NaN where nothing was read."""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def nan_median(values: Floats, axis: int = 0) -> Floats:
    """Return the median of what was read along ``axis``; one sort, several times faster than
    ``np.nanmedian``.
    """
    ordered = np.sort(np.moveaxis(values, axis, -1), axis=-1)
    count = np.isfinite(ordered).sum(axis=-1, keepdims=True)
    if ordered.shape[-1] == 0:
        return np.full(ordered.shape[:-1], np.nan)
    low = np.take_along_axis(ordered, np.maximum(count - 1, 0) // 2, axis=-1)
    high = np.take_along_axis(ordered, np.minimum(count // 2, ordered.shape[-1] - 1), axis=-1)
    middle: Floats = np.where(count > 0, 0.5 * (low + high), np.nan)[..., 0]
    return middle


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
