"""Waits that the ranks of a job share, and that have become longer.

A slow rank makes the others wait and waits for none, so the shortest wait over all ranks is not its doing:
it is for data that come late everywhere, or for something outside of the ranks that is not measured. Sees
what ``slow_network`` cannot: waits outside of collectives, and those that come from nothing, where there is
no usual time to take a ratio to.

W = min over ranks of the wait in each step [s]; of the wait for data what more than half of the ranks take
at least, or half of them on six machines and more: then no rank shows what is usual. Between
steps it is the time from the end of one to the start of the next, which belongs to neither, and the step is
the time from end to end: where data are loaded, checkpoints written or lines logged outside of the timed
step, no column shows it. A rank that is slow there by itself makes the others wait within their steps.

It has become longer when 90 % of the last steps
(10, and 20 seconds, at least) exceed m + 5 sigma, with median m and robust sd sigma (1 % of a step at least)
of the steps before, and step / (step - (W - m)) >= 1.10; it goes on while half of the last 10 steps exceed
it. Five steps are enough where the job takes twice as long. Late data cost more than that, for a step waits
for the last of its ranks: the job's slowdown is given with the longest wait in place of W, in the last 50
steps since then that exceed the limit, and up to what these take longer than those before. Waits for data may
also come in bursts, as from storage under the load of others: three and more, some steps apart, in the last
five minutes (40 to 216 steps), for which the job takes 1.10 times as long as it did for those before. They
are over when twice the longest time between two has passed without one. Only a rise without a change of the
work counts, and none while a rank has fallen silent.
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from detectors.job.imbalance import slowdown
from detectors.peers.history import History
from detectors.peers.ratios import Ratios
from detectors.robust import nan_median, spread

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

Wait = Literal["input", "unmeasured", "between"]
"""For data, as the ranks report; or what is left of a step beside the compute, waits, data and comm
that they report; or the time between two steps. Saving is in the second: a rank's ``rest`` is without it."""

# Chosen: storage and what surrounds a job differ from hour to hour by less; less is not reported.
MIN_JOB_SLOWDOWN = 1.10

# Steps and time a wait must have been longer for. Chosen: pauses of a few seconds are usual, whatever a step
# takes.
STEPS, LASTS_SECONDS = 10, 20.0

# Steps that are enough where the job takes so many times as long. Chosen: more than are long when the workers
# that load data start again, as between epochs.
_FEW_STEPS, _MUCH_SLOWER = 5, 2.0

# In which bursts count together. Chosen: five minutes have several of those that come each minute, and at
# least as many steps as a past has.
_BURSTS_SECONDS, _BURSTS_STEPS = 300.0, 40

# How many bursts, of how many steps in all, and how many steps are between two. Chosen: a longer wait may
# have single quick steps in it, and two bursts may be one that was interrupted.
_BURSTS, _STEPS_OF_BURSTS, _BETWEEN = 3, 6, 3

# Times the longest time from one burst to the next after which they are over. Chosen: one of them is missed.
_MISSED_BURSTS = 2.0

# Slow steps that late data are weighed by. Chosen: which rank is last, and by how much, scatters; and a wait
# that becomes shorter is reported so within half of them.
_COST_STEPS = 50

# Chosen: steps from which the median absolute deviation of a wait is known to a fifth.
_LEAST_PAST = 40

# Of the last steps, for a longer wait to show and to go on. Chosen: apart, so that it does not begin twice.
_SHARE_BEGINS, _SHARE_GOES_ON = 0.9, 0.5

# Chosen: waits scatter with long tails, and nine of ten steps must exceed it.
_CLEAR_SIGMAS = 5.0

# Smallest credible noise of a wait, as a share of the step. Chosen: less would not be worth a finding.
_FLOOR = 0.01

# Shares of the steps before and of the last ones. Chosen: a rank that falls silent as a wait grows still
# counts as read before until the longer wait is what is usual.
_READ_BEFORE, _READ_NOW = 0.25, 0.5

# Machines of which half may be late alike. Chosen: of fewer, one or two are, and they are named.
_LEAST_FOR_HALF = 6

# A change of compute beyond it, in logs, means that the work has changed, and what is around it as well.
# Chosen: compute wanders by some per cent over minutes.
_SAME_WORK = 0.05

_SERIES = ("waited", "longest", "step", "work", "ts")


@dataclass(frozen=True, slots=True)
class SharedWait:
    """The ranks wait at least ``seconds`` of each step now, most of them if it is for data, and waited
    ``usual`` before.

    The job takes ``job_slowdown`` times as long for it; ``high`` [steps settled] are the steps that show it.
    In ``bursts`` they are all since the first one, of which those with a longer wait have ``seconds``.
    """

    seconds: float
    usual: float
    job_slowdown: float
    high: Bools
    bursts: bool = False


