"""A scope in event time, as a pure function of its suspicions taken in order of event time.

The same set gives the same findings, however often and in whatever order it was delivered:
``streams.cluster.timeline`` restores the order.
"""

import math
from collections.abc import Iterable, Iterator

from alerts.cases.case import Case, case_key
from alerts.cases.ending import deadline_of, expire
from alerts.cases.opening import settle
from alerts.cases.scope import Scope
from alerts.cases.update import update
from alerts.config import FindingConfig
from alerts.reasoning.corroborate import already_ended
from slowrank.telemetry import Suspicion

# Of one scope (chosen: each is compared with all others, and names of subjects come from outside). Of more,
# those that ended first make room, and, for what opens by itself, a suspected one; else new ones are left
# out.
MAX_CASES = 256


def apply(scope: Scope, batch: Iterable[Suspicion], config: FindingConfig) -> Scope:
    """Return the scope after suspicions of one event time."""
    cases, ts = dict(scope.cases), 0.0
    for s in batch:
        ts = s.ts
        before = cases.get(case_key(s))
        if s.state != "clear" and before is not None and already_ended(before, s, cases.values()):
            continue
        case = update(before, s, config)
        if case is None:
            continue
        if case.key not in cases and len(cases) >= MAX_CASES:
            _forget_one(cases, s)
        if case.key in cases or len(cases) < MAX_CASES:
            cases[case.key] = case
    return settle(Scope(cases), ts, config)


def _forget_one(cases: dict[str, Case], s: Suspicion) -> None:
    # With the key, so that of two that ended at once the same one goes in every replay.
    ended = [(case.ended_at or 0.0, key) for key, case in cases.items() if not case.live]
    mild = [(case.last_seen_at, key) for key, case in cases.items() if case.status == "suspected"]
    if ended or (mild and s.overwhelming):
        del cases[min(ended or mild)[1]]


def advance(
    scope: Scope, until: float, config: FindingConfig, *, inclusive: bool
) -> Iterator[tuple[float, Scope]]:
    """Yield time and scope after each deadline before ``until`` (or at it, when inclusive)."""
    reached = -math.inf
    while (due := next_deadline(scope, config, until)) is not None:
        # A late suspicion may set a deadline in the past: it is due at once, for time does not go back.
        at = max(due[0], reached)
        if at > until or (at == until and not inclusive):
            return
        reached, scope = at, settle(expire(scope, due[1], at, config), at, config)
        yield reached, scope


def next_deadline(scope: Scope, config: FindingConfig, until: float = -math.inf) -> tuple[float, str] | None:
    """Return when (event time) and for which case something changes without new suspicions.

    Of the times up to ``until`` at which only a cost is reported anew, the last alone counts.
    """
    due = ((min(deadline_of(scope, c, config), _next_version(c, until)), c.key) for c in scope.cases.values())
    return min(due, default=None)


def _next_version(case: Case, until: float) -> float:
    """Return when the growing cost of a stopped job is reported next."""
    if not case.account.stalled or case.opened_at is None or case.status == "suspected":
        return math.inf
    return case.account.next_version(until)
