"""A scope: all cases of one node, or of one job, and how they open, absorb one another and end.

A scope is a pure function of the suspicions in it, taken in order of event time: the same set gives the same
findings, however often and in whatever order it was delivered. ``streams.finding_stage`` keeps that order.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from alerts.account import accounted, moved, next_version
from alerts.case import IDLE, OF_JOB, Case, case_key, hear, silenced
from alerts.config import FindingConfig
from alerts.corroborate import (
    at_work_from,
    certain,
    corroborated,
    moot,
    over,
    planned,
    related,
    released,
    same_place,
)
from alerts.grouping import grouped, held_for_others, members_of, with_groups
from alerts.kinds import rule_of
from alerts.lifecycle import NOTIFIED, Event, transition
from alerts.tensor_group import shared
from slowrank.telemetry import Suspicion

_HELD = ("link.nic_", "node.silent", "exporter.stale")
"""Beginnings of the kinds that all nodes of a domain show within a second."""

_FOLLOWING = ("ecc.row_remap_pending",)
"""Kinds that a counter shows, of what the kernel log tells more gravely a moment before or after."""

_FLAPPING = ("straggler.fail_slow", "straggler.intermittent")
"""Whoever recovers and relapses is said to be slow on and off as well, whichever relapse is the latest."""

MAX_CASES = 256
"""Of one scope: each is weighed against all others, and what names them comes from outside. Of more, those
that ended first make room, and, for what opens by itself, a suspected one; else new ones are left out."""


@dataclass(frozen=True, slots=True)
class Scope:
    """The cases by dedup key."""

    cases: Mapping[str, Case] = field(default_factory=dict)


def scope_key(s: Suspicion) -> str:
    """Return what the suspicion's cause may share with others: its job, node or ranks, else only itself."""
    subject = s.subject
    if subject.type == "job" or s.kind in OF_JOB:
        return f"{s.cluster}/job/{subject.job_id}"
    if subject.node:
        return f"{s.cluster}/node/{subject.node}"
    if subject.rank is None:
        return case_key(s)
    if subject.coords and "tp" in subject.coords:
        return f"{s.cluster}/group/{subject.job_id}/{shared(subject)}"
    return f"{s.cluster}/rank/{subject.job_id}/{subject.rank}"


def apply(scope: Scope, batch: Iterable[Suspicion], config: FindingConfig) -> Scope:
    """Return the scope after suspicions of one event time."""
    cases, ts = dict(scope.cases), 0.0
    for s in batch:
        ts = s.ts
        if s.state != "clear" and case_key(s) in cases and moot(cases[case_key(s)], s, cases.values()):
            continue
        heard = hear(cases.get(case_key(s)), s, config)
        if heard is None:
            continue
        if heard.key not in cases and len(cases) >= MAX_CASES:
            _forget_one(cases, s)
        if heard.key in cases or len(cases) < MAX_CASES:
            cases[heard.key] = heard
    return _settle(Scope(cases), ts, config)


def _forget_one(cases: dict[str, Case], s: Suspicion) -> None:
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
        # What sets a deadline may come after it: then it falls due at once, for time does not go back.
        at = max(due[0], reached)
        if at > until or (at == until and not inclusive):
            return
        reached, scope = at, _settle(_expire(scope, due[1], at, config), at, config)
        yield reached, scope


def next_deadline(scope: Scope, config: FindingConfig, until: float = -math.inf) -> tuple[float, str] | None:
    """Return when (event time) and for which case silence alone will change something.

    Of the times up to ``until`` at which nothing but a cost is told anew, only the last counts.
    """
    due = ((min(_deadline(scope, c, config), next_version(c, until)), c.key) for c in scope.cases.values())
    return min(due, default=None)


def group_key(scope: Scope, case: Case, config: FindingConfig) -> str | None:
    """Return the dedup key of the open finding that tells this case's story, if another one does."""
    leaders = [other.key for other in scope.cases.values() if _leads(other, case, config)]
    return min(leaders, default=None)


def supporting(scope: Scope, case: Case, config: FindingConfig) -> tuple[Case, ...]:
    """Return the cases whose evidence belongs to the finding of ``case``, in order of their keys."""
    if group_key(scope, case, config) is not None:
        return ()
    standing = rule_of(case.kind).standing
    return tuple(
        other
        for _, other in sorted(scope.cases.items())
        if (_of_one_cause(case, other, config) or (case.kind, other.kind) == ("hang.job", IDLE))
        and not grouped(other, case, config)
        and (rule_of(other.kind).standing > standing or group_key(scope, other, config) == case.key)
    )


