"""Machines that stall now and then: single steps in which one alone holds its job up for longer than a step.

Sees what ``peers.intermittence`` cannot: what is too seldom to show within 200 steps, in whatever part of a
step, and costs the job much all the same.

With o_r what rank r takes of a step by itself [s] (the step less waits, or less transfers, which contain them
where no waits are reported, and less saving where few ranks save; without both its compute and loading; else
the whole step), a machine stalls where its slowest rank takes longer than the median of all by as much as
that usually is, three times as much as the slowest one usually does, and a second at least, and no rank of
another machine by half of that. Of the last stalls, n are of all machines and k of one of them, or of one of
its ranks. That is suspected

* where k >= 4, and so many of n come by chance once in a thousand jobs (binomial, where all ranks are as
  likely),
* where the job takes 1.05 times as long for them since the first,
* unless it began within 1.5 times the usual distance from the first step seen: what one rank does for all, as
  saving, is there from the start. It is not for all where most ranks save in these steps and all those of one
  machine take longer to, or a single rank more than twice as long. The first machine, and the first rank of
  each, may save what the others do not have,

until twice the longest distance between two has passed without one. They are in loading where half of the
excess of most of them is a longer loading than the median of all. The limits are chosen.
"""

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from detectors.chance import at_least
from detectors.job.imbalance import MIN_JOB_SLOWDOWN
from detectors.peers.node_effects import MOST_OF_MACHINE
from detectors.peers.step_times import StepTimes
from detectors.robust import nan_median

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.intp]

# Steps that make a usual one, and before which none is a stall: those of warm-up.
_USUAL_STEPS, _WARM_UP = 50, 20

# Chosen: of shorter ones more come from the host of any rank.
_LEAST_SECONDS = 1.0

# Chosen, of what the slowest rank usually takes longer: where batches differ, some are longer still.
_BEYOND_USUAL = 3.0

# Of the slowest rank's excess, from which another machine stalls too.
_AS_LONG = 0.5

# Of the excess: what loading has of it, for the stall to be its.
_MOSTLY = 0.5

# Of the usual saving: up to that, a rank that is not the first of its machine may have a larger part to save.
# Chosen: embeddings or an output layer make the part of their stage up to twice as large.
_LARGER_PART = 2.0

# Stalls kept, and steps after which one is forgotten.
_KEPT, _FORGOTTEN_STEPS = 64, 3000

_FEWEST, _CHANCE = 4, 1e-3

# Of the median distance between two stalls: from the first step seen, and of the longest: since the last.
_FROM_START, _OVER = 1.5, 2.0


@dataclass(slots=True)
class _Stall:
    step: int
    started: float
    ended: float
    machine: int
    rank: int
    seconds: float
    loading: bool
    as_long: frozenset[int]
    saving_alike: bool


@dataclass(frozen=True, slots=True)
class Stalling:
    """A machine that has stalled ``count`` times since ``onset`` [event time] in the last ``steps``, for
    ``seconds`` in the median, most often in ``loading`` or not; ``share`` is how much longer the job takes
    for it. ``ranks`` is the one that stalled in most cases, or all, where most of them did, or each in some.
    """

    ranks: tuple[int, ...]
    count: int
    seconds: float
    loading: bool
    onset: float
    steps: int
    share: float


