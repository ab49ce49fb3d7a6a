"""Transfers of a job that are long again and again, in single steps, as over a link that flaps.

Sees what ``slow_network`` cannot: most steps are as before, and so is their median.

I is how long each rank idles at least [s], the minimum over ranks of comm + wait; of comm where no waits are
reported, for transfers contain these then; where no transfers are, of the step less compute and loading. A
rank that all others wait for idles less, whatever it does instead. A step is long where I exceeds its median
over the last 50 steps by half of it, by five robust sd and by a tenth of a step, if

* what its busiest rank does beside I is as usual, up to half of that excess,
* where waits are reported, the transfers of more than a few ranks themselves take half of it longer,
* else all ranks were read, for the others may wait for one that was not,
* no rank saves.

Long steps in a row are one event. With k of all n events in the last m of the steps seen (as many as events
are kept of), transfers are long again and again where

* k >= 5 and m >= 30, and so many of n are in these m steps by chance less often than in one job of fifty
  (binomial): what is so from the start, as an exchange of weights every few steps, is how the job works,
* most of the k are not the same number of steps apart, as by a schedule,
* most of these steps are not long, for transfers that stay long are slow (``slow_network``),
* the job takes 1.05 times as long for them,

until twice the longest distance between two has passed without one. The limits are chosen.
"""

from collections import deque
from dataclasses import dataclass, replace
from statistics import median
from typing import Literal

import numpy as np
import numpy.typing as npt

from detectors.chance import at_least
from detectors.job.imbalance import MIN_JOB_SLOWDOWN, slowdown
from detectors.peers.step_times import StepTimes
from detectors.robust import nan_max, nan_median, spread

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.intp]

# Steps that make a usual one, and before which none is long: those of warm-up.
_USUAL_STEPS, _WARM_UP = 50, 20

# Of what is usual, of the robust sd of that, and of a step: by which a long step idles longer (chosen).
_LONGER, _SIGMAS, _OF_STEP = 0.5, 5.0, 0.1

# Chosen, of that excess: by which the rest of the step may have changed, and by which transfers must have.
_MOST_OTHER, _LEAST_TRANSFER = 0.5, 0.5

# Chosen: share of the steps since the first event that may be long, and of the distances between two events
# that may be alike.
_MOST_LONG, _MOST_ALIKE = 0.5, 0.5

# Share of a step from which transfers are compared with themselves (chosen).
_LEAST_SHARE = 0.01

# Ranks whose transfers may be long by themselves, and as a share of all: those of ``slow_rings``.
_FEW, _SHARE = 4, 20

# Events kept, the fewest that are found, over so many steps, and by what chance in a job (chosen).
_KEPT, _FEWEST, _LASTS_STEPS, _CHANCE = 32, 5, 30, 2e-2

# Of the log-likelihood of when they began: as good as the best (two standard errors, as of a parameter).
_NEARLY = 2.0

# Of the steps between two events, what they differ by where they come by a schedule.
_REGULAR = 0.1

# Of the longest distance between two events: since the last.
_OVER = 2.0