def _settle(scope: Scope, ts: float, config: FindingConfig) -> Scope:
    scope = _follow_plans(Scope(with_groups(scope.cases, ts, config)), config)
    # The graver first: once one has opened, what it explains finds its story told.
    for key in sorted(scope.cases, key=lambda k: _precedence(scope.cases[k])):
        case = _told_again(scope, scope.cases[key], ts, config)
        if case.status != "suspected":
            continue
        ready = case.fresh_at(ts, config) and _sufficient(scope, case, config)
        if not ready or group_key(scope, case, config) is not None or _waits(scope, case, config):
            if case.ready_at is not None:
                scope = _with(scope, replace(case, ready_at=None))
            continue
        case = replace(case, ready_at=ts if case.ready_at is None else case.ready_at)
        scope = _with(scope, _open(case, ts) if ts >= _held_to(scope, case, config) else case)
    return _absorb(_charge_leaders(_follow_hangs(scope, ts), config), ts, config)


def _told_again(scope: Scope, case: Case, ts: float, config: FindingConfig) -> Case:
    """Return a case that was absorbed as a suspected one, once what absorbed it tells its story no more."""
    absorbed = case.kind in _FOLLOWING and not case.live and case.fresh_at(ts, config)
    if not absorbed or group_key(scope, case, config) is not None:
        return case
    return replace(case, status=transition(case.status, "raised_again"), ended_at=None)


def _follow_plans(scope: Scope, config: FindingConfig) -> Scope:
    for case in [c for c in scope.cases.values() if planned(c, scope.cases.values(), config)]:
        # For good: the next change is another one.
        scope = _with(scope, replace(case, by_plan=True))
    return scope


def _follow_hangs(scope: Scope, ts: float) -> Scope:
    others = scope.cases.values()
    for case in [c for c in others if c.stalled]:
        until = ts if released(case, others) else at_work_from(case, others)
        if until <= ts:
            scope = _with(scope, moved(case, until))
    for case in [c for c in scope.cases.values() if c.kind == "hang.job" and c.status in NOTIFIED]:
        if over(case, scope.cases.values()):
            scope = _with(scope, silenced(case, ts))
        elif certain(case, scope.cases.values()):
            scope = _with(scope, replace(case, certain=True))
    return scope


def _charge_leaders(scope: Scope, config: FindingConfig) -> Scope:
    """Put what a case has cost on the account of the case that leads it: each hour is on one only."""
    for key in sorted(key for key, case in scope.cases.items() if case.lost or case.led_by):
        case = scope.cases[key]
        leader = group_key(scope, case, config)
        if leader is not None:
            lead = scope.cases[leader]
            scope = _with(scope, replace(lead, lost=lead.lost + case.lost))
            scope = _with(scope, replace(case, lost=0.0, led_by=leader))
        elif case.led_by is not None and case.status in NOTIFIED:
            scope = _with(scope, replace(case, led_by=None))
    return scope


def _held_to(scope: Scope, case: Case, config: FindingConfig) -> float:
    """Return when a case that may open does: at once, unless it may be one of many of its group, node, rack
    or switch, or part of something worse.
    """
    if case.ready_at is None:
        return math.inf
    if held_for_others(case, scope.cases, config):
        # Ranks that are equally slow cross the threshold at different steps: the more, the longer it took.
        taken = config.node_hold_share * (case.ready_at - case.since)
        return case.ready_at + min(max(taken, 0.0), config.node_hold_seconds)
    placed = case.subject.rack is not None or case.subject.switch is not None
    held = (placed and case.kind.startswith(_HELD)) or case.kind in _FOLLOWING
    return case.ready_at + (config.hold_seconds if held else 0.0)


def _precedence(case: Case) -> tuple[int, int, str]:
    of_others = case.made_of_ranks or case.leads_mates
    narrow = 2 if not of_others else 1 if case.subject.type != "node" else 0
    return (rule_of(case.kind).standing, narrow, case.key)


def _sufficient(scope: Scope, case: Case, config: FindingConfig) -> bool:
    others = scope.cases.values()
    within = members_of(case, scope.cases, config)
    return corroborated(case, others, config) or any(corroborated(m, others, config) for m in within)


def _open(case: Case, ts: float) -> Case:
    again = case.opened_at is not None
    return replace(
        accounted(case, ts),
        status=transition(case.status, "corroborated"),
        ready_at=None,
        opened_at=case.opened_at if again else ts,
        occurrences=case.occurrences + again,
    )


