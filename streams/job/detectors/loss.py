"""Loss and gradient norm of one job, from its steps to suspicions about the job and never about a machine."""

import math

import numpy as np

from detectors.loss import LossAnomaly, LossConfig, LossWatch
from slowrank.telemetry import Baseline, Evidence, Suspicion
from streams.job_view import JobView, Key
from streams.ledger import Ledger
from streams.step_rows import LOSSES
from streams.steps import Floats, Step

_WEIGHT = 4.0
_WEIGHT_DIVERGENCE = 1.0
"""A loss that rises for a while is often meant, or mends itself: it is shown and calls nobody."""


class Losses:
    """Both series of one job attempt."""

    def __init__(self, config: LossConfig) -> None:
        self._watches = (LossWatch("loss", config), LossWatch("grad_norm", config))

    def step(self, ledger: Ledger[Key], view: JobView, step: Step) -> list[Suspicion]:
        """Take the next whole step; return what it gives rise to."""
        out: list[Suspicion] = []
        at = step.closed_at
        for watch, values in zip(self._watches, step.values[LOSSES], strict=True):
            anomaly = watch.update(at, _of_job(values))
            key: Key = (watch.series, -1)
            if anomaly is None:
                out += ledger.clear(key, at)
            else:
                out += ledger.put(key, _abnormal(view, anomaly, at))
        return out


def _of_job(values: Floats) -> float:
    """Return what the ranks that report a value have in common: bad if it is bad on any."""
    # NaN was not read; a loss that is none is sent as an infinite one (``NOT_FINITE``).
    read = values[~np.isnan(values)]
    if not read.size:
        return math.nan
    if np.isinf(read).any():
        return math.inf
    return float(read[0] if (read == read[0]).all() else np.median(read))


def _abnormal(view: JobView, anomaly: LossAnomaly, at: float) -> Suspicion:
    diverges = anomaly.shape == "divergence"
    weight = _WEIGHT_DIVERGENCE if diverges else _WEIGHT
    return Suspicion(
        cluster=view.cluster,
        detector=f"loss.{anomaly.series}",
        family="job",
        kind="training.loss_anomaly",
        state="raise",
        subject=view.job(),
        ts=at,
        onset=anomaly.onset,
        onset_lo=anomaly.onset,
        onset_hi=anomaly.onset,
        score=1.0,
        log_likelihood_ratio=weight,
        overwhelming=True,
        # A loss that keeps rising is for people to judge: it is shown, and nobody is called.
        severity="info" if diverges else "warning",
        gpus=len(view.roster),
        ranks=len(view.roster),
        nodes=view.nodes,
        evidence=(_evidence(anomaly),),
        hypotheses={f"loss.{anomaly.shape}": weight},
        note="every rank carries the same number after an all-reduce: the machine cannot be told",
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