@dataclass(frozen=True, slots=True)
class _Past:
    """What was usual before a wait grew longer, ``longest`` of the rank that waits longest; ``work`` is the
    log of compute."""

    seconds: float
    limit: float
    longest: float
    step: float
    work: float


@dataclass(frozen=True, slots=True)
class _Bursts:
    """Bursts after ``past``: the number of the ``first`` step, and the longest time ``apart`` [s]."""

    past: _Past
    first: int
    apart: float


class SharedWaitWatch:
    """Watches one kind of wait over the last ``capacity`` steps.

    While a longer one shows, what was usual before stays what it is compared with.
    """

    def __init__(self, wait: Wait, capacity: int) -> None:
        self._wait = wait
        self._capacity = capacity
        self._steps = History(capacity, 1, _SERIES)
        self._before: _Past | None = None
        self._first = 0  # the step from which a lasting wait shows
        self._bursts: _Bursts | None = None

    def update(self, ratios: Ratios) -> None:
        """Take the step that ``ratios`` took last, for each one that is settled."""
        if ratios.settled != self._steps.count + 1:
            self._steps, self._before = History(self._capacity, 1, _SERIES), None
            self._bursts = None
        step, compute, ts = (ratios.history.last(name, 1)[0] for name in ("step", "compute", "ts"))
        work, waited = float(nan_median(compute)), shared_seconds(ratios, self._wait)
        self._steps.push(
            waited=waited,
            longest=_longest(ratios) if self._wait == "input" else waited,
            step=float(nan_median(step)) + (waited if self._wait == "between" else 0.0),
            work=math.log(work) if work > 0 else math.nan,
            ts=float(nan_median(ts)),
        )

    def look(self, ratios: Ratios) -> SharedWait | None:
        """Return the longer wait that the last steps show, or None."""
        if self._bursts is None:
            was = self._before
            found = self._lasting(ratios, STEPS, MIN_JOB_SLOWDOWN)
            # Traces of a profile are written after each of its few steps.
            if found is None and was is None and self._wait != "between":
                found = self._lasting(ratios, _FEW_STEPS, _MUCH_SLOWER)
            self._before = None if found is None else found[0]
            if found is not None:
                return found[1]
            # The end of a lasting wait is no burst.
            self._bursts = self._begun(ratios) if was is None and self._wait == "input" else None
        shown = None if self._bursts is None else self._of(self._bursts)
        self._bursts = None if shown is None else self._bursts
        return shown

    def _lasting(self, ratios: Ratios, steps: int, least: float) -> tuple[_Past, SharedWait] | None:
        """Return what was usual before, and the wait that nearly all of the last ``steps`` show."""
        waited, longest, step, work, ts = self._series()
        # Of steps so short that the history holds no more time, as many as leave a past.
        recent = max(steps, min(int((ts > ts[-1] - LASTS_SECONDS).sum()), len(ts) - _LEAST_PAST))
        if len(ts) < recent + _LEAST_PAST:
            return None
        began = self._before is None
        past = self._before or _past(*(of[:-recent] for of in (waited, longest, step, work)))
        high = waited > past.limit
        looked_at, share = (recent, _SHARE_BEGINS) if began else (steps, _SHARE_GOES_ON)
        if not np.mean(high[-looked_at:]) >= share:
            return None
        now, usual = float(nan_median(waited[-steps:])), float(nan_median(step[-steps:]))
        of_job = float(slowdown(usual, now - past.seconds))
        if began and (of_job < least or self._may_be_work(ratios, past, recent, steps)):
            return None
        self._first = self._steps.count - recent if began else self._first
        if self._wait == "input":
            since = max(0, self._first - self._steps.count + len(ts))
            at = since + np.flatnonzero(high[since:])[-_COST_STEPS:]
            taken = float(nan_median(step[at]))
            lost = min(float(nan_median(longest[at])) - past.longest, taken - past.step)
            of_job = max(of_job, float(slowdown(taken, lost)))
        return past, SharedWait(now, past.seconds, of_job, high)

    def _begun(self, ratios: Ratios) -> _Bursts | None:
        """Return the bursts of the last minutes, if they cost more than those before."""
        waited, longest, step, work, ts = self._series()
        lately = max(_BURSTS_STEPS, int((ts > ts[-1] - _BURSTS_SECONDS).sum()))
        lately = min(lately, len(ts) - _LEAST_PAST)
        if lately < _BURSTS_STEPS:
            return None
        past = _past(*(of[:-lately] for of in (waited, longest, step, work)))
        now, then = slice(-lately, None), slice(-lately)
        at = np.flatnonzero(waited[now] > past.limit)
        if at.size < _STEPS_OF_BURSTS:
            return None
        begins = at[np.append(True, np.diff(at) > _BETWEEN)]
        lasts = ts[now][at[-1]] - ts[now][at[0]]
        costs, did_cost = (_cost(past, waited[part], step[part]) for part in (now, then))
        enough = begins.size >= _BURSTS and lasts >= LASTS_SECONDS
        if not enough or costs < MIN_JOB_SLOWDOWN * did_cost:
            return None
        if self._may_be_work(ratios, past, lately, STEPS):
            return None
        first = self._steps.count - lately + int(begins[0])
        return _Bursts(past, first, float(np.diff(ts[now][begins]).max()))

    def _of(self, bursts: _Bursts) -> SharedWait | None:
        """Return the wait that the steps since the first burst show, None where they are over."""
        waited, longest, step, _, ts = self._series()
        high, past = waited > bursts.past.limit, bursts.past
        at = np.flatnonzero(high)
        if not at.size or not ts[-1] - ts[at[-1]] <= _MISSED_BURSTS * bursts.apart:
            return None
        since = slice(max(0, bursts.first - self._steps.count + len(ts)), None)
        now = float(nan_median(waited[since][high[since]]))
        rise = np.minimum(longest - past.longest, step - past.step)
        of_job = max(
            _cost(past, waited[since], step[since]),
            float(slowdown(np.nansum(step[since]), np.nansum(rise[since][high[since]]))),
        )
        high[since] = True
        return SharedWait(now, past.seconds, of_job, high, bursts=True)

    def _series(self) -> list[Floats]:
        return [self._steps.last(name, self._steps.count)[:, 0] for name in _SERIES]

    def _may_be_work(self, ratios: Ratios, past: _Past, recent: int, steps: int) -> bool:
        """Return whether the work has changed, or a rank that all wait for has fallen silent."""
        work = self._steps.last("work", steps)[:, 0]
        # Negated: where compute is not known, it may have changed.
        changed = not abs(float(nan_median(work)) - past.work) <= _SAME_WORK
        return changed or _someone_fell_silent(ratios, recent, steps)


