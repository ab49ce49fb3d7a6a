"""Incidents: what the nodes of one rack, switch or rail show together is one finding about the domain.

When too many nodes fall silent together, that is one finding about the site or the telemetry
(``telemetry_outage``).

A fold over a cluster's suspicions in order of event time, beside the folds of its single nodes. Cases that an
incident explains become its members; ``FindingStage`` shows them as such and does not notify them.
"""

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import msgspec

from alerts.cases import fold
from alerts.cases.case import Case, case_key
from alerts.cases.lifecycle import LIVE, NOTIFIED
from alerts.cases.scope import Scope
from alerts.cases.update import update
from alerts.config import FindingConfig
from alerts.finding import Status, dedup_key
from alerts.kinds import UNHEARD_KIND
from detectors.node.fault_domains import Explanation
from slowrank.telemetry import NodeAnnounced, Suspicion
from streams.cluster import telemetry_outage
from streams.cluster.incident_cases import made, opened, revived, summed, superseded, suspected
from streams.cluster.incident_evidence import explanations
from streams.cluster.incident_kinds import (
    EVERYWHERE,
    OUTAGE,
    PATTERNS,
    SILENCE,
    Pattern,
    build_suspicion,
    pattern_of,
    subject_of,
    unit_of,
)
from streams.cluster.inventory import Layout
from streams.cluster.timeline import Fold, is_superseded
from streams.silence import SilenceConfig, silent_after

_STALE = SilenceConfig().stale
"""Seconds of silence of one node, of several that fell silent together, after which they are a finding (the
``stale`` time of single nodes)."""


@dataclass(frozen=True, slots=True)
class Membership:
    """The dedup key of the incident that explains a case, and since when (event time)."""

    incident: str
    since: float


@dataclass(frozen=True, slots=True)
class Incidents:
    """The incidents of a cluster as cases (``scope``), the cases of its nodes, and which belongs to which.

    ``members``: cases that incidents explain, or may explain yet. ``memberships``: by case key. Event times:
    ``judge_at``: when evidence that no incident explains is judged; until then more may come.
    ``release_at``: when nodes that stayed silent after an outage of the telemetry become cases of their own.
    ``site_at``: when a site that is silent as a whole has been so for longer than a pause.
    """

    scope: Scope = field(default_factory=Scope)
    members: Mapping[str, Case] = field(default_factory=dict)
    memberships: Mapping[str, Membership] = field(default_factory=dict)
    judge_at: float | None = None
    release_at: float | None = None
    site_at: float | None = None
    layout: Layout = field(default_factory=Layout)


