"""What is compared of a step: each rank's own work, its unexplained rest and its loading, against its role.

``compute`` is ln of the rank's own seconds: its compute time, else the step without waits, loading and
checkpoint, else the step, chosen per rank. ``rest`` is ln(1 + (step - wait - compute - data - checkpoint) /
T0), own time that is neither work nor loading, so that transfers show whether or not they are reported.
``data`` is ln(1 + data / T0). T0 [s] is the job's usual step.
"""

import numpy as np
import numpy.typing as npt

from detectors.peers.ratios import StepTimes
from detectors.robust import nan_median
from detectors.straggler.core import Timing

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.intp]
Bools = npt.NDArray[np.bool_]

QUANTILE = 0.35
"""Of a role, its location. Below the median, so that nearly two thirds may be slow; not lower, for a low
quantile is noisier."""

LEAST_ROLE = 4
"""Ranks of a role below which the role's location is no reference for one of them
(``peers.MIN_PEERS`` + 1)."""


def columns_reported(times: StepTimes) -> Ints:
    """Return a number for the set of columns that each rank reports, [ranks]; -1 where it has no row."""
    reported = [np.isfinite(v).astype(np.intp) for v in (times.compute, times.wait, times.data)]
    return np.where(np.isfinite(times.step), reported[0] * 4 + reported[1] * 2 + reported[2], -1)


def measured(times: StepTimes, usual_step: float) -> dict[Timing, Floats]:
    """Return the compared value of each channel, [ranks]; NaN where a rank does not report it."""
    outside = np.nan_to_num(times.data) + np.nan_to_num(times.checkpoint)
    work = np.where(np.isfinite(times.wait), times.step - times.wait - outside, times.step)
    own = np.where(np.isfinite(times.compute), times.compute, work)
    rest = np.maximum(times.step - times.wait - times.compute - outside, 0.0)
    return {
        "compute": np.log(np.where(own > 0, own, np.nan)),
        "rest": np.log1p(rest / usual_step),
        "data": np.log1p(np.maximum(times.data, 0.0) / usual_step),
    }


def usual_step(steps: Floats) -> float:
    """Return the usual seconds of a step, from ``steps`` [steps, ranks]; 1 where none was read."""
    usual = float(nan_median(nan_median(steps, axis=1)))
    return usual if usual > 0 else 1.0


class Roles:
    """Who is compared with whom: ranks of the same ``label``; ``small`` are those in roles too few for that.

    Ranks of small roles are compared with the whole job, each less what is usual for it.
    """

    def __init__(self, labels: Ints, present: Bools) -> None:
        groups = [np.flatnonzero(present & (labels == label)) for label in np.unique(labels[present])]
        self.small = np.zeros(len(labels), dtype=np.bool_)
        for group in groups:
            self.small[group] = len(group) < LEAST_ROLE
        self.small_groups = [group for group in groups if 2 <= len(group) < LEAST_ROLE]
        self.groups = [group for group in groups if len(group) >= LEAST_ROLE]
        self.of = np.full(len(labels), -1, dtype=np.intp)
        for number, group in enumerate(self.groups):
            self.of[group] = number
        widest = max((len(group) for group in self.groups), default=0)
        # A padded table, so that one sort serves all roles; the pad reads a NaN behind the last rank.
        self._table = np.full((len(self.groups), widest), len(labels), dtype=np.intp)
        for number, group in enumerate(self.groups):
            self._table[number, : len(group)] = group

    def locations(self, values: Floats) -> Floats:
        """Return the location of each role, [..., roles], of values [..., ranks]."""
        padded = np.concatenate([values, np.full((*values.shape[:-1], 1), np.nan)], axis=-1)
        return low_quantile(padded[..., self._table])

    def relative(self, values: Floats, usual: Floats) -> Floats:
        """Return ``values`` [..., ranks] less the location of their role; of ranks in small roles, less what
        is ``usual`` for them and less the whole job's location."""
        found: Floats = np.full_like(values, np.nan)
        if self.groups:
            member = self.of >= 0
            found[..., member] = values[..., member] - self.locations(values)[..., self.of[member]]
        if self.small.any():
            own = values - usual
            found[..., self.small] = (own - low_quantile(own)[..., None])[..., self.small]
        return found


def low_quantile(values: Floats) -> Floats:
    """Return the location quantile over the last axis, of what was read; NaN where nothing was."""
    ordered = np.sort(values, axis=-1)
    last = np.isfinite(values).sum(axis=-1) - 1
    place = QUANTILE * np.maximum(last, 0)
    low = np.floor(place).astype(np.intp)
    high = np.minimum(low + 1, np.maximum(last, 0))
    lower = np.take_along_axis(ordered, low[..., None], axis=-1)[..., 0]
    upper = np.take_along_axis(ordered, high[..., None], axis=-1)[..., 0]
    found: Floats = lower + (place - low) * (upper - lower)
    return found
