"""Whether a slowdown of a job is worth a page: what may pass by itself, or is no fault, is not at once."""

import math
from collections.abc import Iterable
from functools import reduce

from alerts.cases.case import Case
from alerts.cases.cost.slow_time import SlowTime
from alerts.reasoning.calibration import Basis
from alerts.reasoning.fusion import basis_of
from slowrank.telemetry import Suspicion

# A slowdown that rests on step times alone pages nobody before it has cost its job so many seconds, or has
# lasted for five minutes. Chosen: a rank that is profiled, or a machine that saves in the background, is
# slower by a twentieth to a half for some ten steps, and step times do not tell it from a fault.
COST_SECONDS, SUSTAINED_SECONDS = 30.0, 300.0

# Chosen, of what the job would have lost by the ratio: with less on its account the job waited for others. Of
# ten that are slow at once each has as much.
_CHARGED = 0.1

# With evidence of the machine itself, or where the job stands still, a slowdown by as much pages at once, and
# one by less as above. Chosen: neighbours on the host slow a machine by a twentieth for a minute or two.
LARGE = 1.10
_AT_ONCE: frozenset[Basis] = frozenset({"hardware", "stop"})


def is_sustained(cases: Iterable[Case], suspicions: Iterable[Suspicion]) -> bool:
    """Return whether the slowdown of a job by the ``cases`` of one finding, with these ``suspicions``, is
    worth a page, or was before while the finding has not ended."""
    cases, suspicions = tuple(cases), tuple(suspicions)
    if any(case.sustained for case in cases):
        return True
    slow = reduce(SlowTime.longest, (case.slow for case in cases))
    ratios = [s.job_slowdown_ratio for s in suspicions if s.job_slowdown_ratio is not None]
    return worth_a_page(
        max(ratios, default=None), slow, basis_of(suspicions), charged=_charged(cases, suspicions)
    )


def _charged(cases: Iterable[Case], suspicions: Iterable[Suspicion]) -> float:
    """Return the seconds of its job that are on the accounts of the ``cases``; infinite if none is kept."""
    gpus = max((s.gpus for s in suspicions if s.lost is not None), default=0)
    return 3600.0 * math.fsum(case.account.lost for case in cases) / gpus if gpus else math.inf


def worth_a_page(
    job_slowdown: float | None, slow: SlowTime, basis: Basis, *, charged: float = math.inf
) -> bool:
    """Return whether a slowdown that rests on ``basis`` and has lasted for this ``slow`` time pages, with so
    many seconds of its job ``charged`` to it."""
    lasted = slow.seconds >= SUSTAINED_SECONDS or slow.cost >= COST_SECONDS
    if lasted and charged >= min(COST_SECONDS, _CHARGED * slow.cost):
        return True
    return basis in _AT_ONCE and job_slowdown is not None and job_slowdown >= LARGE
