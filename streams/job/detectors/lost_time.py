"""What open suspicions have cost: the accounts of ``detectors.job.lost_time``, kept by aspect and rank."""

import math
from collections.abc import Mapping

import msgspec
import numpy as np

from detectors.job.lost_time import LostTime, Slowdown
from detectors.robust import Floats, nan_median
from slowrank.telemetry import Lost, Suspicion
from streams.job.aspect import Aspect, Key
from streams.job.detectors.slow_ranks import INTERMITTENT
from streams.job.step_aligner import Step
from streams.job.step_rows import SECONDS
from streams.job.view import JobView

_MEASURED = [SECONDS.index(name) for name in ("step", "checkpoint")]
_COMPUTE = SECONDS.index("compute")

# The work of a step is this quantile of its ranks' compute. Chosen: the median is a slow rank's where half of
# the nodes become slow together, and then counts what is lost as work.
_WORK_QUANTILE = 0.25


class JobCosts:
    """The costs of one job's suspicions: sees each step before the detectors do, and raises nothing."""

    aspects = ()

    def __init__(self) -> None:
        self.lost: LostTime[Key] = LostTime()
        self._open: set[Key] = set()

    def restart(self, *, new_run: bool) -> None:
        """Go on with the accounts: a restart does not mend what is slow."""

    def step(self, view: JobView, step: Step) -> Mapping[Key, Suspicion]:
        """Charge a whole step to what is open; return nothing."""
        seconds, checkpoint = nan_median(step.values[_MEASURED], axis=1).tolist()
        seconds -= checkpoint if checkpoint > 0 else 0.0
        # Where only some ranks log, all of the job waits with them.
        gpus, in_step = max(len(view.roster), view.world_size), not view.core.asynchronous
        self.lost.step(seconds, _work(step.values[_COMPUTE]), step.closed_at, gpus=gpus, in_step=in_step)
        return {}

    def stamped(self, key: Key, s: Suspicion) -> Suspicion:
        """Return a suspicion that is about to be raised, updated or cleared with what it has cost so far."""
        if key[0].cost is None:
            return s
        if s.state == "clear":
            self._open.remove(key)
            lost = Lost(gpu_seconds=round(self.lost.close(key, s.ts), 3), gpus=0.0)
            return msgspec.structs.replace(s, lost=lost)
        on_and_off = (INTERMITTENT, key[1]) in self._open
        cost = self.lost.charge(key, _slowdown(key[0], s), s.ts, on_and_off=on_and_off)
        self._open.add(key)
        lost = Lost(gpu_seconds=round(cost.gpu_seconds, 3), gpus=round(cost.gpus, 4))
        return msgspec.structs.replace(s, lost=lost)


def _work(compute: Floats) -> float:
    """Return the seconds of compute of a step's ranks that are in good health; NaN if none is known."""
    known = compute[~np.isnan(compute)]
    return float(np.quantile(known, _WORK_QUANTILE)) if known.size else math.nan


def _slowdown(aspect: Aspect, s: Suspicion) -> Slowdown:
    # What is seen from the first step on has no past.
    began = s.family != "timing" or any(e.change_at is not None for e in s.evidence)
    return Slowdown(
        onset=s.onset,
        onset_lo=s.onset_lo,
        ratio=s.slowdown_ratio or 1.0,
        job_ratio=s.job_slowdown_ratio or 1.0,
        of_rank=aspect.cost == "rank",
        changed=aspect.cost != "even" and began,
        believed=s.overwhelming,
    )
