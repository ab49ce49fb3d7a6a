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
from slowrank.telemetry import Subject, Suspicion
from streams.job_view import JobView
from streams.suspicions import told

PACE_KIND = "self.pace"
REPEAT_SECONDS = 3600
MIN_STEPS = 100
"""Steps of which a pace is the median: fewer leave more noise than healthy GPUs differ by."""

_RATIO, _SPREAD = "pace.log_ratio", "pace.log_spread"


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
        return _paces(view, due, at) if len(due) and _means_something(view) else []


def pace_of(s: Suspicion) -> Pace | None:
    """Return the pace that a suspicion of ``PACE_KIND`` tells, or None where something of it is missing."""
    gpu, ratio, spread = s.subject, s.readings.get(_RATIO, math.nan), s.readings.get(_SPREAD, math.nan)
    if gpu.node is None or gpu.gpu_index is None or gpu.job_id is None or gpu.rank is None:
        return None
    if not (math.isfinite(ratio) and math.isfinite(spread)):
        return None
    return Pace(
        machine=Machine(gpu.cluster, gpu.node, gpu.gpu_index),
        job=gpu.job_id,
        rank=gpu.rank,
        at=s.ts,
        log_ratio=ratio,
        spread=spread,
    )


def _moment(job_id: str, rank: int) -> float:
    # ``hash`` of a name would be another in every process.
    return float(zlib.crc32(f"{job_id}/{rank}".encode()) % REPEAT_SECONDS)


def _means_something(view: JobView) -> bool:
    ratios = view.detector.ratios
    return ratios.roles_settled and not (ratios.common_clock or ratios.asynchronous)


def _paces(view: JobView, due: npt.NDArray[np.intp], at: float) -> list[Suspicion]:
    ratios = view.detector.ratios
    due = due[~ratios.small_role[due]]
    logs = ratios.history.last("role", min(ratios.settled, ratios.config.history))[:, due]
    middles = nan_median(logs, least=MIN_STEPS).tolist()
    return [
        _pace(subject, middle, view.detector.spread, at)
        for i, middle in zip(due.tolist(), middles, strict=True)
        if math.isfinite(middle) and (subject := view.subject(view.roster[i])).type == "gpu"
    ]


def _pace(subject: Subject, middle: float, spread: float, at: float) -> Suspicion:
    readings = {_RATIO: round(middle, 6), _SPREAD: round(spread, 6)}
    return told(PACE_KIND, subject, detector="pace", family="timing", ts=at, onset=at, readings=readings)
