"""A second opinion on a change, after the alarm: the recent past of one series segmented anew, offline.

Killick et al.'s penalised segmentation with the kernel search of ruptures (Truong, Oudre & Vayatis, 2020). It
sees both sides of the change, which the online detectors do not, and is no part of them: it never raises, and
without ruptures it has no opinion.
"""

import math
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from types import ModuleType

import numpy as np
import numpy.typing as npt

from detectors.changepoint.standardise import baseline

Floats = npt.NDArray[np.float64]

WINDOW = 200
MIN_STEPS = 5
"""Samples looked at, and the least on either side of a change: with fewer there is no opinion."""

NEAR = 5
"""Samples by which the two may differ about the time of one change."""

_PENALTY = 3.0
"""Times log n for each change: BIC asks one; spikes and autocorrelation would buy changes at that price."""

_SCALE_FLOOR = 1e-3
_MOVE_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class Opinion:
    """Whether the change is ``confirmed``, and as it looks in hindsight.

    ``age`` is the number of samples since then, ``before`` and ``after`` the medians on its two sides,
    ``further`` how many more changes of at least half its size the window holds (rungs of a ladder).
    """

    confirmed: bool
    age: int
    before: float
    after: float
    further: int


def second_opinion(x: Floats, age: int) -> Opinion | None:
    """Judge a change said to have come ``age`` samples before the end of ``x`` (NaN = not read).

    None where nothing can be said: too few samples on either side, or ruptures is not installed.
    """
    window = x[-WINDOW:]
    read = np.flatnonzero(np.isfinite(window))
    series = window[read]
    said = int(np.searchsorted(read, len(window) - age))
    ruptures = _ruptures()
    if ruptures is None or not MIN_STEPS <= said <= len(series) - MIN_STEPS:
        return None
    edges = [0, *_segments(ruptures, series)]
    moves = np.abs(np.diff([np.median(series[a:b]) for a, b in pairwise(edges)]))
    inner = np.array(edges[1:-1])
    nearest = int(np.argmin(np.abs(inner - said))) if inner.size else -1
    confirmed = bool(inner.size and abs(inner[nearest] - said) <= NEAR)
    at = int(inner[nearest]) if confirmed else said
    before, after = float(np.median(series[:at])), float(np.median(series[at:]))
    own = moves[nearest] if confirmed else abs(after - before)
    others = np.delete(moves, nearest) if confirmed else moves
    further = int((others >= _MOVE_SHARE * own).sum())
    return Opinion(confirmed, len(window) - int(read[at]), before, after, further)


def _segments(ruptures: ModuleType, series: Floats) -> list[int]:
    """Return the ends of the segments, the last included."""
    # The scale is that of the noise between neighbours: the series' own spread would contain the change.
    # Differences do not contain the changes looked for; those of independent samples are √2 as noisy.
    _, scale = baseline(np.diff(series) / math.sqrt(2.0), _SCALE_FLOOR)
    calm = _median_of_three(series)
    z = (calm - np.median(calm)) / scale
    search = ruptures.KernelCPD(kernel="linear", min_size=MIN_STEPS, jump=1)
    ends: list[int] = search.fit(z[:, None]).predict(pen=_PENALTY * math.log(len(series)))
    return ends


def _median_of_three(series: Floats) -> Floats:
    """Take out single spikes; an edge stays where it is."""
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
