"""Which case explains which: the finding of the cause shows the other as its evidence."""

import math
from collections.abc import Iterable

from alerts.cases.case import Case
from alerts.cases.grouping import grouped, slow_with_leader
from alerts.cases.lifecycle import NOTIFIED
from alerts.cases.scope import Scope
from alerts.config import FindingConfig
from alerts.kind import Standing
from alerts.kinds import IDLE
from alerts.reasoning.corroborate import related, same_place, same_unit, suffices_alone
from alerts.stated_severity import ORDER, isolated, milder
from slowrank.telemetry.records import Family

# After a slow machine is found, for what its hardware shows of why. Chosen: two readings of a minute each.
LATE_SECONDS = 120.0

_DEFECTS = (Standing.CAUSE, Standing.FATAL)


def explaining_key(scope: Scope, case: Case, config: FindingConfig) -> str | None:
    """Return the dedup key of the open finding that explains this case, if there is one."""
    if scope.cases.get(case.key) is not case:
        return _explaining_key(scope, case, config)
    # The window is the only setting that it depends on.
    key = case.key, config.agree_within_seconds
    if key not in scope.explained_by:
        scope.explained_by[key] = _explaining_key(scope, case, config)
    return scope.explained_by[key]


def supporting(scope: Scope, case: Case, config: FindingConfig) -> tuple[Case, ...]:
    """Return the cases whose evidence belongs to the finding of ``case``, in order of their keys."""
    if explaining_key(scope, case, config) is not None:
        return ()
    standing = case.rule.standing
    return tuple(
        other
        for _, other in sorted(scope.cases.items())
        if (
            _of_one_cause(case, other, config)
            or _shows_why(scope, case, other, config)
            or _flaps_with(case, other, config)
            or (case.rule.hang and other.kind == IDLE)
        )
        and not grouped(other, case, config)
        and (other.rule.standing > standing or explaining_key(scope, other, config) == case.key)
    )


def waits_for_explanation(scope: Scope, case: Case, config: FindingConfig) -> bool:
    """Return whether a case that would explain this one is held back: meanwhile this one opens no finding."""
    own = case.rule.standing
    held = (c for c in scope.cases.values() if c.status == "suspected" and c.ready_at is not None)
    worse = (c for c in held if c.rule.standing < own or grouped(case, c, config))
    return any(grouped(case, c, config) or related(c, case, config) for c in worse)


def outlasted(scope: Scope, case: Case, config: FindingConfig) -> bool:
    """Return whether the finding of which this case is a relapse has ended since the case was last reported:
    nothing shows that it goes on."""
    ended = (c for c in scope.cases.values() if c.rule.relapsing_as == case.kind and c.opened_at is not None)
    return any(
        c.ended_at is not None and c.ended_at >= case.last_seen_at and _of_one_cause(c, case, config)
        for c in ended
    )


def traces(scope: Scope, case: Case, config: FindingConfig) -> list[Case]:
    """Return what an open finding's fault has left behind."""
    if case.status not in NOTIFIED:
        return []
    left = (c for c in scope.cases.values() if c.rule.trace)
    return [c for c in left if case.rule.standing < c.rule.standing and _of_one_cause(case, c, config)]


def slow_node_of(fault: Case, cases: Iterable[Case], config: FindingConfig) -> Case | None:
    """Return the slow node on one GPU of which a fault is seen that opens no finding by itself.

    That all of the node's GPUs are slow neither confirms it nor follows from it: it is evidence about the
    node.
    """
    if fault.rule.standing is not Standing.FATAL or fault.subject.gpu_index is None or suffices_alone(fault):
        return None
    nodes = (c for c in cases if c.subject.type == "node" and c.rule.pages == "machine" and c.active)
    return next((node for node in nodes if related(node, fault, config)), None)


def gravity(case: Case) -> tuple[int, int]:
    """Return what ranks fatal faults of one GPU, larger for the graver: severity, then what has to be done.

    Zeros for any other case. The gravest takes over, whichever came first: a reset for the memory error seen
    before does not bring back a GPU that fell off the bus.
    """
    if case.rule.standing is not Standing.FATAL:
        return (0, 0)
    stated = (s.severity for s in case.suspicions())
    return ORDER.index(milder(case.kind, stated)), case.rule.reach


def taken_over(scope: Scope, case: Case, config: FindingConfig) -> bool:
    """Return whether a case has no finding of its own, not even one from before, beside that which explains
    it: a trace of that fault, or a milder fatal fault."""
    key = explaining_key(scope, case, config)
    if key is None:
        return False
    return case.rule.trace or (0, 0) < gravity(case) < gravity(scope.cases[key])


def began_at(scope: Scope, case: Case, config: FindingConfig) -> float:
    """Return since when the fault of a case has been there: as an earlier one, if it took over from that."""
    if case.rule.standing is not Standing.FATAL:
        return case.since
    others = (c for c in scope.cases.values() if c.rule.standing is Standing.FATAL)
    return min((c.since for c in others if explaining_key(scope, c, config) == case.key), default=case.since)


