"""Medians and other statistics in which NaN means "not read": never a warning, NaN where nothing was read."""

import math

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Reals = npt.NDArray[np.floating]

# So few along the axis, and so many values in all, are put in order faster by exchanges than by sorting.
FEW, MANY = 8, 8192


def nan_median(values: Reals, axis: int = 0, *, least: int = 1) -> Floats:
    """Return the median of what was read along ``axis``, NaN where that is fewer than ``least``; one sort,
    several times faster than ``np.nanmedian``.
    """
    return _halfway(*nan_middle(values, axis, least=least))


def nan_middle(values: Reals, axis: int = 0, *, least: int = 1) -> tuple[Reals, Reals]:
    """Return the two values between which the median of what was read along ``axis`` lies, the same one twice
    of an odd number; NaN where fewer than ``least`` were read.
    """
    ordered = _ordered(values, axis)
    size = len(ordered)
    if size < least:
        nothing = np.full(ordered.shape[1:], np.nan)
        return nothing, nothing
    # What was not read is ordered to the end: where the last is finite, so is all of it.
    if np.isfinite(ordered[-1]).all():
        return ordered[(size - 1) // 2], ordered[size // 2]
    count = np.isfinite(ordered).sum(axis=0)
    middle = np.stack((np.maximum(count - 1, 0) // 2, np.minimum(count // 2, size - 1)))
    low, high = np.take_along_axis(ordered, middle, axis=0)
    return np.where(count >= least, low, np.nan), np.where(count >= least, high, np.nan)


class Pool:
    """Many values, NaN where not read, of which the median is asked without a few, up to ``most``: as of all
    others of a role, one rank after the other. ``count`` of them were read.

    Without m of the N values, the j-th in order is one of the j-th to (j+m)-th of all: only the middle of
    them is put in order, once.
    """

    def __init__(self, values: Reals, *, most: int) -> None:
        read = values[np.isfinite(values)]
        self.count = read.size
        self._first = max((self.count - most - 1) // 2, 0)
        last = min((self.count + most) // 2, self.count - 1)
        if self.count:
            read.partition([self._first, last])
        self._middle = np.sort(read[self._first : last + 1])

    def median_without(self, some: Reals) -> float:
        """Return the median of the values without ``some`` of them; NaN where none are left."""
        read = np.sort(some[np.isfinite(some)])
        left = self.count - read.size
        if not left:
            return math.nan
        # How many of the others are at most as large as each of the middle.
        place = self._first + 1 + np.arange(self._middle.size)
        place -= np.searchsorted(read, self._middle, side="right")
        low, high = (self._middle[np.argmax(place > nth)] for nth in ((left - 1) // 2, left // 2))
        return float(_halfway(low, high))


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


def _ordered(values: Reals, axis: int) -> Reals:
    """Return the values in ascending order along ``axis``, which becomes the first; what was not read comes
    last, as NaN or infinity.
    """
    if values.shape[axis] <= FEW and values.size >= MANY:
        return _exchanged(np.moveaxis(values, axis, 0))
    ordered = np.sort(values, axis=axis)
    if not axis:
        return ordered
    return ordered.T if ordered.ndim == 2 else np.moveaxis(ordered, axis, 0)


def _exchanged(lines: Reals) -> Reals:
    """Return a few long lines in order, by odd and even neighbours changing places in turn (Knuth, volume 3,
    5.3.4): all elements of a line at once.
    """
    ordered = np.where(np.isnan(lines), np.inf, lines)
    for turn in range(len(lines)):
        low, high = ordered[turn % 2 : -1 : 2], ordered[turn % 2 + 1 :: 2]
        least = np.minimum(low, high)
        np.maximum(low, high, out=high)
        low[...] = least
    return ordered


def _halfway(low: Reals, high: Reals) -> Floats:
    middle: Floats = 0.5 * np.add(low, high, dtype=np.float64)
    return middle
