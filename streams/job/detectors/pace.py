"""The pace of a job's GPUs beside their peers, once an hour.

A job is too short to distinguish a GPU that is 3 % slow for good from one of its healthy neighbours; weeks
are not (``detectors.fleet.chronic``). The storing worker keeps the paces, and what an earlier job left open
about a GPU ends with one that shows it as fast as its peers (``streams.cluster.later_job``).
"""

import math
import zlib

import numpy as np
import numpy.typing as npt

from slowrank.telemetry import RankPace
from streams.job.view import JobView

# Chosen: an hour is what ``detectors.fleet.chronic`` takes the mean over; more often would cost the store
# more.
REPEAT_SECONDS = 3600

# Steps of which a pace is the median. Chosen: at a noise of 0.5 % to 2 % a step their median is known to 0.06
# to 0.25 %, fewer leave more noise than healthy GPUs differ by (0.6 %, ``StragglerConfig.spread``).
MIN_STEPS = 100


class Paces:
    """The pace of each rank of ``roster``, at a second of the hour that is the rank's own.

    That is the same after a restart, and differs from job to job, which spreads the messages of a fleet.
    ``due`` is the event time of the next such second.
    """

    def __init__(self, job_id: str, roster: tuple[int, ...]) -> None:
        self.due = -math.inf
        self._moments = np.array([_moment(job_id, rank) for rank in roster])
        self._before = math.inf

    def step(self, view: JobView, at: float) -> list[RankPace]:
        """Return the paces of the ranks whose second lies between the last call and ``at``, when the step
        closed."""
        since = (at - self._moments) % REPEAT_SECONDS
        past = np.flatnonzero(since < at - self._before)
        self.due, self._before = at + REPEAT_SECONDS - float(since.max()), at
        return _paces(view, past, at) if len(past) else []


def _moment(job_id: str, rank: int) -> float:
    # ``hash`` of a name would be another in every process.
    return float(zlib.crc32(f"{job_id}/{rank}".encode()) % REPEAT_SECONDS)


def _paces(view: JobView, due: npt.NDArray[np.intp], at: float) -> list[RankPace]:
    paces = view.core.paces(due, least=MIN_STEPS).tolist()
    return [
        RankPace(
            cluster=view.cluster,
            ts=at,
            node=gpu.node,
            gpu_index=gpu.gpu_index,
            job_id=view.job_id,
            rank=rank,
            log_ratio=round(pace, 6),
            spread=round(view.core.pace_spread, 6),
        )
        for rank, pace in zip((view.roster[i] for i in due.tolist()), paces, strict=True)
        if math.isfinite(pace)
        and (gpu := view.subject(rank)).type == "gpu"
        and gpu.node is not None
        and gpu.gpu_index is not None
    ]