def shared_seconds(ratios: Ratios, wait: Wait) -> float:
    """Return how long all ranks that were read waited alike in the last step, for data most of them; NaN
    where none was.

    Parts are taken one by one: a rank that is held up by itself makes the others wait, and neither is shared.
    """
    step, compute, waits, data, comm = (
        ratios.history.last(name, 1)[0] for name in ("step", "compute", "wait", "data", "comm")
    )
    if wait == "input":
        return _of_most(data, of_half=int(ratios.nodes.index.max()) + 1 >= _LEAST_FOR_HALF)
    if wait == "between":
        # One rank alone has nobody to show whether it is its own; steps that overlap have none between them.
        read = np.count_nonzero(np.isfinite(ratios.between))
        return max(_least(ratios.between), 0.0) if read > 1 else math.nan
    waited = np.nan_to_num(waits)
    rest = step - compute - waited - np.nan_to_num(data) - np.nan_to_num(comm)
    return _least(np.where(np.isfinite(rest), waited, np.nan)) + _least(rest)


def _least(seconds: Floats) -> float:
    return float(np.fmin.reduce(seconds))


def _of_most(seconds: Floats, *, of_half: bool) -> float:
    """Return what more than half of those read take at least, or half of them where ``of_half``: fewer are
    late by themselves."""
    read = np.sort(seconds[np.isfinite(seconds)])
    if not read.size:
        return math.nan
    return float(read[read.size // 2 if of_half else (read.size - 1) // 2])


def _longest(ratios: Ratios) -> float:
    """Return how long the last rank waited for its data, which all others wait for."""
    return float(np.fmax.reduce(ratios.history.last("data", 1)[0]))


def _past(waited: Floats, longest: Floats, step: Floats, work: Floats) -> _Past:
    usual, of_last, taken, level = (float(nan_median(of)) for of in (waited, longest, step, work))
    limit = usual + _CLEAR_SIGMAS * max(float(spread(waited)), _FLOOR * taken)
    return _Past(usual, limit, of_last, taken, level)


def _cost(past: _Past, waited: Floats, step: Floats) -> float:
    """Return how many times as long some steps took for waits beyond the limit."""
    lost = np.where(waited > past.limit, waited - past.seconds, 0.0)
    return float(slowdown(float(np.nansum(step)), float(lost.sum())))


def _someone_fell_silent(ratios: Ratios, recent: int, steps: int) -> bool:
    """Whether a rank that was read before is not any more: it may be the one that all wait for."""
    read = np.isfinite(ratios.history.last("compute", ratios.settled))
    before, now = read[:-recent].mean(axis=0), read[-steps:].mean(axis=0)
    return bool(((before >= _READ_BEFORE) & (now < _READ_NOW)).any())
