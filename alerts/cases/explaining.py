"""Which case explains which: the finding of one shows the other as its evidence."""

from alerts.cases.case import Case
from alerts.cases.grouping import grouped
from alerts.cases.lifecycle import NOTIFIED
from alerts.cases.scope import Scope
from alerts.config import FindingConfig
from alerts.kinds import IDLE
from alerts.reasoning.corroborate import related, same_place


def leader_key(scope: Scope, case: Case, config: FindingConfig) -> str | None:
    """Return the dedup key of the open finding that explains this case, if there is one."""
    if scope.cases.get(case.key) is not case:
        return _leader(scope, case, config)
    # The window is the only setting that it depends on.
    key = case.key, config.agree_within_seconds
    if key not in scope.leaders:
        scope.leaders[key] = _leader(scope, case, config)
    return scope.leaders[key]


def supporting(scope: Scope, case: Case, config: FindingConfig) -> tuple[Case, ...]:
    """Return the cases whose evidence belongs to the finding of ``case``, in order of their keys."""
    if leader_key(scope, case, config) is not None:
        return ()
    standing = case.rule.standing
    return tuple(
        other
        for _, other in sorted(scope.cases.items())
        if (_of_one_cause(case, other, config) or (case.rule.hang and other.kind == IDLE))
        and not grouped(other, case, config)
        and (other.rule.standing > standing or leader_key(scope, other, config) == case.key)
    )


def waits_for_leader(scope: Scope, case: Case, config: FindingConfig) -> bool:
    """Return whether a case that would explain this one is held back: meanwhile this one opens no finding."""
    own = case.rule.standing
    held = (c for c in scope.cases.values() if c.status == "suspected" and c.ready_at is not None)
    worse = (c for c in held if c.rule.standing < own or grouped(case, c, config))
    return any(grouped(case, c, config) or related(c, case, config) for c in worse)


def traces(scope: Scope, case: Case, config: FindingConfig) -> list[Case]:
    """Return what an open finding's fault has left behind."""
    if case.status not in NOTIFIED:
        return []
    left = (c for c in scope.cases.values() if c.rule.trace)
    return [c for c in left if case.rule.standing < c.rule.standing and _of_one_cause(case, c, config)]


def _leader(scope: Scope, case: Case, config: FindingConfig) -> str | None:
    return min((c.key for c in scope.cases.values() if _leads(c, case, config)), default=None)


def _leads(leader: Case, case: Case, config: FindingConfig) -> bool:
    if leader.key == case.key or leader.status not in NOTIFIED:
        return False
    if grouped(case, leader, config):
        return True
    if grouped(leader, case, config) or not _of_one_cause(leader, case, config):
        return False
    above, own = leader.rule.standing, case.rule.standing
    # Of two open ones of the same standing, the one that opened first keeps leading.
    if above == own and case.status in NOTIFIED:
        return (leader.opened_at or 0.0, leader.key) < (case.opened_at or 0.0, case.key)
    return above <= own


def _of_one_cause(leader: Case, case: Case, config: FindingConfig) -> bool:
    """Return whether two cases have one cause, or ``case`` is a trace of earlier raises."""
    if related(leader, case, config):
        return True
    if leader.rule.relapsing_as == case.kind:
        began = leader.first_onset - config.agree_within_seconds
        return same_place(leader, case) and case.since >= began
    explained = case.rule.trace and leader.kind in case.rule.explained_by
    if not explained or not same_place(leader, case):
        return False
    window = config.agree_within_seconds
    return leader.first_onset - window <= case.since <= leader.since + window
