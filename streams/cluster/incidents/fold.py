"""Incidents: what the nodes of one rack, switch or rail show together is one finding about the domain.

When too many nodes fall silent together, that is one finding about the site or the telemetry
(``site_outage``).

A fold over a cluster's suspicions in order of event time, beside the folds of its single nodes. Cases that an
incident explains become its members; ``FindingStage`` shows them as such and does not notify them.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace

import msgspec

from alerts.cases import fold
from alerts.cases.case import Case, case_key
from alerts.cases.lifecycle import LIVE
from alerts.cases.update import update
from alerts.config import FindingConfig
from alerts.finding import dedup_key
from alerts.kinds import UNHEARD_KIND
from detectors.node.fault_domains import DomainCause
from slowrank.telemetry import NodeAnnounced, Suspicion
from streams.cluster.incidents import telemetry_outage
from streams.cluster.incidents.evidence import explanations
from streams.cluster.incidents.kinds import (
    EVERYWHERE,
    PATTERNS,
    SILENCE,
    Pattern,
    build_suspicion,
    pattern_of,
    subject_of,
    unit_of,
)
from streams.cluster.incidents.members import (
    Incidents,
    Membership,
    explained,
    is_everywhere,
    is_free,
    refreshed,
)
from streams.cluster.incidents.site_outage import judge_cluster, judge_site, release, silent_nodes
from streams.cluster.timeline import Fold, is_superseded


def apply(state: Incidents, batch: Iterable[Suspicion | NodeAnnounced], config: FindingConfig) -> Incidents:
    """Return the state after suspicions and announcements of one event time."""
    received = list(batch)
    announced = [s for s in received if isinstance(s, NodeAnnounced)]
    state = replace(state, layout=state.layout.update(announced))
    suspicions = [s for s in received if isinstance(s, Suspicion) and _concerns(state, s)]
    if state.members:
        suspicions += [suspicion for s in announced for suspicion in _reporting_again(state, s)]
    if not suspicions:
        return state
    members, ts = dict(state.members), suspicions[-1].ts
    for s in suspicions:
        case = update(members.get(case_key(s)), s, config)
        if case is not None:
            members[case.key] = case
    state = _joined(_pruned(replace(state, members=members), ts, config), ts, config)
    if any(s.kind in SILENCE for s in suspicions):
        state = judge_cluster(state, ts, config)
    state = refreshed(state)
    if state.judge_at is None and any(
        is_free(state, p, case) for p in PATTERNS for case in state.members.values()
    ):
        return replace(state, judge_at=ts + config.hold_seconds)
    return state


def _reporting_again(state: Incidents, announced: NodeAnnounced) -> list[Suspicion]:
    """End the silence of a node that is announced: a worker restarted meanwhile does not clear it."""
    case = state.members.get(dedup_key(announced.subject, UNHEARD_KIND))
    if case is None or not case.active or case.last_seen_at >= announced.ts:
        return []
    return [msgspec.structs.replace(s, state="clear", ts=announced.ts) for s in case.suspicions()]


def _concerns(state: Incidents, s: Suspicion) -> bool:
    """Return whether a suspicion is evidence here; in an outage only a node's first sign of silence is."""
    node, layout = s.subject.node, state.layout
    if s.kind in SILENCE:
        membership = state.memberships.get(dedup_key(s.subject, UNHEARD_KIND))
        known = s.kind == UNHEARD_KIND or case_key(s) in state.members
        return node in layout.known and (known or membership is None or not is_everywhere(state, membership))
    return any(p.explains(s.kind) for p in PATTERNS) and node in layout.nodes


def advance(
    state: Incidents, until: float, config: FindingConfig, *, inclusive: bool
) -> Iterator[tuple[float, Incidents]]:
    """Yield time and state after each deadline before ``until`` (or at it, when inclusive)."""
    while (due := next_deadline(state, config)) is not None:
        at = due[0]
        if at > until or (at == until and not inclusive):
            return
        if state.release_at == at:
            state = release(replace(state, release_at=None), at, config)
        elif state.judge_at == at:
            state = _judge(replace(state, judge_at=None), at, config)
        elif state.site_at == at:
            state = judge_site(replace(state, site_at=None), at, config)
        else:
            state = _ended(state, at, config)
        yield at, state


def next_deadline(state: Incidents, config: FindingConfig) -> tuple[float, str] | None:
    """Return when something is due without a further suspicion: a judgement, a release, an incident's end."""
    due = fold.next_deadline(state.scope, config)
    own = [(at, "") for at in (state.release_at, state.judge_at, state.site_at) if at is not None]
    return min([*own, due] if due is not None else own, default=None)


