"""Several machines that load slowly since one moment: a finding about the job, with the machines as suspects.

What they share is slow, a store or its network: each machine by itself would be one of many findings.
"""

from collections.abc import Mapping

import msgspec

from detectors.straggler.core import Ints
from slowrank.telemetry import Evidence, Suspicion
from slowrank.telemetry.records import Suspect
from streams.job.aspect import Aspect, Key
from streams.job.detector import OfCore
from streams.job.detectors.slow_ranks import suspicion_of
from streams.job.rows.step_aligner import Step
from streams.job.suspicions import WEIGHT_SLOW
from streams.job.view import JobView, spans

SHARED_LOADING = Aspect("shared loading", cost="past")

# Most machines that are named. Chosen: what a title holds.
_MOST_NAMED = 8

# Ranks whose figures are asked for. Chosen: each takes a look at all steps held.
_DESCRIBED = 16

# Chosen, of each machine: it waits for data, and what keeps it waiting is most likely elsewhere.
_HALF = 0.5

_KEY = (SHARED_LOADING, -1)


class SharedLoading(OfCore):
    """Machines that load slowly together, from when the core finds three until the last recovers."""

    aspects = (SHARED_LOADING,)

    def step(self, view: JobView, step: Step) -> Mapping[Key, Suspicion]:
        """Return the finding about the job, brought up to date when it is due."""
        ranks, at = view.core.loading_together, step.closed_at
        if not ranks.size:
            return {}
        last = view.standing(SHARED_LOADING).get(_KEY)
        if last is None or view.open.is_due(_KEY, at):
            last = _suspicion(view, ranks, at) or (last and view.open.refreshed(_KEY, at))
        return {} if last is None else {_KEY: last}


def _suspicion(view: JobView, ranks: Ints, at: float) -> Suspicion | None:
    """Build what the middle one of the slow ranks shows, and how much the job waits for the slowest."""
    some = ranks[:: max(1, len(ranks) // _DESCRIBED)]
    described = [view.core.describe("data", rank) for rank in some.tolist()]
    slow = sorted((one for one in described if one is not None), key=lambda one: one.ratio)
    if not slow:
        return None
    middle = suspicion_of(view, slow[(len(slow) - 1) // 2], at)
    first = {view.node(view.roster[i]) or f"rank {view.roster[i]}": view.roster[i] for i in ranks[::-1]}
    named = sorted(first)[:_MOST_NAMED]
    more = f" and {len(first) - len(named)} more" if len(first) > len(named) else ""
    began = min(one.onset for one in slow)
    waiting = spans([view.roster[i] for i in ranks.tolist()])
    who = f"ranks {waiting} on {', '.join(named)}{more} wait for data since the same moment"
    return msgspec.structs.replace(
        middle,
        subject=view.job(),
        onset=began,
        onset_lo=min(one.onset_lo for one in slow),
        # One was over its threshold, and those of two machines more by four standard errors of their means.
        overwhelming=True,
        job_slowdown_ratio=round(max(one.job_ratio for one in slow), 4),
        ranks_on_node=0,
        ranks_likely_on_node=0,
        ranks_in_group=0,
        mates="",
        suspects=tuple(Suspect(subject=view.machine(first[name]), probability=_HALF) for name in named),
        evidence=tuple(_noted(entry, who) for entry in middle.evidence),
        hypotheses={"data.shared": WEIGHT_SLOW},
        note=who,
    )


def _noted(entry: Evidence, who: str) -> Evidence:
    """Return the times of the middle rank with a note of ``who`` else they stand for."""
    return msgspec.structs.replace(entry, note=who) if entry.metric == "data_seconds" else entry
