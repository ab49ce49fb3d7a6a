"""When cases open, and how one takes over the others that it explains, with their cost."""

from collections.abc import Iterable
from dataclasses import replace

from alerts.cases.case import Case
from alerts.cases.ending import held_until
from alerts.cases.explaining import (
    explaining_key,
    gravity,
    outlasted,
    slow_node_of,
    supporting,
    taken_over,
    waits_for_explanation,
)
from alerts.cases.grouping import grouped, members_of, with_groups
from alerts.cases.lifecycle import NOTIFIED, transition
from alerts.cases.scope import Scope
from alerts.config import FindingConfig
from alerts.kind import Standing
from alerts.reasoning.corroborate import (
    at_work_from,
    certain,
    corroborated,
    gone,
    over,
    planned,
    released,
    shown_by_machines,
)
from alerts.reasoning.sustained import is_sustained


def settle(scope: Scope, ts: float, config: FindingConfig) -> Scope:
    """Return the scope after its cases changed at ``ts``: grouped, opened, charged and absorbed."""
    scope = _follow_plans(Scope(with_groups(scope.cases, ts, config)), config)
    # Root causes first, so that once open they inhibit their symptoms.
    for key in sorted(scope.cases, key=lambda k: _precedence(scope.cases[k])):
        case = _reopened(scope, scope.cases[key], ts, config)
        if case.status != "suspected":
            continue
        ready = case.fresh_at(ts, config) and _sufficient(scope, case, config)
        if (
            not ready
            or explaining_key(scope, case, config) is not None
            or waits_for_explanation(scope, case, config)
            or outlasted(scope, case, config)
        ):
            if case.ready_at is not None:
                scope = scope.having(replace(case, ready_at=None))
            continue
        case = replace(case, ready_at=ts if case.ready_at is None else case.ready_at)
        scope = scope.having(_open(case, ts) if ts >= held_until(scope, case, config) else case)
    return _sustain(_absorb(_charge_explaining(_follow_hangs(scope, ts), config), ts, config), config)


def _reopened(scope: Scope, case: Case, ts: float, config: FindingConfig) -> Case:
    """Return an absorbed case as a suspected one, once the case that absorbed it explains it no more."""
    may_be = case.rule.trace or case.rule.standing is Standing.FATAL
    absorbed = may_be and case.status == "resolved" and case.fresh_at(ts, config)
    if not absorbed or explaining_key(scope, case, config) is not None:
        return case
    return replace(case, status=transition(case.status, "raised_again"), ended_at=None)


def _follow_plans(scope: Scope, config: FindingConfig) -> Scope:
    for case in [c for c in scope.cases.values() if planned(c, scope.cases.values(), config)]:
        # Kept while it lasts, also when the announcement is forgotten.
        scope = scope.having(replace(case, by_plan=True))
    return scope


def _follow_hangs(scope: Scope, ts: float) -> Scope:
    others = scope.cases.values()
    for case in [c for c in others if c.account.stalled]:
        if released(case, others):
            scope = scope.having(case := case.released(ts))
        until = ts if gone(case, others) else min(at_work_from(case, others), case.account.waits_until)
        if until <= ts:
            scope = scope.having(case.moved(until))
    for case in [c for c in scope.cases.values() if c.rule.hang and c.status in NOTIFIED]:
        if over(case, scope.cases.values()):
            scope = scope.having(case.all_cleared(ts))
        elif certain(case, scope.cases.values()):
            scope = scope.having(replace(case, certain=True))
    for case in [c for c in scope.cases.values() if c.rule.hang and c.opened_at is not None]:
        if not case.active and not case.shown:
            # Its machines work again, or have other work: what they showed is kept as it was.
            scope = scope.having(replace(case, shown=shown_by_machines(case, scope.cases.values())))
    return scope


def _charge_explaining(scope: Scope, config: FindingConfig) -> Scope:
    """Move what a case has cost to the account of the case that explains it: each hour is on one only."""
    for key in sorted(k for k, c in scope.cases.items() if c.account.lost or c.account.charged_to):
        case = scope.cases[key]
        cause = explaining_key(scope, case, config)
        if cause is not None:
            lead = scope.cases[cause]
            lost = lead.account.lost + case.account.lost
            scope = scope.having(replace(lead, account=replace(lead.account, lost=lost)))
            scope = scope.having(replace(case, account=replace(case.account, lost=0.0, charged_to=cause)))
        elif case.account.charged_to is not None and case.status in NOTIFIED:
            scope = scope.having(replace(case, account=replace(case.account, charged_to=None)))
    return scope


def _sustain(scope: Scope, config: FindingConfig) -> Scope:
    """Keep for each open case that its slowdown was worth a page; less evidence later does not undo it."""
    if not any(case.hurts for case in scope.cases.values()):
        return scope
    for case in tuple(scope.cases.values()):
        if case.status not in NOTIFIED or case.sustained or case.rule.hang:
            continue
        cases = (case, *supporting(scope, case, config))
        if any(c.hurts for c in cases) and is_sustained(cases, (s for c in cases for s in c.suspicions())):
            scope = scope.having(replace(case, sustained=True))
    return scope


def _precedence(case: Case) -> tuple[int, int, int, int, str]:
    # Of fatal faults the gravest first. Of one standing, what is gathered of others comes before them, nodes
    # first: once open it absorbs them.
    of_others = case.made_of_ranks or case.leads_mates
    narrow = 2 if not of_others else 1 if case.subject.type != "node" else 0
    severity, reach = gravity(case)
    return (case.rule.standing, -severity, -reach, narrow, case.key)


def _sufficient(scope: Scope, case: Case, config: FindingConfig) -> bool:
    others: Iterable[Case] = scope.cases.values()
    if (node := slow_node_of(case, others, config)) is not None:
        others = [c for c in others if c.key != node.key and not grouped(c, node, config)]
    within = members_of(case, scope.cases, config)
    return corroborated(case, others, config) or any(corroborated(m, others, config) for m in within)


def _open(case: Case, ts: float) -> Case:
    before = case.before_stop
    # A job that stops anew before its recovery has held has not recovered.
    held = before is not None and before.live
    again = case.opened_at is not None and not held
    return replace(
        case.accrued(ts),
        status=before.status if before is not None and held else transition(case.status, "corroborated"),
        before_stop=None,
        ready_at=None,
        opened_at=ts if case.opened_at is None else case.opened_at,
        occurrences=case.occurrences + again,
    )


def _absorb(scope: Scope, ts: float, config: FindingConfig) -> Scope:
    for case in tuple(scope.cases.values()):
        if case.status in NOTIFIED and taken_over(scope, case, config):
            scope = scope.having(replace(case, status=transition(case.status, "absorbed"), ended_at=ts))
    # A member that had opened by itself before its group did.
    for group in tuple(scope.cases.values()):
        if group.status not in NOTIFIED:
            continue
        for member in tuple(scope.cases.values()):
            if member.status in NOTIFIED and grouped(member, group, config):
                status = transition(member.status, "absorbed")
                scope = scope.having(replace(member, status=status, ended_at=ts))
    return scope
