"""A GPU that was slow when its job ended, and keeps pace with its peers in a later one."""

import math
from collections.abc import Iterable, Iterator

import msgspec

from alerts.cases.case import Case
from alerts.cases.source import of_steps
from slowrank.telemetry import RankPace, Suspicion

# What the pace of a later job is about: lasting slowness in compute. A median says nothing of what comes and
# goes, and the pace nothing of transfers, loading and the rest of a step.
_KIND, _DETECTOR = "straggler.fail_slow", "peer_step"


def recovered(cases: Iterable[Case], pace: RankPace) -> Iterator[Suspicion]:
    """Yield the ends of what other jobs found slow at the GPU of ``pace``, where it is not slow any more.

    It is not once it is nearer to its peers than to what it was slow by, on a log scale: of a GPU that is as
    fast as its peers or slow as before, the likelier of the two.
    """
    for case in cases:
        at = case.subject
        if (at.node, at.gpu_index) != (pace.node, pace.gpu_index):
            continue
        for source in case.sources.values():
            last = source.latest
            if source.active and _is_over(last, pace):
                yield msgspec.structs.replace(last, state="clear", ts=pace.ts, score=0.0)


def _is_over(last: Suspicion, pace: RankPace) -> bool:
    if not of_steps(last) or (last.kind, last.detector) != (_KIND, _DETECTOR):
        return False
    # The job that found it tells by itself when it recovers, across restarts, too.
    later = last.subject.job_id != pace.job_id and last.ts < pace.ts
    return later and pace.log_ratio < math.log(last.slowdown_ratio or 1.0) / 2
