"""Penalised segmentation of a stored series: checks a change after its alarm, finds the levels of a plot."""

import math
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from types import ModuleType

import numpy as np
import numpy.typing as npt

from detectors.changepoint.standardise import baseline

Floats = npt.NDArray[np.float64]

# Samples segmented: the cost is O(n²), 0.5 ms at 200 (measured).
WINDOW = 200

# Least samples on either side of a change: the median of five withstands two outliers (chosen).
MIN_STEPS = 5

# Samples by which two estimates of one onset may differ: the least length of a segment (chosen).
NEAR = 5

# Factor of log n for each change. BIC has 1, at which spikes and autocorrelation add false changes.
_PENALTY = 3.0

# Least sigma of a log ratio, 0.1 %, for series that are constant but for rounding (chosen).
_SCALE_FLOOR = 1e-3

# Share of the change's own size from which another one in the window counts as a further change (chosen).
_MOVE_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class OfflineCheck:
    """The result of ``offline_check``: whether the change is ``confirmed``, and its refined estimate.

    ``age`` is the number of samples since the change, ``before`` and ``after`` the medians on its two sides,
    ``further`` the number of other changes of at least half its size in the window.
    """

    confirmed: bool
    age: int
    before: float
    after: float
    further: int


def offline_check(x: Floats, age: int) -> OfflineCheck | None:
    """Check a change that an online detector dates ``age`` samples before the end of ``x`` (NaN = not read).

    The latest 200 samples z (scaled by the sigma of their differences / √2, after a median of three that
    takes out single spikes) are divided into segments of at least 5 samples with means m_k that minimise

        Σ_k Σ_{i in k} (z_i − m_k)²  +  3 · log n · (number of changes)

    The change is confirmed where an edge lies within 5 samples of the alarm's onset. Unlike the online
    detectors this has both sides of the change; it only adds to a finding and never raises one.

    Returns None with fewer than 5 samples on either side, and where ruptures is not installed. Sources:
    penalised cost, Killick, Fearnhead and Eckley (2012), "Optimal detection of changepoints with a linear
    computational cost"; search, ruptures' KernelCPD (Truong, Oudre and Vayatis, 2020); penalty chosen.
    """
    window = x[-WINDOW:]
    read = np.flatnonzero(np.isfinite(window))
    series = window[read]
    dated = int(np.searchsorted(read, len(window) - age))
    ruptures = _ruptures()
    if ruptures is None or not MIN_STEPS <= dated <= len(series) - MIN_STEPS:
        return None
    edges = [0, *_segments(ruptures, series)]
    moves = np.abs(np.diff([np.median(series[a:b]) for a, b in pairwise(edges)]))
    inner = np.array(edges[1:-1])
    nearest = int(np.argmin(np.abs(inner - dated))) if inner.size else -1
    confirmed = bool(inner.size and abs(inner[nearest] - dated) <= NEAR)
    at = int(inner[nearest]) if confirmed else dated
    before, after = float(np.median(series[:at])), float(np.median(series[at:]))
    own = moves[nearest] if confirmed else abs(after - before)
    others = np.delete(moves, nearest) if confirmed else moves
    further = int((others >= _MOVE_SHARE * own).sum())
    return OfflineCheck(confirmed, len(window) - int(read[at]), before, after, further)


def change_points(x: Floats, least: float) -> list[int]:
    """Return where the level of ``x`` [n] changes by ``least`` or more, as indices of the first samples.

    The segmentation is that of ``offline_check``. Of neighbouring segments whose medians differ by less than
    ``least`` the closest are joined first, until none are left: on autocorrelated series, such as the drift
    of a job's steps, the penalty alone leaves edges. NaN = not read. Empty with fewer than 10 samples, and
    where ruptures is not installed.
    """
    read = np.flatnonzero(np.isfinite(x))
    series = x[read]
    ruptures = _ruptures()
    if ruptures is None or len(series) < 2 * MIN_STEPS:
        return []
    edges = [0, *_segments(ruptures, series)]
    while len(edges) > 2:
        moves = np.abs(np.diff([np.median(series[a:b]) for a, b in pairwise(edges)]))
        closest = int(np.argmin(moves))
        if moves[closest] >= least:
            break
        del edges[closest + 1]
    return [int(read[edge]) for edge in edges[1:-1]]


def _segments(ruptures: ModuleType, series: Floats) -> list[int]:
    """Return the ends of the segments, the last included."""
    # The scale comes from differences of neighbours, as the spread of the series would include the change;
    # differences of independent samples have √2 times their sigma.
    _, scale = baseline(np.diff(series) / math.sqrt(2.0), _SCALE_FLOOR)
    calm = _median_of_three(series)
    z = (calm - np.median(calm)) / scale
    search = ruptures.KernelCPD(kernel="linear", min_size=MIN_STEPS, jump=1)
    ends: list[int] = search.fit(z[:, None]).predict(pen=_PENALTY * math.log(len(series)))
    return ends


def _median_of_three(series: Floats) -> Floats:
    """Return the median of each sample and its neighbours: single spikes go, an edge stays in place."""
    padded = np.concatenate((series[:1], series, series[-1:]))
    windows = np.stack((padded[:-2], padded[1:-1], padded[2:]))
    middle: Floats = np.median(windows, axis=0)
    return middle


@cache
def _ruptures() -> ModuleType | None:
    try:
        import ruptures
    except ImportError:
        return None
    module: ModuleType = ruptures
    return module