def _absorb(scope: Scope, ts: float, config: FindingConfig) -> Scope:
    for case in tuple(scope.cases.values()):
        if case.kind in _FOLLOWING and case.status in NOTIFIED and group_key(scope, case, config) is not None:
            scope = _with(scope, replace(case, status=transition(case.status, "absorbed"), ended_at=ts))
    for group in tuple(scope.cases.values()):
        if group.status not in NOTIFIED:
            continue
        for member in tuple(scope.cases.values()):
            if member.status in NOTIFIED and grouped(member, group, config):
                status = transition(member.status, "absorbed")
                scope = _with(scope, replace(member, status=status, ended_at=ts))
    return scope


def _leads(leader: Case, case: Case, config: FindingConfig) -> bool:
    if leader.key == case.key or leader.status not in NOTIFIED:
        return False
    if grouped(case, leader, config):
        return True
    if grouped(leader, case, config) or not _of_one_cause(leader, case, config):
        return False
    above, own = rule_of(leader.kind).standing, rule_of(case.kind).standing
    # Of two that are open and stand alike, the one that opened first goes on telling the story.
    if above == own and case.status in NOTIFIED:
        return (leader.opened_at or 0.0, leader.key) < (case.opened_at or 0.0, case.key)
    return above <= own


def _of_one_cause(leader: Case, case: Case, config: FindingConfig) -> bool:
    """Return whether two cases tell of one cause, or ``case`` is what earlier raises left behind."""
    if related(leader, case, config):
        return True
    if (leader.kind, case.kind) == _FLAPPING:
        began = leader.first_onset - config.agree_within_seconds
        return same_place(leader, case) and case.since >= began
    explained = case.kind in _FOLLOWING and leader.kind in rule_of(case.kind).explained_by
    if not explained or not same_place(leader, case):
        return False
    window = config.agree_within_seconds
    return leader.first_onset - window <= case.since <= leader.since + window


def _waits(scope: Scope, case: Case, config: FindingConfig) -> bool:
    """Return whether what tells this case's story is held back: it is no finding of its own meanwhile."""
    own = rule_of(case.kind).standing
    held = (c for c in scope.cases.values() if c.status == "suspected" and c.ready_at is not None)
    worse = (c for c in held if rule_of(c.kind).standing < own or grouped(case, c, config))
    return any(grouped(case, c, config) or related(c, case, config) for c in worse)


def _deadline(scope: Scope, case: Case, config: FindingConfig) -> float:
    if not case.live:
        return max(case.ended_at or 0.0, case.last_seen_at) + config.reopen_within_seconds
    traces = _traces(scope, case, config)
    if any(trace.active for trace in traces):
        # Until it is repaired it may show no other way.
        return max(c.last_seen_at for c in (case, *traces)) + config.open_expires_after_seconds
    if case.cleared_at is not None:
        return max(c.cleared_at or 0.0 for c in (case, *traces)) + config.resolve_after_seconds
    if case.status == "suspected" and group_key(scope, case, config) is None:
        return min(case.last_seen_at + config.suspected_expires_after_seconds, _held_to(scope, case, config))
    return case.last_seen_at + config.open_expires_after_seconds


def _traces(scope: Scope, case: Case, config: FindingConfig) -> list[Case]:
    """Return what an open finding's fault has left behind."""
    if case.status not in NOTIFIED:
        return []
    left = (c for c in scope.cases.values() if c.kind in _FOLLOWING)
    return [
        c
        for c in left
        if rule_of(case.kind).standing < rule_of(c.kind).standing and _of_one_cause(case, c, config)
    ]


def _expire(scope: Scope, key: str, at: float, config: FindingConfig) -> Scope:
    case = scope.cases[key]
    case = accounted(case, min(at, at_work_from(case, scope.cases.values())))
    if at < _deadline(scope, case, config):
        return _with(scope, case)
    if not case.live:
        return Scope({k: c for k, c in scope.cases.items() if k != key})
    # What is due is the end of its hold: it opens when the scope is settled.
    if case.status == "suspected" and at >= _held_to(scope, case, config):
        return scope
    event: Event = "recovered" if case.cleared_at is not None else "expired"
    return _with(scope, replace(silenced(case, at), status=transition(case.status, event), ended_at=at))


def _with(scope: Scope, case: Case) -> Scope:
    return Scope({**scope.cases, case.key: case})
