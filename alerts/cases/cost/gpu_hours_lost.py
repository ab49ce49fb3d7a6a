"""What a case has cost its job, in GPU-hours: slow steps by their measured loss, a stopped job by time."""

import math
from dataclasses import dataclass, replace
from typing import Self

# Event time between two versions of a finding about a stopped job, as between two updates of a detector
# (``JobStageConfig.update_seconds``): of a stop of ten minutes the last version lacks 5 % at most.
ACCRUE_SECONDS = 30.0

# How long a job whose nodes report no job is taken to wait for its next attempt. Chosen: a scheduler restarts
# it within minutes, by itself or told to; one that is given up has no event, and costs no more than this.
NEXT_ATTEMPT_SECONDS = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuHoursLost:
    """GPU-hours lost to one case; each hour is on one account only.

    lost = Σ slow steps (t_step − t_healthy)·N / 3600  +  ∫ N dt / 3600 while the job stands still,

    with N GPUs of the job. The step records carry the first sum as a total since the onset, of which each
    suspicion adds what is new (``source.new_loss``); the integral runs from the last step until the job moves
    or others have its machines. The formula for jobs without a healthy past is in ``alerts.report.cost``.

    ``rate``: what slow steps cost at present, GPU-hours an hour. ``stalled``: a job of ``gpus`` stands still,
    which is in ``lost`` up to the event time ``accrued_to``. ``released_at``: since when it has no machines;
    what it loses then counts as far as a machine is the cause (``after_end``). ``charged_to``: dedup key of
    the case that explained this one last and has its losses on its own account.
    """

    lost: float = 0.0
    rate: float = 0.0
    gpus: int = 0
    stalled: bool = False
    accrued_to: float = 0.0
    released_at: float = math.inf
    charged_to: str | None = None

    def accrued(self, ts: float, *, live: bool) -> Self:
        """Return it with the cost of the stop until ``ts``; of a case that has ended only the time moves."""
        if not self.stalled or ts <= self.accrued_to:
            return self
        seconds = max(0.0, min(ts, self.released_at) - self.accrued_to) if live else 0.0
        return replace(self, lost=self.lost + self.gpus * seconds / 3600.0, accrued_to=ts)

    def released(self, ts: float, *, live: bool) -> Self:
        """Return it for a job without machines from ``ts`` on, which may wait for its next attempt."""
        if not self.stalled or self.released_at <= ts:
            return self
        return replace(self.accrued(ts, live=live), released_at=ts)

    def moved(self, ts: float, *, live: bool) -> Self:
        """Return it for a job that does not stand still any more, from ``ts`` on."""
        return replace(self.accrued(ts, live=live), stalled=False) if self.stalled else self

    @property
    def waits_until(self) -> float:
        """Until when a job without machines counts as one that waits for its next attempt."""
        return self.released_at + NEXT_ATTEMPT_SECONDS

    def per_hour(self, *, live: bool) -> float:
        """Return the GPU-hours lost an hour at present."""
        stands = self.stalled and live and self.released_at == math.inf
        return self.rate + (self.gpus if stands else 0)

    def next_version(self, until: float = -math.inf) -> float:
        """Return when a stop's cost is due to be reported next, or the last such time up to ``until``."""
        passed = (until - self.accrued_to) // ACCRUE_SECONDS if math.isfinite(until) else 1.0
        return self.accrued_to + ACCRUE_SECONDS * max(1.0, passed)

    def after_end(self, ended_at: float, until: float) -> float:
        """Return the GPU-hours of a job that stands still after its case has ended, up to ``until`` at most.

        When its processes have given up it is no hang any more, but what stopped it still costs the job.
        """
        since = min(ended_at, self.released_at)
        return self.gpus * max(0.0, min(self.accrued_to, until) - since) / 3600.0
