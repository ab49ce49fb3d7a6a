"""Whether a slowdown of a job is worth a page: what may pass by itself, or is no fault, is not at once."""

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
    return worth_a_page(max(ratios, default=None), slow, basis_of(suspicions))


def worth_a_page(job_slowdown: float | None, slow: SlowTime, basis: Basis) -> bool:
    """Return whether a slowdown that rests on ``basis`` and has lasted for this ``slow`` time pages."""
    if slow.seconds >= SUSTAINED_SECONDS or slow.cost >= COST_SECONDS:
        return True
    return basis in _AT_ONCE and job_slowdown is not None and job_slowdown >= LARGE
