"""What open suspicions have cost: the accounts of ``detectors.job.lost_time``, kept by aspect and rank."""

import itertools
import math
from collections import deque
from collections.abc import Mapping
from statistics import median

import msgspec
import numpy as np

from detectors.job.lost_time import LostTime, Slowdown
from detectors.job.steps_taken import LAST_RANKS, LastRanks
from detectors.robust import Floats, nan_median
from slowrank.telemetry import Lost, Suspicion
from streams.job.aspect import Key
from streams.job.detectors.flapping import FLAPPING
from streams.job.detectors.slow_ranks import COMPUTE, INTERMITTENT, STALLING
from streams.job.rows.step_aligner import Step
from streams.job.rows.step_rows import SECONDS
from streams.job.view import JobView

_MEASURED = [SECONDS.index(name) for name in ("step", "checkpoint")]
_STEP, _COMPUTE, _WAIT = map(SECONDS.index, ("step", "compute", "wait"))

# The work of a step is this quantile of its ranks' compute. Chosen: the median is a slow rank's where half of
# the nodes become slow together, and then counts what is lost as work.
_WORK_QUANTILE = 0.25

# Waits are what ranks do not compute where, without them, ranks differ by as much as by their compute, up to
# this factor. Chosen: far from both waits that are always 0 and waits for something else.
_MIRRORED = 2.0

# Most of a step that is charged for the stalls of others (chosen: a job that stalls for half of its time).
_MOST_STALLED = 0.5

# Ranks by which they are compared. Chosen: quartiles of 256 are known to a tenth of their distance.
_SAMPLE = 256


# Steps over which it is seen how many a row stands for. Chosen: a lost row or two leave their median alone.
_APART = 9

# Chosen: as much as steps may be shorter than those that are logged.
_IN_TIME = 1.5


