"""The latest samples of many series, transformed, and their contrast with sibling series."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from detectors.changepoint.bank import Groups
from detectors.changepoint.sibling_contrast import Contrast, contrast
from detectors.changepoint.standardise import Floats, History, Scale, Transformer
from detectors.robust import nan_median

Ints = NDArray[np.int64]


class Readings:
    """Hold the last ``rows`` rows of each group of series; series are numbered group after group.

    ``history`` has them in transformed units, in which noise is additive and alike at every level.
    """

    def __init__(self, scales: Sequence[Scale], *, rows: int, groups: int) -> None:
        self._scales, self._rows = tuple(scales), rows
        self._transform = Transformer(scales)
        self._numbers = np.arange(len(scales) * groups).reshape(groups, len(scales))
        self.history = History(rows, len(scales), groups)

    def scale(self, series: int) -> Scale:
        """Return the scale of one series."""
        return self._scales[series % len(self._scales)]

    def lanes(self, groups: Groups) -> Groups:
        """Return the series of some groups, as a slice where they are neighbours."""
        if isinstance(groups, slice):
            start, stop, _ = groups.indices(len(self._numbers))
            return slice(start * len(self._scales), stop * len(self._scales))
        return self._numbers[groups].reshape(-1)

    def append(self, t: Floats, x: Floats, groups: Groups) -> Floats:
        """Add a row of readings x [groups, series] of event times t [groups]; return it transformed."""
        y = self._transform(x)
        self.history.append(t, y, groups)
        return y

    def contrast(self, series: int, siblings: Sequence[int], onset: float) -> Contrast | None:
        """Return how one series moved at event time `onset` against the median of its siblings.

        In transformed units. None while there are too few samples on either side of the onset.
        """
        times, values = self.history.rows((series, *siblings))
        apart = values[:, 0] - nan_median(values[:, 1:], axis=1)
        floor = self.scale(series).floor
        return contrast(apart[times < onset], apart[times >= onset], floor=floor)

    def shifts(self, series: Ints, siblings: Ints, onsets: Floats) -> Floats:
        """Return the `shift` of many contrasts at once: series [n], siblings [n, m], onsets [n]; NaN where
        either side of the onset was not read."""
        times, values = self.history.unordered(np.concatenate((series[None], siblings.T)))
        apart = values[0] - nan_median(values[1:])
        before = times < onsets[:, None]
        return nan_median(np.where(before, np.nan, apart), axis=1) - nan_median(
            np.where(before, apart, np.nan), axis=1
        )

    def past(self, series: int, before: float) -> tuple[Floats, Floats]:
        """Return event times and values, in its own unit, of one series from before `before`."""
        times, values = self.history.last(series, self._rows)
        older = times < before
        raw = self.scale(series).raw
        return times[older], np.array([raw(y) for y in values[older].tolist()], np.float64)
