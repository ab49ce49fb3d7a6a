"""Anomalies of loss and gradient norm: suspicions about the job and never about a machine."""

import math
from collections.abc import Mapping

import msgspec
import numpy as np

from detectors.job.loss import LossAnomaly, LossWatch, Series
from slowrank.telemetry import Baseline, Evidence, Suspicion
from streams.job.aspect import Aspect, Key
from streams.job.config import JobStageConfig
from streams.job.rows.step_aligner import Floats, Step
from streams.job.rows.step_rows import LOSSES
from streams.job.suspicions import dated
from streams.job.view import JobView

_ASPECTS: dict[Series, Aspect] = {"loss": Aspect("loss"), "grad_norm": Aspect("grad_norm")}

# Log-odds, chosen. A loss that rises for a while is often intended, or recovers by itself: it is shown and
# never pages.
_WEIGHT = 4.0
_WEIGHT_DIVERGENCE = 1.0


class LossDetector:
    """Loss and gradient norm of one run of a job."""

    aspects = tuple(_ASPECTS.values())

    def __init__(self, config: JobStageConfig) -> None:
        self._config = config.loss
        self.restart(new_run=True)

    def restart(self, *, new_run: bool) -> None:
        """Learn anew what is usual, where a new run begins."""
        if new_run:
            self._watches = [LossWatch(series, self._config) for series in _ASPECTS]

    def step(self, view: JobView, step: Step) -> Mapping[Key, Suspicion]:
        """Return the anomalies that stand."""
        standing: dict[Key, Suspicion] = {}
        for watch, values in zip(self._watches, step.values[LOSSES], strict=True):
            anomaly = watch.update(step.closed_at, _of_job(values))
            if anomaly is not None:
                standing[_ASPECTS[watch.series], -1] = _suspicion(view, anomaly, step.closed_at)
        return standing


def _of_job(values: Floats) -> float:
    """Return what the ranks that report a value have in common: bad if it is bad on any."""
    # NaN was not read; a loss that is none is sent as an infinite one (``NOT_FINITE``).
    read = values[~np.isnan(values)]
    if not read.size:
        return math.nan
    if np.isinf(read).any():
        return math.inf
    return float(read[0] if (read == read[0]).all() else np.median(read))


def _suspicion(view: JobView, anomaly: LossAnomaly, at: float) -> Suspicion:
    diverges = anomaly.shape == "divergence"
    weight = _WEIGHT_DIVERGENCE if diverges else _WEIGHT
    return msgspec.structs.replace(
        dated(view, view.job(), "training.loss_anomaly", catalogue_id="loss", since=anomaly.onset, at=at),
        detector=f"loss.{anomaly.series}",
        family="job",
        log_likelihood_ratio=weight,
        overwhelming=True,
        # A loss that keeps rising is for people to judge.
        severity="info" if diverges else "warning",
        evidence=(_evidence(anomaly),),
        hypotheses={f"loss.{anomaly.shape}": weight},
        note="every rank carries the same number after an all-reduce: it does not show which machine",
    )


def _evidence(anomaly: LossAnomaly) -> Evidence:
    if anomaly.shape == "not_finite":
        metric, value, note = f"{anomaly.series}.not_finite", 1.0, "not a number, or infinite"
    else:
        metric, value = anomaly.series, anomaly.value
        note = f"{anomaly.ratio:.1f} times the median of the steps before"
    known = not math.isnan(anomaly.median)
    return Evidence(
        metric=metric,
        unit="1",
        detector="loss",
        value=value,
        baseline=Baseline(median=anomaly.median, mad=anomaly.scatter, n=anomaly.steps) if known else None,
        change_at=anomaly.onset,
        note=note,
    )