class Stalls:
    """Counts the stalls of the machines of a job; ``machines`` [ranks] number them.

    ``found`` is the machine that stalls again and again.
    """

    def __init__(self, machines: Ints) -> None:
        self._machines = machines
        self._many = len(np.unique(machines))
        self._usual: deque[float] = deque(maxlen=_USUAL_STEPS)
        self._most: deque[float] = deque(maxlen=_USUAL_STEPS)
        self._stalls: deque[_Stall] = deque(maxlen=_KEPT)
        self._step = 0
        self.found: Stalling | None = None

    def update(self, times: StepTimes) -> bool:
        """Take the next step; return whether a machine that stalls again and again has done so in it."""
        self._step += 1
        own = _by_itself(times)
        if not np.isfinite(own).any():
            return False
        middle = float(nan_median(own))
        most = float(np.fmax.reduce(own)) - middle
        usual, apart = (float(np.median(a)) if a else np.inf for a in (self._usual, self._most))
        self._usual.append(middle)
        self._most.append(most)
        least = max(usual, _BEYOND_USUAL * apart, _LEAST_SECONDS)
        new = self._step > _WARM_UP and most >= least and self._take(times, own - middle)
        if new or self.found is not None:
            self.found = self._look(float(np.fmax.reduce(times.ts)))
        return new and self.found is not None

    def _take(self, times: StepTimes, excess: Floats) -> bool:
        rank = int(np.nanargmax(excess))
        machine, seconds = int(self._machines[rank]), float(excess[rank])
        of_machine = self._machines == machine
        others = excess[~of_machine]
        if not np.isfinite(others).any() or float(np.fmax.reduce(others)) >= _AS_LONG * seconds:
            return False
        last = self._stalls[-1] if self._stalls else None
        ended = float(times.ts[rank])
        if last is not None and last.machine == machine and self._step - last.step <= 1:
            # Steps in a row are one stall.
            last.step, last.ended, last.seconds = self._step, ended, last.seconds + seconds
            return False
        as_long = frozenset(np.flatnonzero(of_machine & (excess >= _AS_LONG * seconds)).tolist())
        started = ended - float(times.step[rank])
        loading = bool(times.data[rank] - nan_median(times.data) >= _MOSTLY * seconds)
        saving_alike = self._saves_alike(times, rank, _MOSTLY * seconds)
        self._stalls.append(
            _Stall(self._step, started, ended, machine, rank, seconds, loading, as_long, saving_alike)
        )
        return True

    def _saves_alike(self, times: StepTimes, rank: int, longer: float) -> bool:
        """Return whether most ranks save, and ``rank``, or each of its machine, takes so much longer to,
        and does not save what the others do not have."""
        saving = np.nan_to_num(times.checkpoint)
        if np.count_nonzero(saving > 0) <= MOST_OF_MACHINE * saving.size:
            return False
        of_machine = self._machines == self._machines[rank]
        usual = np.median(saving[~of_machine])
        slow = saving - usual >= longer
        if slow[of_machine].all():
            return bool(self._machines[rank] != self._machines[0] and of_machine.sum() > 1)
        is_first = rank == np.flatnonzero(of_machine)[0]
        return bool(slow[rank] and not is_first and saving[rank] > _LARGER_PART * usual)

    def _look(self, now: float) -> Stalling | None:
        while self._stalls and self._step - self._stalls[0].step > _FORGOTTEN_STEPS:
            self._stalls.popleft()
        if not self._stalls:
            return None
        machine, _ = _most_frequent([stall.machine for stall in self._stalls])
        own = [stall for stall in self._stalls if stall.machine == machine]
        rank, often = _most_frequent([stall.rank for stall in own])
        many = len(self._stalls)
        share = float(np.mean(self._machines == machine))
        of_machine = _is_no_chance(len(own), many, self._many, share)
        if not (of_machine or _is_no_chance(often, many, self._machines.size, 1.0 / self._machines.size)):
            return None
        at = np.array([stall.step for stall in own])
        apart = np.diff(at)
        alike = 2 * sum(stall.saving_alike for stall in own) > len(own)
        from_start = at[0] <= _FROM_START * np.median(apart) and not alike
        if from_start or self._step - at[-1] > _OVER * apart.max():
            return None
        lost = sum(stall.seconds for stall in own)
        elapsed = max(now, own[-1].ended) - own[0].started
        longer = lost / max(elapsed - lost, 1e-9)
        if longer < MIN_JOB_SLOWDOWN - 1.0:
            return None
        return Stalling(
            ranks=self._ranks(machine, rank, own),
            count=len(own),
            seconds=float(np.median([stall.seconds for stall in own])),
            loading=2 * sum(stall.loading for stall in own) > len(own),
            onset=own[0].started,
            steps=self._step - int(at[0]) + 1,
            share=longer,
        )

    def _ranks(self, machine: int, rank: int, own: Sequence[_Stall]) -> tuple[int, ...]:
        """Return the ``rank`` of ``machine`` that stalled in most cases, else all of its ranks: where most of
        these stall together, or by turns."""
        ranks = np.flatnonzero(self._machines == machine).tolist()
        often = {r: 2 * sum(r in stall.as_long for stall in own) > len(own) for r in ranks}
        alone = often[rank] and sum(often.values()) < MOST_OF_MACHINE * len(ranks)
        return (rank,) if alone else tuple(ranks)


def _most_frequent(numbers: Sequence[int]) -> tuple[int, int]:
    """Return the number that occurs most often, the least of several, and how often it does."""
    (number, count), *_ = sorted(Counter(numbers).items(), key=lambda item: (-item[1], item[0]))
    return number, count


def _is_no_chance(count: int, of_all: int, among: int, share: float) -> bool:
    """Return whether one of so many, with a ``share`` of the ranks, has more of all stalls than any has by
    chance."""
    return among > 1 and count >= _FEWEST and among * at_least(count, of_all, share) < _CHANCE


def _by_itself(times: StepTimes) -> Floats:
    """Return what each rank takes of a step by itself, [ranks] seconds; NaN where it is not known."""
    half = times.step.size / 2
    idle = times.wait if np.isfinite(times.wait).sum() >= half else times.comm
    if np.isfinite(idle).sum() >= half:
        saving = np.nan_to_num(times.checkpoint)
        # One rank may save for others; where most do, they save as much.
        own: Floats = times.step - idle - (saving if np.count_nonzero(saving > 0) < half else 0.0)
        return own
    if np.isfinite(times.compute).sum() >= half:
        return times.compute + np.nan_to_num(times.data)
    return times.step
