"""Saving of checkpoints that takes all ranks of a job longer than before: storage that has become slow.

The saving of a step is the lower quartile of the seconds of its ranks that save, so that one of several
machines which saves more slowly than the others does not count, and no more than the step takes: what is
saved beside the training costs nothing else. The last three saves are slow where each takes at least 1.5
times as long as the longest of up to sixteen before, of which three are known, and a second longer: a full
save among partial ones comes at most once in so many. That is a finding where the job takes 1.05 times as
long for it, and over once two of the last three are not slow any more, or none has come for three times the
longest time between two. The limits are chosen.
"""

from collections import deque
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from detectors.job.imbalance import MIN_JOB_SLOWDOWN

Floats = npt.NDArray[np.float64]

# Saves before that are known, at least and at most, and those in a row that are slow.
_FEWEST, _KEPT, _IN_A_ROW = 3, 16, 3

# Of the longest one before, and in seconds.
_TIMES, _LEAST_SECONDS = 1.5, 1.0

_MOST_RANKS = 0.25

# Times the longest time between two saves.
_MISSED = 3.0


@dataclass(frozen=True, slots=True)
class _Save:
    started: float
    ended: float
    seconds: float


@dataclass(frozen=True, slots=True)
class SlowSaves:
    """Saves that take ``seconds``, ``usual`` before, since the first of ``count`` which began and ended at
    ``onset_lo`` and ``onset`` [event time]; ``lost`` [s] in all: the job takes ``slowdown`` times as long.
    """

    seconds: float
    usual: float
    count: int
    onset_lo: float
    onset: float
    lost: float
    slowdown: float


class SlowSaving:
    """Watches the saves of one run of a job; ``found`` is how slow they are, None while they are as usual.

    >>> watch = SlowSaving()
    >>> for minute in range(8):
    ...     took = 3.0 if minute < 5 else 12.0
    ...     watch.update(np.array([took, took, np.nan, 0.0]), ended=60.0 * minute, step_seconds=took + 1.0)
    >>> watch.found.count, watch.found.usual, watch.found.lost, watch.found.onset
    (3, 3.0, 27.0, 300.0)
    """

    def __init__(self) -> None:
        self._before: deque[_Save] = deque(maxlen=_KEPT)
        self._last: deque[_Save] = deque()
        self._limit = self._usual = self._lost = self._apart = 0.0
        self._first: _Save | None = None
        self._count = 0
        self.found: SlowSaves | None = None

    def update(self, saving: Floats, *, ended: float, step_seconds: float) -> None:
        """Take the seconds for which each rank saves in a step, [ranks]; 0 or NaN: it does not."""
        seconds = saving[saving > 0]
        if not seconds.size:
            if self._first is not None and ended > self._last[-1].ended + _MISSED * self._apart:
                self._end()
            return
        most = float(np.quantile(seconds, _MOST_RANKS, method="lower"))
        save = _Save(ended - step_seconds, ended, min(most, step_seconds))
        self._last.append(save)
        if len(self._last) > _IN_A_ROW:
            passed = self._last.popleft()
            if self._first is None:
                self._before.append(passed)
        self.found = self._begin() if self._first is None else self._go_on(save, self._first)

    def _begin(self) -> SlowSaves | None:
        if len(self._before) < _FEWEST or len(self._last) < _IN_A_ROW:
            return None
        longest = max(save.seconds for save in self._before)
        self._limit = max(_TIMES * longest, longest + _LEAST_SECONDS)
        if not all(save.seconds >= self._limit for save in self._last):
            return None
        self._usual = float(np.median([save.seconds for save in self._before]))
        self._lost = sum(save.seconds - self._usual for save in self._last)
        self._count = len(self._last)
        found = self._described(self._last[0])
        if found is None or found.slowdown < MIN_JOB_SLOWDOWN:
            return None
        self._first = self._last[0]
        ends = [save.ended for save in (*self._before, *self._last)]
        self._apart = float(np.diff(ends).max())
        return found

    def _go_on(self, save: _Save, first: _Save) -> SlowSaves | None:
        if 2 * sum(last.seconds >= self._limit for last in self._last) < len(self._last):
            self._end()
            return None
        self._lost += max(save.seconds - self._usual, 0.0)
        self._count += 1
        return self._described(first)

    def _end(self) -> None:
        self._first = self.found = None
        # What was slow is no part of what is usual.
        self._last = deque(last for last in self._last if last.seconds < self._limit)

    def _described(self, first: _Save) -> SlowSaves | None:
        elapsed = self._last[-1].ended - self._before[-1].ended
        if not self._lost < elapsed:
            # Times that overlap are not what the steps waited for.
            return None
        return SlowSaves(
            seconds=float(np.median([save.seconds for save in self._last])),
            usual=self._usual,
            count=self._count,
            onset_lo=first.started,
            onset=first.ended,
            lost=self._lost,
            slowdown=1.0 + self._lost / (elapsed - self._lost),
        )
