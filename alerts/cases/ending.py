"""When a case changes without new suspicions: opened after a hold, resolved, expired, forgotten."""

import math
from dataclasses import replace

from alerts.cases.case import Case
from alerts.cases.explaining import explaining_key, traces
from alerts.cases.gathered import vagueness
from alerts.cases.grouping import held_for_others
from alerts.cases.lifecycle import Event, transition
from alerts.cases.scope import Scope
from alerts.config import FindingConfig
from alerts.kind import Standing
from alerts.kinds import kind_of
from alerts.reasoning.corroborate import at_work_from
from alerts.reasoning.fusion import cause

# What jobs declare and idle machines show has no finding that a relapse could reopen; where nothing else is
# known of the job it is kept for so long. Chosen: longer than onsets are dated back, to a planned change.
ASIDE_SECONDS = 3600.0

# After a node's telemetry is back, for rows that come with the next step. Chosen: two steps of a minute.
BACK_SECONDS = 120.0


def deadline_of(scope: Scope, case: Case, config: FindingConfig) -> float:
    """Return the event time at which a case changes if nothing else comes in."""
    if not case.live:
        kept = config.reopen_within_seconds
        if _nothing_to_reopen(scope):
            kept = min(kept, ASIDE_SECONDS)
        return max(case.ended_at or 0.0, case.last_seen_at) + kept
    left = traces(scope, case, config)
    if any(trace.active for trace in left):
        # Its trace may be all that it shows until it is repaired.
        return max(c.last_seen_at for c in (case, *left)) + config.open_expires_after_seconds
    if case.cleared_at is not None:
        # No machine is watched for a relapse where the work was why.
        excused = kind_of(cause(case.kind, case.suspicions()).hypothesis).uneven and not case.rule.no_culprit
        hold = 0.0 if excused else config.resolve_after_seconds
        return max(c.cleared_at or 0.0 for c in (case, *left)) + hold
    if case.status == "suspected" and explaining_key(scope, case, config) is None:
        return min(
            case.last_seen_at + config.suspected_expires_after_seconds, held_until(scope, case, config)
        )
    return case.last_seen_at + config.open_expires_after_seconds


def expire(scope: Scope, key: str, at: float, config: FindingConfig) -> Scope:
    """Return the scope after the deadline of one of its cases."""
    case = scope.cases[key]
    case = case.accrued(min(at, at_work_from(case, scope.cases.values())))
    if at < deadline_of(scope, case, config):
        return scope.having(case)
    if not case.live:
        return Scope({k: c for k, c in scope.cases.items() if k != key})
    if case.before_stop is not None and at < held_until(scope, case, config):
        return scope.having(case.without_stop())
    # It is the hold that ends: the case opens when the scope is settled.
    if case.status == "suspected" and at >= held_until(scope, case, config):
        return scope
    event: Event = "recovered" if case.cleared_at is not None else "expired"
    return scope.having(replace(case.all_cleared(at), status=transition(case.status, event), ended_at=at))


def held_until(scope: Scope, case: Case, config: FindingConfig) -> float:
    """Return when a case with enough evidence opens.

    At once, unless it may be one of many of its group, node, rack or switch, part of something worse, or no
    more than telemetry that was away.
    """
    if case.ready_at is None:
        return math.inf
    others = (c for c in scope.cases.values() if c.kind in case.rule.not_beside)
    heard = max((c.cleared_at for c in others if c.cleared_at is not None), default=-math.inf)
    ready_at = max(case.ready_at, heard + BACK_SECONDS)
    if held_for_others(case, scope.cases, config):
        # Ranks that are equally slow cross the threshold at different steps: the later, the further apart.
        taken = config.node_hold_share * (case.ready_at - case.since)
        return ready_at + min(max(taken, 0.0), max(config.node_hold_seconds, 2.0 * vagueness(case)))
    placed = case.subject.rack is not None or case.subject.switch is not None
    held = (placed and case.rule.held_for_domain) or case.rule.trace
    return ready_at + (config.hold_seconds if held else 0.0)


def _nothing_to_reopen(scope: Scope) -> bool:
    """Return whether all that is left of a scope is evidence that has ended, and was never a finding."""
    rules = ((case.live, case.rule) for case in scope.cases.values())
    return all(not live and r.reported_as == "evidence" and r.standing is Standing.ASIDE for live, r in rules)
