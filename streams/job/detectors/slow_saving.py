"""Saving of checkpoints that has become slow for all ranks of a job."""

from collections.abc import Mapping

import msgspec
import numpy as np

from detectors.job.slow_saving import SlowSaves, SlowSaving
from detectors.robust import nan_median
from slowrank.telemetry import Evidence, Lost, Suspicion
from streams.job.aspect import Aspect, Key
from streams.job.config import JobStageConfig
from streams.job.rows.step_aligner import Step
from streams.job.rows.step_rows import SECONDS
from streams.job.suspicions import WEIGHT_SLOW, about_job
from streams.job.view import JobView

# Steps are charged without their saving: what that costs is in the suspicion itself.
_SAVING = Aspect("saving")

_KEY: Key = (_SAVING, -1)
_STEP, _CHECKPOINT = map(SECONDS.index, ("step", "checkpoint"))


class SlowSavingDetector:
    """Saves that take longer than before, until they do not."""

    aspects = (_SAVING,)

    def __init__(self, config: JobStageConfig) -> None:
        self._watch = SlowSaving()

    def restart(self, *, new_run: bool) -> None:
        """Learn anew how long saving takes, where a new run may save otherwise."""
        if new_run:
            self._watch = SlowSaving()

    def step(self, view: JobView, step: Step) -> Mapping[Key, Suspicion]:
        """Return that saving is slow, with new figures when these are due."""
        saving, took = step.values[_CHECKPOINT], float(nan_median(step.values[_STEP]))
        self._watch.update(np.nan_to_num(saving), ended=step.closed_at, step_seconds=took)
        if self._watch.found is None:
            return {}
        last = view.standing(_SAVING).get(_KEY)
        if last is not None and not view.open.is_due(_KEY, step.closed_at):
            return {_KEY: last}
        return {_KEY: _suspicion(view, self._watch.found, step.closed_at)}


def _suspicion(view: JobView, found: SlowSaves, at: float) -> Suspicion:
    suspicion = about_job(
        view,
        at,
        catalogue_id="shared_wait",
        subject=view.job(),
        hypotheses={"saving": WEIGHT_SLOW},
        slowdown=found.slowdown,
        since=(found.onset_lo, found.onset),
        ratio=found.slowdown,
        evidence=(
            Evidence(
                metric="checkpoint_seconds",
                unit="s",
                detector="saving",
                value=round(found.seconds, 6),
                note=f"{found.usual:.3g} s before; most ranks that save take so long",
            ),
        ),
        note=f"saving takes {found.seconds:.3g} s, {found.usual:.3g} s before, {found.count} times so far",
    )
    share = 1.0 - 1.0 / found.slowdown
    lost = Lost(gpu_seconds=round(found.lost * view.gpus, 3), gpus=round(share * view.gpus, 4))
    return msgspec.structs.replace(suspicion, detector="saving", lost=lost)