Idling = Literal["transfers", "waits", "rest"]
"""What ranks idle for, as far as rows report it: transfers beside waits, transfers that contain these, or
what their work leaves of a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flapping:
    """Transfers were long ``count`` times in the last ``steps``, ``ratio`` times as long as usual and for
    ``seconds`` in the median; all ``lost`` seconds make the job take ``job_slowdown`` times as long.

    The first of these steps ran from ``onset_lo`` to ``onset`` [event time].
    """

    idling: Idling
    count: int
    steps: int
    ratio: float
    seconds: float
    lost: float
    job_slowdown: float
    onset_lo: float
    onset: float


@dataclass(frozen=True, slots=True)
class _Idle:
    """Seconds of a step: what all ranks idle, what the busiest one does beside that, and the transfer."""

    idling: Idling
    idle: float
    busy: float
    transfer: float


@dataclass(slots=True)
class _Event:
    """Long steps in a row: their ``first`` and ``last`` number, when the first one ``started`` and ``ended``,
    what its ``transfer`` took, ``ratio`` times as long as usual, and all of them ``lost`` [s]."""

    first: int
    last: int
    started: float
    ended: float
    transfer: float
    ratio: float
    lost: float


class FlappingTransfers:
    """Counts the long transfers of a job; ``found`` are those that come again and again."""

    def __init__(self) -> None:
        self.found: Flapping | None = None
        self._usual: deque[_Idle] = deque(maxlen=_USUAL_STEPS)
        self._events: deque[_Event] = deque(maxlen=_KEPT)
        # Of the steps up to ``since`` no events are kept.
        self._step, self._since = 0, _WARM_UP
        # The last step of which it is known whether it was long.
        self._judged = 0
        # Of what is found: the number of the first step, and the longest distance between two.
        self._first, self._apart = 0, 0

    def update(self, times: StepTimes) -> None:
        """Take the next step of ranks that wait for each other."""
        self._step += 1
        now = _idle(times)
        if now is not None:
            event = self._long(times, now)
            self._usual.append(now)
            if event is not None:
                self._take(event, now.idling)
            self._judged = self._step
        if self.found is not None and self._step - self._events[-1].last > _OVER * self._apart:
            self.found, self._since = None, self._events[-1].last
            self._events.clear()

    def _long(self, times: StepTimes, now: _Idle) -> _Event | None:
        """Return a step that is long as an event, None where it is not."""
        if self._step <= _WARM_UP or len(self._usual) < _WARM_UP:
            return None
        usual = median(seen.idle for seen in self._usual)
        longer = now.idle - usual
        if longer < _LONGER * usual:
            return None
        idle, busy, transfer = np.array([(s.idle, s.busy, s.transfer) for s in self._usual]).T
        usual_busy, usual_transfer = float(np.median(busy)), float(np.median(transfer))
        if longer < max(_SIGMAS * float(spread(idle)), _OF_STEP * (usual + usual_busy)):
            return None
        if abs(now.busy - usual_busy) > _MOST_OTHER * longer:
            return None
        if now.transfer - usual_transfer < _LEAST_TRANSFER * longer:
            return None
        ended, took = float(nan_max(times.ts)), float(nan_median(times.step))
        # What usually takes next to no time has no ratio.
        took_usually = max(usual_transfer, _LEAST_SHARE * (usual + usual_busy))
        ratio = 1.0 + (now.transfer - usual_transfer) / took_usually
        return _Event(self._step, self._step, ended - took, ended, now.transfer, ratio, longer)

    def _take(self, event: _Event, idling: Idling) -> None:
        last, found = self._events[-1] if self._events else None, self.found
        if last is not None and last.last >= self._judged:
            last.last, last.lost = event.last, last.lost + event.lost
        else:
            if len(self._events) == _KEPT:
                self._since = self._events[0].last
            self._events.append(event)
            if found is None:
                self.found = self._look(idling)
            elif last is not None:
                self._apart = max(self._apart, event.first - last.first)
        if found is not None:
            self.found = self._again(found, event)

    def _look(self, idling: Idling) -> Flapping | None:
        """Return the events since they became most frequent, if they come again and again."""
        n = len(self._events)
        if n < _FEWEST:
            return None
        at = np.array([event.first for event in self._events])
        begins, likeliest = _became_frequent(at, self._since)
        own, apart, steps = list(self._events)[begins:], np.diff(at[begins:]), int(at[-1] - at[begins])
        share = (at[-1] - at[likeliest]) / (at[-1] - self._since)
        if steps < _LASTS_STEPS or at_least(n - 1 - likeliest, n - 1, share) >= _CHANCE:
            return None
        if sum(event.last - event.first + 1 for event in own) > _MOST_LONG * steps:
            return None
        if np.mean(np.abs(apart - np.median(apart)) <= _REGULAR * np.median(apart)) > _MOST_ALIKE:
            return None
        lost = sum(event.lost for event in own)
        job_slowdown = float(slowdown(own[-1].ended - own[0].started, lost))
        if job_slowdown < MIN_JOB_SLOWDOWN:
            return None
        self._first, self._apart = own[0].first, int(apart.max())
        return Flapping(
            idling=idling,
            count=len(own),
            steps=steps + 1,
            ratio=median(event.ratio for event in own),
            seconds=median(event.transfer for event in own),
            lost=lost,
            job_slowdown=job_slowdown,
            onset_lo=own[0].started,
            onset=own[0].ended,
        )

    def _again(self, found: Flapping, event: _Event) -> Flapping:
        """Return what is ``found`` with one more long step, be it of the last event or of a new one."""
        own = [of for of in self._events if of.first >= self._first]
        lost = found.lost + event.lost
        return replace(
            found,
            count=found.count + int(own[-1] is event),
            steps=self._step - self._first + 1,
            ratio=median(of.ratio for of in own),
            seconds=median(of.transfer for of in own),
            lost=lost,
            job_slowdown=float(slowdown(event.ended - found.onset_lo, lost)),
        )


def _became_frequent(at: Ints, since: int) -> tuple[int, int]:
    """Return the events from which on they have come more often: the first that is nearly as likely as the
    likeliest, and that, by the ratio of Poisson likelihoods, of those that leave the fewest."""
    others = len(at) - 1
    before = np.arange(len(at) - _FEWEST + 1)
    # The first one begins it, and is no evidence of how often they come.
    own, share = others - before, (at[-1] - at[before]) / (at[-1] - since)
    gain = own * np.log(own / (others * share))
    gain += before * np.log(np.maximum(before, 1) / (others * (1.0 - share)))
    gain = np.where(own >= others * share, gain, -np.inf)
    return int(np.argmax(gain >= gain.max() - _NEARLY)), int(np.argmax(gain))


def _idle(times: StepTimes) -> _Idle | None:
    """Return what all ranks of a step idle for; None where it is not known, or one of them saves."""
    if not times.numbered or (times.checkpoint > 0).any():
        return None
    transfers, waits = np.isfinite(times.comm), np.isfinite(times.wait)
    if transfers.any() and waits.any():
        idling: Idling = "transfers"
        idle = times.comm + times.wait
    elif transfers.any():
        idling, idle = "waits", times.comm
    else:
        idling, idle = "rest", times.step - times.compute - np.nan_to_num(times.data)
    read = np.isfinite(idle)
    # One rank alone shows its own waits and no transfers of others.
    if np.count_nonzero(read) < 2 or not (read.all() or idling == "transfers"):
        return None
    shared = float(idle[read].min())
    busy = float(nan_median(times.step)) - shared
    return _Idle(idling, shared, busy, _most_transfer(times.comm) if idling == "transfers" else shared)


def _most_transfer(comm: Floats) -> float:
    """Return the longest transfer but for few ranks', or that of half of them where they are few."""
    read = np.sort(comm[np.isfinite(comm)])
    few = min(max(_FEW, read.size // _SHARE), (read.size + 1) // 2)
    return float(read[-few])
