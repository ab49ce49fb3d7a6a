"""What a case has cost its job: slow steps by what the job stage adds up, a job at a stop by time.

Slow steps come with each suspicion as a total since its onset, of which the case takes what is new. A job
that stands still loses all of its GPUs from its last step on, until it moves or has let go of its machines.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from slowrank.telemetry import Suspicion

if TYPE_CHECKING:
    from alerts.case import Case, Source

ACCRUE_SECONDS = 30.0
"""Event time between two versions of a finding about a job at a stop, as between two updates of a detector
(``JobStageConfig.update_seconds``): of a stop of ten minutes the last version lacks 5 % at most."""


def added(source: Source | None, s: Suspicion) -> float:
    """Return the GPU-hours of slow steps that ``s`` tells of and its ``source`` has not told of before."""
    if s.lost is None:
        return 0.0
    total, before = s.lost.gpu_seconds / 3600.0, None if source is None else source.latest
    if source is None or before is None or before.lost is None:
        return total
    if before.onset == s.onset:
        return total - before.lost.gpu_seconds / 3600.0
    if not source.active or s.onset >= before.ts:
        return total
    # A detector that was restarted dates it anew: what reaches back is on the account already.
    return total * max(0.0, s.ts - before.ts) / (s.ts - s.onset)


def accounted(case: Case, ts: float) -> Case:
    """Return a case with what its job's stop has cost until ``ts``; of an ended one only the time moves."""
    if not case.stalled or ts <= case.accounted_to:
        return case
    hours = case.gpus * (ts - case.accounted_to) / 3600.0 if case.live else 0.0
    return replace(case, lost=case.lost + hours, accounted_to=ts)


def moved(case: Case, ts: float) -> Case:
    """Return a case whose job does not stand still any more, from ``ts`` on."""
    return replace(accounted(case, ts), stalled=False) if case.stalled else case


def per_hour(case: Case) -> float:
    """Return the GPU-hours that a case costs an hour at present."""
    return case.rate + (case.gpus if case.stalled and case.live else 0)


def untold(case: Case, at: float) -> float:
    """Return the GPU-hours that slow steps have cost by ``at``, at their present rate, since the detector
    that measures them told of them: others may have seen the case since."""
    told = (source.latest for source in case.sources.values() if source.active)
    return math.fsum(s.lost.gpus * (at - s.ts) / 3600.0 for s in told if s.lost is not None)


def next_version(case: Case, until: float = -math.inf) -> float:
    """Return when a stop's cost is due to be told next, or the last such time up to ``until``."""
    if not case.stalled or case.opened_at is None or case.status == "suspected":
        return math.inf
    passed = (until - case.accounted_to) // ACCRUE_SECONDS if math.isfinite(until) else 1.0
    return case.accounted_to + ACCRUE_SECONDS * max(1.0, passed)


def beyond(case: Case, until: float) -> float:
    """Return the GPU-hours of a job that stands still although its case has ended, up to ``until`` at most.

    When its processes have given up it is no hang any more, but what stopped it still costs the machines.
    """
    if case.live or case.ended_at is None:
        return 0.0
    return case.gpus * max(0.0, min(case.accounted_to, until) - case.ended_at) / 3600.0
