"""Watches what all ranks of a job wait for alike: nobody's fault among them, and longer than it was.

A slow rank makes the others wait and waits for nobody, so the shortest wait over all ranks is none of its
doing: it is for data that come late everywhere, or for something outside of the ranks that nobody measures.
Only a rise without a change of the work counts; what the job computes may change by plan.
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from detectors.ratios import Ratios
from detectors.robust import nan_median

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

Wait = Literal["input", "unmeasured"]
"""For data, as the ranks say themselves; or what is left of a step beside all that they name."""

MIN_JOB_SLOWDOWN = 1.10
"""Storage and what surrounds a job differ from hour to hour; less is not worth a word."""

STEPS, LASTS_SECONDS = 10, 20.0
"""Steps and time a wait must have been longer for: pauses of a few are usual, whatever a step takes."""

_LEAST_PAST = 40
_SHARE_BEGINS, _SHARE_GOES_ON = 0.9, 0.5
"""Of the last steps, for a longer wait to show and to go on."""

_CLEAR_SIGMAS = 5.0
_FLOOR = 0.01
"""Smallest credible noise of a wait, as a share of the step."""

_READ_BEFORE, _READ_NOW = 0.25, 0.5
"""Of the steps before and of the last ones: a rank that falls silent as a wait grows is not forgotten
before the longer wait is what is usual."""

_SAME_WORK = 0.05
"""A change of compute beyond it, in logs, means that the work has changed, and what is around it as well."""


@dataclass(frozen=True, slots=True)
class SharedWait:
    """Every rank waits at least ``seconds`` of each step now, and waited ``usual`` before.

    The job takes ``job_slowdown`` times as long for it; ``high`` [steps settled] are the steps that show it.
    """

    seconds: float
    usual: float
    job_slowdown: float
    high: Bools


@dataclass(frozen=True, slots=True)
class _Past:
    """What was usual before a wait grew longer; ``work`` is the log of compute."""

    seconds: float
    limit: float
    work: float


class SharedWaitWatch:
    """Looks at one kind of wait; while it shows, what was usual before stays what it is compared with."""

    def __init__(self, wait: Wait) -> None:
        self._wait = wait
        self._before: _Past | None = None

    def look(self, ratios: Ratios) -> SharedWait | None:
        """Return the longer wait that the last steps of ``ratios`` show, or None."""
        recent = _recent(ratios)
        if ratios.settled < recent + _LEAST_PAST or _someone_fell_silent(ratios, recent):
            return None
        seconds = shared_seconds(ratios, self._wait)
        began = self._before is None
        past = self._before or _past(ratios, seconds, recent)
        high = seconds > past.limit
        now = float(nan_median(seconds[-STEPS:]))
        slowdown = _job_slowdown(ratios, now - past.seconds)
        shows = (
            np.mean(high[-recent:]) >= _SHARE_BEGINS if began else np.mean(high[-STEPS:]) >= _SHARE_GOES_ON
        )
        if not shows or (began and (slowdown < MIN_JOB_SLOWDOWN or _work_changed(ratios, past))):
            self._before = None
            return None
        self._before = past
        return SharedWait(now, past.seconds, slowdown, high)


def shared_seconds(ratios: Ratios, wait: Wait) -> Floats:
    """Return how long all ranks that were read waited alike, of each step settled; NaN where none was.

    Parts are taken one by one: a rank that is held up by itself makes the others wait, and neither is shared.
    """
    n = ratios.settled
    step, compute, waits, data, comm = (
        ratios.history.last(name, n) for name in ("step", "compute", "wait", "data", "comm")
    )
    if wait == "input":
        return _least(data)
    told = np.nan_to_num(waits)
    rest = step - compute - told - np.nan_to_num(data) - np.nan_to_num(comm)
    return _least(np.where(np.isfinite(rest), told, np.nan)) + _least(rest)


def _least(seconds: Floats) -> Floats:
    least: Floats = np.fmin.reduce(seconds, axis=1)
    return least


def _someone_fell_silent(ratios: Ratios, recent: int) -> bool:
    """Tell whether a rank that was read before is not any more: it may be the one that all wait for."""
    read = np.isfinite(ratios.history.last("compute", ratios.settled))
    before, now = read[:-recent].mean(axis=0), read[-STEPS:].mean(axis=0)
    return bool(((before >= _READ_BEFORE) & (now < _READ_NOW)).any())


def _recent(ratios: Ratios) -> int:
    """Return how many of the last steps must show a longer wait for it to begin."""
    ts = nan_median(ratios.history.last("ts", ratios.settled), axis=1)
    # Of steps so short that the history holds no more time, as many as leave a past.
    return max(STEPS, min(int((ts > ts[-1] - LASTS_SECONDS).sum()), len(ts) - _LEAST_PAST))


def _past(ratios: Ratios, seconds: Floats, recent: int) -> _Past:
    before = slice(None, -recent)
    usual = float(nan_median(seconds[before]))
    noise = 1.4826 * float(nan_median(np.abs(seconds[before] - usual)))
    step, compute = (ratios.history.last(name, ratios.settled)[before] for name in ("step", "compute"))
    limit = usual + _CLEAR_SIGMAS * max(noise, _FLOOR * float(nan_median(nan_median(step, axis=1))))
    return _Past(usual, limit, _work(compute))


def _work_changed(ratios: Ratios, past: _Past) -> bool:
    # Negated: where compute is not known, it may have changed.
    return not abs(_work(ratios.history.last("compute", STEPS)) - past.work) <= _SAME_WORK


def _work(compute: Floats) -> float:
    """Return the log of the seconds that ranks usually compute for in a step."""
    usual = float(nan_median(nan_median(compute, axis=1)))
    return math.log(usual) if usual > 0 else math.nan


def _job_slowdown(ratios: Ratios, longer: float) -> float:
    step = float(nan_median(nan_median(ratios.history.last("step", STEPS), axis=1)))
    return step / max(step - longer, 0.1 * step)
