"""The ladder of windows: which statistics of the last steps are weighed, and how they are computed."""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from detectors.decision.families import Families
from detectors.decision.history import PAST, History

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.intp]
Bools = npt.NDArray[np.bool_]

LENGTHS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
ORDERS = ((3, 0), (4, 0), (6, 1), (8, 2), (12, 3))
"""Windows of order statistics, and how many of their steps may be quick; both ascending."""

_LONGEST_ORDER = ORDERS[-1][0]

WINDOWS: Ints = np.array([*LENGTHS, *(window for window, _ in ORDERS)], dtype=np.intp)
_EVERY = np.maximum(1, WINDOWS // 8) * (np.arange(len(WINDOWS)) < len(LENGTHS))
_EVERY = np.maximum(_EVERY, 1)

LEAST_PAST = 8
"""Steps before a window, at least: a baseline of fewer is as noisy as the shift sought."""

_SHORT = 16
"""Windows up to so many steps may owe their mean to a burst of outliers (chosen: longer than any burst of
recorded jobs); in longer ones the clip leaves little of it."""

THRESHOLD = 15.5
"""Nats. Among 1,000 ranks, 20 statistics and 1,000 steps, exp(-15.5) leaves 4 crossings if all were
independent and Gaussian; overlapping windows leave a tenth. Less 1/2 ln(L / 8): long windows are fewer
tests."""


def threshold(windows: Ints) -> Floats:
    """Return the evidence in nats beyond which a statistic of each window is a crossing."""
    found: Floats = THRESHOLD - 0.5 * np.log(windows / 8.0)
    return found


@dataclass(frozen=True, slots=True)
class Rungs:
    """The statistics due at a step: numbers ``which`` into ``WINDOWS`` and ``values`` [which, atoms]."""

    which: Ints
    values: Floats


class Recent:
    """The last steps as the means over the atoms of ``families``, [_LONGEST_ORDER, atoms], newest first."""

    def __init__(self, families: Families) -> None:
        self._families = families
        self._rows: list[Floats] = []

    def push(self, history: History) -> None:
        """Take the step that ``history`` took last."""
        self._rows = [self._families.means(history.last(1)[0]), *self._rows[: _LONGEST_ORDER - 1]]

    def renew(self, history: History) -> None:
        """Take all steps anew: values that ``history`` holds have been shifted."""
        self._rows = list(self._families.means(history.last(len(self._rows)))[::-1])

    def orders(self) -> list[Floats]:
        """Return the order statistics of ``ORDERS``, each [atoms]; of fewer steps than their windows, fewer.

        One pass of insertion from the newest step back: ``lowest`` are the smallest values so far, in order.
        """
        found: list[Floats] = []
        lowest: list[Floats] = []
        for steps, row in enumerate(self._rows, start=1):
            carried = row
            for place, low in enumerate(lowest):
                lowest[place], carried = np.minimum(low, carried), np.maximum(low, carried)
            if len(lowest) <= ORDERS[-1][1]:
                lowest.append(carried)
            if steps == ORDERS[len(found)][0]:
                found.append(lowest[ORDERS[len(found)][1]])
        return found


def due(history: History, *, every: int) -> Ints:
    """Return the statistics that are evaluated at this step: each every eighth of its window, and every
    ``every`` steps at most."""
    past = np.maximum(LEAST_PAST, WINDOWS // 4)
    ready = (history.seen % np.maximum(_EVERY, every) == 0) & (history.steps >= WINDOWS + past)
    return np.flatnonzero(ready)


def climb(history: History, families: Families, recent: Recent, *, every: int) -> Rungs:
    """Compute the statistics due at this step.

    Means: D_L = mean(last L) - mean(up to 256 before) of clipped values, for 15 lengths L = 2 … 256. Order
    statistics: the k-th smallest of the last m unclipped values less the same baseline, for (m, k) = (3, 1),
    (4, 1), (6, 2), (8, 3), (12, 4): large only if nearly every step of the window is slow, and then the
    size of what is sustained. Values are log seconds over the role's; both are formed of the members' means
    per atom. The ladder is that of multi-scale scan statistics; each rung is evaluated every L/8 steps, which
    loses at most a sixteenth of a shift's window.
    """
    which = due(history, every=every)
    lengths = [int(WINDOWS[s]) for s in which if s < len(LENGTHS)]
    orders = [int(s) - len(LENGTHS) for s in which if s >= len(LENGTHS)]
    rows = [history.mean(0, length) - history.mean(length, PAST) for length in lengths]
    rows += [-history.mean(ORDERS[order][0], PAST) for order in orders]
    if not rows:
        return Rungs(which, np.zeros((0, families.atoms)))
    values = families.means(np.stack(rows))
    if orders:
        lows = recent.orders()
        for row, order in enumerate(orders, start=len(lengths)):
            values[row] += lows[order]
    return Rungs(which, values)


class Bursts:
    """How often steps are outliers, and how long these last: what a burst of them may pass for.

    A burst of m outlier steps has probability epsilon rho^(m-1) per step, so that evidence that m slow steps
    give is at most -ln epsilon - (m - 1) ln rho nats. epsilon is the rate at which bursts begin, per
    rank and step, rho the chance that one goes on for another step, both from *finished* bursts with a weak
    prior (epsilon 1/1000 from 500 rank-steps, rho 0.1 from five outliers): a fault that still lasts must not
    teach itself away.
    """

    def __init__(self, ranks: int) -> None:
        self._running = np.zeros(ranks, dtype=np.intp)
        self._begun, self._rank_steps = 0.5, 500.0
        self._went_on, self._outliers = 0.5, 5.0
        self._recent = np.zeros((_SHORT, ranks), dtype=np.bool_)
        self._steps = 0

    def update(self, outlier: Bools, *, aside: Bools) -> None:
        """Take which ranks were outliers in a step; those ``aside`` (explained as slow) teach nothing."""
        self._recent[self._steps % len(self._recent)] = outlier
        self._steps += 1
        over = (self._running > 0) & ~outlier & ~aside
        lengths = self._running[over]
        self._begun += len(lengths)
        self._went_on += float((lengths - 1).sum())
        self._outliers += float(lengths.sum())
        self._rank_steps += float((~aside).sum())
        self._running = np.where(outlier & ~aside, self._running + 1, 0)

    def caps(self, which: Ints, families: Families) -> Floats:
        """Return the most evidence [statistics, atoms] that outlier steps can give."""
        most = np.full((len(which), families.atoms), np.inf)
        begin, go_on = -math.log(self._begun / self._rank_steps), -math.log(self._went_on / self._outliers)
        recent = np.roll(self._recent, -(self._steps % len(self._recent)), axis=0)
        for row, s in enumerate(which):
            window = int(WINDOWS[s])
            if window > _SHORT:
                continue
            if s < len(LENGTHS):
                burst = families.means(recent[-window:].sum(axis=0).astype(np.float64))
                most[row] = np.where(burst >= 0.5, begin + (np.maximum(burst, 1.0) - 1.0) * go_on, np.inf)
            else:
                most[row] = begin + (window - ORDERS[s - len(LENGTHS)][1] - 1) * go_on
        return most