def apply(state: Incidents, batch: Iterable[Suspicion | NodeAnnounced], config: FindingConfig) -> Incidents:
    """Return the state after suspicions and announcements of one event time."""
    received = list(batch)
    announced = [s for s in received if isinstance(s, NodeAnnounced)]
    state = replace(state, layout=state.layout.update(announced))
    suspicions = [s for s in received if isinstance(s, Suspicion) and _concerns(state, s)]
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
        state = _weighed_as_whole(state, ts, config)
    state = _refreshed(state)
    if state.judge_at is None and any(
        _is_free(state, p, case) for p in PATTERNS for case in state.members.values()
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
            state = _released(replace(state, release_at=None), at, config)
        elif state.judge_at == at:
            state = _judge(replace(state, judge_at=None), at, config)
        elif state.site_at == at:
            state = _site_judged(replace(state, site_at=None), at, config)
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
            silent = _silent(state, ts, config)
            if telemetry_outage.scale_of(silent, state.layout) != "domains":
                continue
            # In a small cluster two are more than fail by chance, if they are all nodes of a rack or switch.
            least = 2 if len(silent) > config.mass_fraction * state.layout.expected else 3
        free = [c for _, c in sorted(state.members.items()) if _is_free(state, pattern, c)]
        fresh = [c for c in free if c.fresh_at(ts, config) and c.subject.node in state.layout.nodes]
        for found in explanations(fresh, pattern, state.layout, least=least):
            state = _opened(state, pattern, found, ts)
            state = _joined(state, ts, config)
    return _refreshed(state)


def _silent(state: Incidents, ts: float, config: FindingConfig) -> dict[str, float]:
    """Return since when each node is silent that no incident explains."""
    found: dict[str, float] = {}
    for case in state.members.values():
        if _is_free(state, OUTAGE, case) and case.fresh_at(ts, config):
            node = case.subject.node or ""
            found[node] = min(case.since, found.get(node, case.since))
    return found


def _weighed_as_whole(state: Incidents, ts: float, config: FindingConfig) -> Incidents:
    """Make nodes that fell silent together members of a site or telemetry outage, once one is stale."""
    site = _site(state)
    if site:
        mine = [c for c in _silences_of(state, site) if _is_free(state, OUTAGE, c)]
        if _any_stale(mine, ts):
            state = _suspected(
                state, telemetry_outage.site_lost(mine[0].subject.cluster, site, state.layout, ts), mine
            )
        if state.site_at is None and any(not _at_site(state, c) for c in _silences_of(state, site)):
            state = replace(state, site_at=max(ts, _lasts_at(state, site)))
        return _with_release(state, ts, config)
    silent = _silent(state, ts, config)
    gone = {node: silent[node] for node in telemetry_outage.together(silent, state.layout, config)}
    mine = [c for c in _silences_of(state, gone) if _is_free(state, OUTAGE, c)]
    if _any_stale(mine, ts):
        suspicion = telemetry_outage.telemetry_lost(mine[0].subject.cluster, gone, state.layout, ts)
        state = _explained(state, suspicion, mine)
    return _with_release(state, ts, config)


def _site(state: Incidents) -> dict[str, float]:
    """Return since when each node is silent, if they fell silent together and are the site; else nothing."""
    unheard = [c for c in state.members.values() if c.kind == UNHEARD_KIND and c.active]
    everyone = {c.subject.node or "": c.since for c in unheard}
    burst = {node: everyone[node] for node in telemetry_outage.at_once(everyone)}
    most = len(burst) > state.layout.expected / 2
    return burst if most and telemetry_outage.scale_of(burst, state.layout) == "site" else {}


def _lasts_at(state: Incidents, nodes: Container[str]) -> float:
    """Return when the first of the nodes has been silent for as long as ``node.silent`` requires."""
    return min(
        s.onset + silent_after(s.ts - s.onset)
        for case in _silences_of(state, nodes)
        if case.kind == UNHEARD_KIND
        for s in case.suspicions()
    )


def _silences_of(state: Incidents, nodes: Container[str]) -> list[Case]:
    return [c for _, c in sorted(state.members.items()) if c.kind in SILENCE and c.subject.node in nodes]


def _any_stale(cases: Iterable[Case], ts: float) -> bool:
    return any(c.active and (c.kind != UNHEARD_KIND or ts >= c.since + _STALE) for c in cases)


def _suspected(state: Incidents, suspicion: Suspicion, mine: list[Case]) -> Incidents:
    """Return the state with a site that is suspected, unless it is open: its silence may be a pause."""
    key = dedup_key(suspicion.subject, suspicion.kind)
    before = state.scope.cases.get(key)
    state = _explained(state, suspicion, mine)
    if before is not None and before.status in NOTIFIED:
        return state
    waiting = suspected(before, state.scope.cases[key], suspicion)
    at = _lasts_at(state, {c.subject.node or "" for c in mine})
    return replace(state, scope=Scope({**state.scope.cases, key: waiting}), site_at=max(suspicion.ts, at))


def _site_judged(state: Incidents, ts: float, config: FindingConfig) -> Incidents:
    """Open the incident of a site that is still silent; else judge the nodes that did not come back anew."""
    site = _site(state)
    if not site:
        free = {case.key for case in _left_silent(state) if _at_site(state, case, "suspected")}
        return _refreshed(_weighed_as_whole(_freed(state, free, ts, config), ts, config)) if free else state
    lasts_at = _lasts_at(state, site)
    if lasts_at > ts:
        # A pause is over, and another one has begun.
        return replace(state, site_at=lasts_at)
    mine = _silences_of(state, site)
    suspicion = telemetry_outage.site_lost(mine[0].subject.cluster, site, state.layout, ts)
    key = dedup_key(suspicion.subject, suspicion.kind)
    before = state.scope.cases.get(key)
    state = _explained(state, suspicion, mine)
    if before is not None and before.status == "suspected":
        case = opened(before, suspicion)
        state = replace(state, scope=Scope({**state.scope.cases, key: case}))
    return _refreshed(_with_release(_without_members(state, ts), ts, config))


def _at_site(state: Incidents, case: Case, status: Status | None = None) -> bool:
    """Return whether a case is claimed by the site, of such a status where one is given."""
    membership = state.memberships.get(case.key)
    incident = None if membership is None else state.scope.cases[membership.incident]
    return incident is not None and incident.subject.type == "site" and status in (None, incident.status)


def _without_members(state: Incidents, ts: float) -> Incidents:
    """End the incidents of which a larger one has claimed all members."""
    held = {membership.incident for membership in state.memberships.values()}
    over = {
        key: superseded(case, ts)
        for key, case in state.scope.cases.items()
        if key not in held and case.status in LIVE
    }
    return replace(state, scope=Scope({**state.scope.cases, **over}))


def _left_silent(state: Incidents) -> list[Case]:
    """Return the cases of the nodes that an outage explains and that are not back."""
    return [case for case in _members_everywhere(state) if case.active]


def _members_everywhere(state: Incidents) -> list[Case]:
    return [
        state.members[key]
        for key, membership in state.memberships.items()
        if is_everywhere(state, membership)
    ]


def _with_release(state: Incidents, ts: float, config: FindingConfig) -> Incidents:
    """Plan, or cancel, that nodes which stay silent after an outage become cases of their own."""
    left = {case.subject.node for case in _left_silent(state)}
    none_back = left == {case.subject.node for case in _members_everywhere(state)}
    if not left or none_back or telemetry_outage.is_many(len(left), state.layout.expected, config):
        return replace(state, release_at=None)
    at = ts + OUTAGE.rule.within_seconds if state.release_at is None else state.release_at
    return replace(state, release_at=at)


def _released(state: Incidents, ts: float, config: FindingConfig) -> Incidents:
    return _freed(state, {case.key for case in _left_silent(state)}, ts, config)


def _freed(state: Incidents, free: Container[str], ts: float, config: FindingConfig) -> Incidents:
    memberships = {key: membership for key, membership in state.memberships.items() if key not in free}
    return replace(_refreshed(replace(state, memberships=memberships)), judge_at=ts + config.hold_seconds)


def is_everywhere(state: Incidents, membership: Membership) -> bool:
    """Return whether a case is claimed by an incident about nodes wherever they stand."""
    return state.scope.cases[membership.incident].subject.type in EVERYWHERE


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


def _is_free(state: Incidents, pattern: Pattern, case: Case) -> bool:
    return case.kind in pattern.rule.evidence and case.key not in state.memberships


def _opened(state: Incidents, pattern: Pattern, found: Explanation, ts: float) -> Incidents:
    explained = {s.name for s in found.explained}
    mine = [
        case
        for _, case in sorted(state.members.items())
        if _is_free(state, pattern, case) and unit_of(pattern, case) in explained
    ]
    subject = subject_of(found.domain, mine[0].subject.cluster)
    return _explained(state, build_suspicion(pattern, subject, found, ts), mine)


def _explained(state: Incidents, suspicion: Suspicion, mine: list[Case]) -> Incidents:
    """Return the state with the incident of ``suspicion``, and ``mine`` as its members."""
    key = dedup_key(suspicion.subject, suspicion.kind)
    case = revived(state.scope.cases.get(key), suspicion) or made(key, suspicion)
    memberships = {**state.memberships, **{m.key: Membership(key, suspicion.ts) for m in mine}}
    return replace(state, scope=Scope({**state.scope.cases, key: case}), memberships=memberships)


def _refreshed(state: Incidents) -> Incidents:
    """Bring the incidents up to date with their members' cases."""
    mine: dict[str, list[Case]] = {}
    for key, membership in sorted(state.memberships.items()):
        mine.setdefault(membership.incident, []).append(state.members[key])
    cases = dict(state.scope.cases)
    for key, members in mine.items():
        if cases[key].status in LIVE:
            cases[key] = summed(cases[key], members)
    return replace(state, scope=Scope(cases))