def _explaining_key(scope: Scope, case: Case, config: FindingConfig) -> str | None:
    causes = [c for c in scope.cases.values() if _explains(scope, c, case, config)]
    gravest = max(map(gravity, causes), default=(0, 0))
    # The gravest has taken over from the others.
    return min((c.key for c in causes if gravity(c) == gravest), default=None)


def _explains(scope: Scope, cause: Case, case: Case, config: FindingConfig) -> bool:
    if cause.key == case.key or cause.status not in NOTIFIED:
        return False
    if grouped(case, cause, config) or slow_with_leader(case, cause, config):
        return True
    if _flaps_with(cause, case, config) or _shows_why(scope, cause, case, config):
        return True
    if slow_node_of(case, scope.cases.values(), config) is cause or _of_group(scope, cause, case, config):
        return True
    if grouped(cause, case, config) or not _of_one_cause(cause, case, config):
        return False
    if _graver_cause_of(case, cause) or _flaps_with(case, cause, config):
        return False
    above, own = cause.rule.standing, case.rule.standing
    if above is own is Standing.FATAL and gravity(cause) != gravity(case):
        return gravity(cause) > gravity(case)
    # Of two open ones of the same standing, the one that opened first keeps explaining the other.
    if above == own and case.status in NOTIFIED:
        if cause.opened_at == case.opened_at and _graver_cause_of(cause, case):
            return True
        return (cause.opened_at or 0.0, cause.key) < (case.opened_at or 0.0, case.key)
    return above <= own


def _of_group(scope: Scope, cause: Case, case: Case, config: FindingConfig) -> bool:
    """Return whether a defect explains the slow node, or group, that the case of a rank is a part of."""
    if cause.rule.standing not in _DEFECTS or case.made_of_ranks:
        return False
    groups = (c for c in scope.cases.values() if c.made_of_ranks and grouped(case, c, config))
    return any(_explains(scope, cause, group, config) for group in groups)


def _shows_why(scope: Scope, slow: Case, case: Case, config: FindingConfig) -> bool:
    """Return whether a case is what the hardware of a slow machine shows soon after this was found.

    Where another class of evidence has explained it before, the case is a fault of its own.
    """
    if not _shows_late(slow, case):
        return False
    families = _families(case)
    before = [c for c in scope.cases.values() if c.since < case.since and c.rule.standing in _DEFECTS]
    explained = (c for c in before if related(slow, c, config) or _shows_late(slow, c))
    return all(_families(c) & families for c in explained)


def _shows_late(slow: Case, case: Case) -> bool:
    """Return whether a case began while an open finding about a slow machine was new, on that very machine.

    What breaks or stops something is a fault of its own, whenever it began.
    """
    if slow.opened_at is None or slow.rule.pages != "machine" or case.rule.standing is not Standing.CAUSE:
        return False
    ended = math.inf if slow.cleared_at is None else slow.cleared_at
    until = min(max(slow.opened_at, slow.since) + LATE_SECONDS, ended)
    return slow.since <= case.since <= until and same_unit(slow, case)


def _families(case: Case) -> set[Family]:
    return {s.family for s in case.suspicions()}


def _graver_cause_of(case: Case, other: Case) -> bool:
    """Return whether a case causes another one of its standing, and is graver: it is news beside it, as a
    port that goes down after errors."""
    one, two = case.rule, other.rule
    graver = ORDER.index(one.severity) > ORDER.index(two.severity)
    return graver and one.standing is two.standing and case.kind in two.explained_by


def _flaps_with(port: Case, case: Case, config: FindingConfig) -> bool:
    """Return whether a port goes down again and again, and ``case`` is another sign of that: whichever opened
    first, and where both are about the one port, whenever they began."""
    if port.rule.pages != "repeated" or port.kind not in case.rule.explained_by:
        return False
    if isolated(port.kind, (s.severity for s in port.suspicions())):
        return False
    return related(port, case, config) or (_same_port(port, case) and port.active and case.active)


def _same_port(a: Case, b: Case) -> bool:
    one, two = a.subject, b.subject
    return one.type == two.type == "nic" and (one.node, one.nic, one.port) == (two.node, two.nic, two.port)


def _of_one_cause(cause: Case, case: Case, config: FindingConfig) -> bool:
    """Return whether two cases have one cause, or ``case`` is a trace of earlier raises."""
    if related(cause, case, config):
        return True
    if cause.rule.relapsing_as == case.kind:
        # It may have been slow for moments before: what was never reported is no finding of its own.
        began = cause.first_onset - config.agree_within_seconds
        return same_place(cause, case) and (case.since >= began or case.opened_at is None)
    explained = case.rule.trace and cause.kind in case.rule.explained_by
    if not explained or not same_place(cause, case):
        return False
    window = config.agree_within_seconds
    return cause.first_onset - window <= case.since <= cause.since + window