def _ended(state: Incidents, at: float, config: FindingConfig) -> Incidents:
    *_, (_, scope) = ((at, state.scope), *fold.advance(state.scope, at, config, inclusive=True))
    memberships = {key: c for key, c in state.memberships.items() if c.incident in scope.cases}
    return replace(state, scope=scope, memberships=memberships)


def _is_stale(state: Incidents, s: Suspicion | NodeAnnounced) -> bool:
    if isinstance(s, Suspicion):
        return is_superseded(state.members.get(case_key(s)), s)
    known = state.layout.known.get(s.node)
    return known is not None and known.announced_at >= s.ts


def _is_empty(state: Incidents) -> bool:
    return not (state.scope.cases or state.members or state.layout.known)


INCIDENTS = Fold(
    start=Incidents(),
    apply=apply,
    advance=advance,
    next_deadline=next_deadline,
    is_stale=_is_stale,
    is_empty=_is_empty,
)


def _judge(state: Incidents, ts: float, config: FindingConfig) -> Incidents:
    # In this order: cases that a silent domain explains are no evidence for the patterns after it.
    for pattern in PATTERNS:
        # Chosen: two may fail together by chance in a large cluster.
        least = 3
        if pattern.rule.evidence == SILENCE:
            silent = silent_nodes(state, ts, config)
            if telemetry_outage.scale_of(silent, state.layout) != "domains":
                continue
            # In a small cluster two are more than fail by chance, if they are all nodes of a rack or switch.
            least = 2 if len(silent) > config.mass_fraction * state.layout.expected else 3
        free = [c for _, c in sorted(state.members.items()) if is_free(state, pattern, c)]
        fresh = [c for c in free if c.fresh_at(ts, config) and c.subject.node in state.layout.nodes]
        for found in explanations(fresh, pattern, state.layout, least=least):
            state = _opened(state, pattern, found, ts)
            state = _joined(state, ts, config)
    return refreshed(state)


def _pruned(state: Incidents, ts: float, config: FindingConfig) -> Incidents:
    """Drop cases without an incident and without fresh evidence, and members that relapsed after it ended."""
    memberships = {}
    for key, membership in state.memberships.items():
        incident, member = state.scope.cases[membership.incident], state.members[key]
        relapsed = incident.ended_at is not None and member.active and member.since > incident.ended_at
        if not relapsed:
            memberships[key] = membership
    kept = {k: c for k, c in state.members.items() if k in memberships or c.fresh_at(ts, config)}
    return replace(state, members=kept, memberships=memberships)


def _joined(state: Incidents, ts: float, config: FindingConfig) -> Incidents:
    """Add to live incidents the other cases of their members, and nodes that follow within the window."""
    memberships = dict(state.memberships)
    live = [(c, _window(state, c)) for _, c in sorted(state.scope.cases.items()) if c.status in LIVE]
    for key, case in state.members.items():
        if key in memberships or not case.active:
            continue
        for incident, window in live:
            if _belongs(state, case, incident, window, config):
                memberships[key] = Membership(incident.key, ts)
                break
    return replace(state, memberships=memberships)


def _window(state: Incidents, incident: Case) -> tuple[float, float]:
    """Return the range of onsets of a case that belongs to the incident: its members' and the window."""
    pattern = pattern_of(incident)
    onsets = [
        state.members[key].since
        for key, membership in state.memberships.items()
        if membership.incident == incident.key and state.members[key].kind in pattern.rule.evidence
    ]
    return incident.since - pattern.rule.within_seconds, max(
        onsets, default=incident.since
    ) + pattern.rule.within_seconds


def _belongs(
    state: Incidents, case: Case, incident: Case, window: tuple[float, float], config: FindingConfig
) -> bool:
    pattern = pattern_of(incident)
    if not pattern.explains(case.kind) or not pattern.holds(state.layout, incident.subject, case.subject):
        return False
    if case.kind in pattern.rule.evidence:
        # A node that is still silent when the others are back is no part of an outage any more.
        ongoing = incident.active or incident.subject.type not in EVERYWHERE
        return ongoing and window[0] <= case.since <= window[1]
    return incident.active and case.since >= incident.since - config.agree_within_seconds


def _opened(state: Incidents, pattern: Pattern, found: DomainCause, ts: float) -> Incidents:
    units = {s.name for s in found.explained}
    mine = [
        case
        for _, case in sorted(state.members.items())
        if is_free(state, pattern, case) and unit_of(pattern, case) in units
    ]
    subject = subject_of(found.domain, mine[0].subject.cluster)
    return explained(state, build_suspicion(pattern, subject, found, ts), mine)
