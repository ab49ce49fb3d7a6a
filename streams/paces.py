"""How a job's GPUs pace beside their peers: told by the job stage once an hour, remembered by the store.

A job is too short to tell a GPU that is 3 % slow for good from one of its healthy neighbours; weeks are not
(``alerts.chronic``). What is told is the end of a suspicion that nobody ever raised, and the finding stage
does not hear it.
"""

import math
import zlib

import numpy as np
import numpy.typing as npt

from alerts.chronic import Machine, Pace
from detectors.robust import nan_median
from slowrank.telemetry import Evidence, Subject, Suspicion
from streams.job_view import JobView
from streams.suspicions import Claim

PACE_KIND = "self.pace"
REPEAT_SECONDS = 3600
MIN_STEPS = 100
"""Steps of which a pace is the median: fewer leave more noise than healthy GPUs differ by."""

_DETECTOR = "pace"
_RATIO, _SPREAD, _STEPS = "pace.log_ratio", "pace.log_spread", "pace.steps"


class Paces:
    """Tells the pace of each rank of a job at a second of the hour that is the rank's own.

    That is the same after a restart, and differs from job to job: a fleet does not tell all at once.
    """

    def __init__(self) -> None:
        self._roster: tuple[int, ...] = ()
        self._moments: npt.NDArray[np.float64] = np.empty(0)
        self._before = self._next = math.inf

    def step(self, view: JobView, at: float) -> list[Suspicion]:
        """Return the paces of the ranks whose moment lies between the last step and this one, closed at
        ``at``.
        """
        before, self._before = min(self._before, at), at
        if view.roster is not self._roster:
            self._roster, self._next = view.roster, -math.inf
            self._moments = np.array([_moment(view.job_id, rank) for rank in view.roster])
        if at < self._next:
            return []
        since = (at - self._moments) % REPEAT_SECONDS
        self._next = at + REPEAT_SECONDS - float(since.max())
        due = np.flatnonzero(since < at - before)
        return _told(view, due, at) if len(due) and _means_something(view) else []


def pace_of(told: Suspicion) -> Pace | None:
    """Return the pace that a suspicion of ``PACE_KIND`` tells, or None where something of it is missing."""
    s, values = told.subject, {e.metric: e.value for e in told.evidence}
    if s.node is None or s.gpu_index is None or s.job_id is None or not {_RATIO, _SPREAD} <= values.keys():
        return None
    return Pace(
        machine=Machine(s.cluster, s.node, s.gpu_index),
        job=s.job_id,
        rank=s.rank or 0,
        at=told.ts,
        log_ratio=values[_RATIO],
        spread=values[_SPREAD],
    )


def _moment(job_id: str, rank: int) -> float:
    # ``hash`` of a name would be another in every process.
    return float(zlib.crc32(f"{job_id}/{rank}".encode()) % REPEAT_SECONDS)


def _means_something(view: JobView) -> bool:
    ratios = view.detector.ratios
    return ratios.roles_settled and not (ratios.common_clock or ratios.asynchronous)


def _told(view: JobView, due: npt.NDArray[np.intp], at: float) -> list[Suspicion]:
    ratios = view.detector.ratios
    due = due[~ratios.small_role[due]]
    logs = ratios.history.last("role", min(ratios.settled, ratios.config.history))[:, due]
    middles, steps = nan_median(logs, least=MIN_STEPS), np.isfinite(logs).sum(axis=0)
    told = zip(due.tolist(), middles.tolist(), steps.tolist(), strict=True)
    return [
        _pace(subject, middle, view.detector.spread, n, at)
        for i, middle, n in told
        if math.isfinite(middle) and (subject := view.subject(view.roster[i])).type == "gpu"
    ]


def _pace(subject: Subject, middle: float, spread: float, steps: int, at: float) -> Suspicion:
    told = ((_RATIO, round(middle, 6)), (_SPREAD, round(spread, 6)), (_STEPS, float(steps)))
    claim = Claim(
        detector=_DETECTOR,
        family="timing",
        kind=PACE_KIND,
        subject=subject,
        weight=0.0,
        score=0.0,
        evidence=tuple(Evidence(metric=m, unit="1", detector=_DETECTOR, value=v) for m, v in told),
    )
    return claim.suspicion("clear", ts=at, onset=at)