class JobCosts:
    """The costs of one job's suspicions: sees each step before the detectors do, and raises nothing."""

    aspects = ()

    def __init__(self) -> None:
        self._lost: LostTime[Key] = LostTime()
        # Apart from the steps: what is between two of them is no part of either, and charged to nothing else.
        self._lost_between: LostTime[Key] = LostTime()
        self._rows: deque[tuple[int, float, float]] = deque(maxlen=_APART + 1)
        self._open: set[Key] = set()
        self._roster: tuple[int, ...] = ()
        self._machines: dict[str, frozenset[int]] = {}
        # What long transfers have lost since their onset, [s] and [GPU-s].
        self._flapped, self._flapped_gpus = 0.0, 0.0

    def restart(self, *, new_run: bool) -> None:
        """Go on with the accounts: a restart does not mend what is slow."""
        self._rows.clear()

    def resized(self) -> None:
        """Learn the healthy step anew: the job has other ranks."""
        self._lost.resized()
        self._lost_between.resized()

    def let_go(self) -> None:
        """Keep no steps of a job that sends none."""
        self._lost.let_go()
        self._lost_between.let_go()

    def step(self, view: JobView, step: Step) -> Mapping[Key, Suspicion]:
        """Charge a whole step to what is open; return nothing."""
        seconds, checkpoint = nan_median(step.values[_MEASURED], axis=1).tolist()
        seconds -= checkpoint if checkpoint > 0 else 0.0
        # Where only some ranks log, all of the job waits with them.
        in_step, work = not view.core.asynchronous, _work(step.values[_COMPUTE])
        seconds -= self._flapping(view)
        at, stands_for = step.closed_at, self._stands_for(step, seconds)
        gpus = view.gpus * stands_for
        # Of steps that are not logged each, or only their mean, another rank may have been the last.
        whole_step = stands_for == 1 and len(step.ranks) >= view.world_size
        last = _last_ranks(step) if view.core.alike and whole_step else ()
        self._lost.step(seconds, work, at, gpus=gpus, in_step=in_step, last=last)
        # As if the step were the work: only what is longer around it is lost here.
        whole = seconds + view.result.job_wide.between
        self._lost_between.step(whole, seconds, at, gpus=gpus, in_step=in_step)
        if view.roster is not self._roster:
            self._roster, self._machines = view.roster, view.machines()
        return {}

    def stamped(self, key: Key, s: Suspicion) -> Suspicion:
        """Return a suspicion that is about to be raised, updated or cleared with what it has cost so far."""
        if key[0].cost is None:
            return s
        accounts = self._lost_between if key[0].cost == "between" else self._lost
        if s.state == "clear":
            self._open.remove(key)
            if key[0].cost == "steps":
                # The long steps since the last report.
                accounts.charge_steps(key, self._flapped_gpus, s.ts, onset=s.onset_lo or s.onset)
            lost = Lost(gpu_seconds=round(accounts.close(key, s.ts), 3), gpus=0.0)
            return msgspec.structs.replace(s, lost=lost)
        if key[0].cost == "steps":
            cost = accounts.charge_steps(key, self._flapped_gpus, s.ts, onset=s.onset_lo or s.onset)
        else:
            on_and_off = (INTERMITTENT, key[1]) in self._open
            cost = accounts.charge(key, self._slowdown(key, s), s.ts, on_and_off=on_and_off)
        self._open.add(key)
        lost = Lost(gpu_seconds=round(cost.gpu_seconds, 3), gpus=round(cost.gpus, 4))
        return msgspec.structs.replace(s, lost=lost)

    def _stands_for(self, step: Step, seconds: float) -> int:
        """Return how many steps have been made for each that is logged, by their numbers, if they can have
        been made in the time between."""
        self._rows.append((step.number, step.closed_at, seconds))
        apart = sorted(b - a for (a, _, _), (b, _, _) in itertools.pairwise(self._rows))
        took = sum(apart) * median(seconds for _, _, seconds in self._rows)
        if len(apart) < _APART or took > _IN_TIME * (self._rows[-1][1] - self._rows[0][1]):
            return 1
        return max(apart[len(apart) // 2], 1)

    def _flapping(self, view: JobView) -> float:
        """Return what transfers that are long again and again lost in this step, once they are charged."""
        found, before = view.result.flapping, self._flapped
        self._flapped = 0.0 if found is None else found.lost
        longer = max(self._flapped - before, 0.0)
        self._flapped_gpus = longer * view.gpus + (self._flapped_gpus if before else 0.0)
        return longer if any(aspect == FLAPPING for aspect, _ in self._open) else 0.0

    def _slowdown(self, key: Key, s: Suspicion) -> Slowdown:
        aspect, rank = key
        # What is seen from the first step on has no past.
        began = s.family != "timing" or any(e.change_at is not None for e in s.evidence)
        computes, job_ratio = aspect in (COMPUTE, INTERMITTENT), s.job_slowdown_ratio or 1.0
        if aspect == STALLING:
            # The steps that stalled are left out as pauses: the others are charged what those took longer.
            job_ratio = 1.0 / (1.0 - min(job_ratio - 1.0, _MOST_STALLED))
        return Slowdown(
            onset=s.onset,
            onset_lo=s.onset_lo,
            ratio=s.slowdown_ratio or 1.0,
            job_ratio=job_ratio,
            of_rank=aspect.cost == "rank",
            changed=aspect.cost != "even" and began,
            believed=s.overwhelming,
            rank=rank if computes else None,
            with_it=self._machines.get(s.subject.node or "", frozenset()) if computes else frozenset(),
        )


def _work(compute: Floats) -> float:
    """Return the seconds of compute of a step's ranks that are in good health; NaN if none is known."""
    known = compute[~np.isnan(compute)]
    return float(np.quantile(known, _WORK_QUANTILE)) if known.size else math.nan


def _last_ranks(step: Step) -> LastRanks:
    """Return the last ranks to finish a step with what they took themselves, the last one first.

    That is all but their waits where rows have these, else their compute. Empty where that does not show.
    """
    compute, own = step.values[_COMPUTE], step.values[_STEP] - step.values[_WAIT]
    usual, apart = _spread(compute), _spread(own)
    # All alike, or one is not known.
    if not usual > 0.0:
        return ()
    if not usual <= _MIRRORED * apart <= _MIRRORED**2 * usual:
        own = compute
    n = min(LAST_RANKS, len(own))
    last = np.argpartition(own, -n)[-n:]
    last = last[np.argsort(-own[last])]
    return tuple(zip(step.ranks[last].tolist(), own[last].tolist(), strict=True))


def _spread(seconds: Floats) -> float:
    """Return the distance of the quartiles, by a sample of many ranks; NaN where a value is."""
    some = seconds[:: max(1, len(seconds) // _SAMPLE)]
    quarters = [len(some) // 4, (3 * len(some) - 1) // 4]
    low, high = np.partition(some, quarters)[quarters].tolist()
    return math.nan if math.isnan(seconds.sum()) else high - low
