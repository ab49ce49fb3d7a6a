"""Incidents: what the nodes of one rack, switch or rail show together is one finding about the domain.

When too many nodes fall silent together, that is one finding about the site or the telemetry (``outage``).

A fold over a cluster's suspicions in order of event time, beside the folds of its single nodes. It claims the
cases that an incident explains; ``finding_stage`` shows those as its members, not as findings of their own.
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
"""Seconds of silence after which one of many nodes makes them a finding."""


@dataclass(frozen=True, slots=True)
class Claim:
    """Which incident explains a case, and since when (event time)."""

    incident: str
    at: float


@dataclass(frozen=True, slots=True)
class Incidents:
    """The incidents of a cluster as cases (``scope``), what was heard of its nodes, and who explains whom.

    ``judge_at``: when evidence that no incident explains yet will be weighed; until then more may come.
    ``release_at``: when the nodes that an outage of the telemetry left silent will be cases of their own.
    ``site_at``: when the site, of which all is silent, will have been so for too long for a pause.
    """

    scope: Scope = field(default_factory=Scope)
    members: Mapping[str, Case] = field(default_factory=dict)
    claims: Mapping[str, Claim] = field(default_factory=dict)
    judge_at: float | None = None
    release_at: float | None = None
    site_at: float | None = None
    layout: Layout = field(default_factory=Layout)


def apply(state: Incidents, batch: Iterable[Suspicion | NodeAnnounced], config: FindingConfig) -> Incidents:
    """Return the state after suspicions and announcements of one event time."""
    received = list(batch)
    announced = [s for s in received if isinstance(s, NodeAnnounced)]
    state = replace(state, layout=state.layout.update(announced))
    words = [s for s in received if isinstance(s, Suspicion) and _concerns(state, s)]
    words += [word for s in announced for word in _heard_again(state, s)]
    if not words:
        return state
    members, ts = dict(state.members), words[-1].ts
    for s in words:
        case = update(members.get(case_key(s)), s, config)
        if case is not None:
            members[case.key] = case
    state = _joined(_pruned(replace(state, members=members), ts, config), ts, config)
    if any(s.kind in SILENCE for s in words):
        state = _weighed_as_whole(state, ts, config)
    state = _refreshed(state)
    if state.judge_at is None and any(
        _is_free(state, p, case) for p in PATTERNS for case in state.members.values()
    ):
        return replace(state, judge_at=ts + config.hold_seconds)
    return state


def _heard_again(state: Incidents, announced: NodeAnnounced) -> list[Suspicion]:
    """End the silence of a node that is announced: a worker that was restarted meanwhile knows of none."""
    case = state.members.get(dedup_key(announced.subject, UNHEARD_KIND))
    if case is None or not case.active or case.last_seen_at >= announced.ts:
        return []
    return [msgspec.structs.replace(s, state="clear", ts=announced.ts) for s in case.suspicions()]


def _concerns(state: Incidents, s: Suspicion) -> bool:
    """Return whether a suspicion is evidence here. During an outage that a node is unheard of says enough."""
    node, layout = s.subject.node, state.layout
    if s.kind in SILENCE:
        claim = state.claims.get(dedup_key(s.subject, UNHEARD_KIND))
        known = s.kind == UNHEARD_KIND or case_key(s) in state.members
        return node in layout.known and (known or claim is None or not is_everywhere(state, claim))
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
    claims = {key: c for key, c in state.claims.items() if c.incident in scope.cases}
    return replace(state, scope=scope, claims=claims)


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
    # In this order: what a domain that fell silent explains is no evidence for the patterns after it.
    for pattern in PATTERNS:
        least = 3
        if pattern.rule.evidence == SILENCE:
            silent = _silent(state, ts, config)
            if telemetry_outage.scale_of(silent, state.layout) != "places":
                continue
            # Of a small cluster two are more than nodes fail by chance, if they are all of a place.
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
    """Let the site, or an outage of the telemetry, claim what fell silent together, once a node is stale."""
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
        word = telemetry_outage.telemetry_lost(mine[0].subject.cluster, gone, state.layout, ts)
        state = _explained(state, word, mine)
    return _with_release(state, ts, config)


def _site(state: Incidents) -> dict[str, float]:
    """Return since when each node is silent, if they fell silent together and are the site; else nothing."""
    unheard = [c for c in state.members.values() if c.kind == UNHEARD_KIND and c.active]
    everyone = {c.subject.node or "": c.since for c in unheard}
    burst = {node: everyone[node] for node in telemetry_outage.at_once(everyone)}
    most = len(burst) > state.layout.expected / 2
    return burst if most and telemetry_outage.scale_of(burst, state.layout) == "site" else {}


def _lasts_at(state: Incidents, nodes: Container[str]) -> float:
    """Return when the first of the nodes that are unheard of is silent, as ``node.silent`` has it."""
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


def _suspected(state: Incidents, word: Suspicion, mine: list[Case]) -> Incidents:
    """Return the state with a site that is suspected, unless it is open: its silence may be a pause."""
    key = dedup_key(word.subject, word.kind)
    before = state.scope.cases.get(key)
    state = _explained(state, word, mine)
    if before is not None and before.status in NOTIFIED:
        return state
    waiting = suspected(before, state.scope.cases[key], word)
    at = _lasts_at(state, {c.subject.node or "" for c in mine})
    return replace(state, scope=Scope({**state.scope.cases, key: waiting}), site_at=max(word.ts, at))


def _site_judged(state: Incidents, ts: float, config: FindingConfig) -> Incidents:
    """Open the site if it is silent still, with all that is; else weigh anew what did not come back."""
    site = _site(state)
    if not site:
        free = {case.key for case in _left_silent(state) if _at_site(state, case, "suspected")}
        return _refreshed(_weighed_as_whole(_freed(state, free, ts, config), ts, config)) if free else state
    lasts_at = _lasts_at(state, site)
    if lasts_at > ts:
        # A pause is over, and another one has begun.
        return replace(state, site_at=lasts_at)
    mine = _silences_of(state, site)
    word = telemetry_outage.site_lost(mine[0].subject.cluster, site, state.layout, ts)
    key = dedup_key(word.subject, word.kind)
    before = state.scope.cases.get(key)
    state = _explained(state, word, mine)
    if before is not None and before.status == "suspected":
        case = opened(before, word)
        state = replace(state, scope=Scope({**state.scope.cases, key: case}))
    return _refreshed(_with_release(_without_members(state, ts), ts, config))


def _at_site(state: Incidents, case: Case, status: Status | None = None) -> bool:
    """Return whether a case is claimed by the site, of such a status where one is given."""
    claim = state.claims.get(case.key)
    incident = None if claim is None else state.scope.cases[claim.incident]
    return incident is not None and incident.subject.type == "site" and status in (None, incident.status)


def _without_members(state: Incidents, ts: float) -> Incidents:
    """End the incidents of which a larger one has claimed all members."""
    held = {claim.incident for claim in state.claims.values()}
    over = {
        key: superseded(case, ts)
        for key, case in state.scope.cases.items()
        if key not in held and case.status in LIVE
    }
    return replace(state, scope=Scope({**state.scope.cases, **over}))


def _left_silent(state: Incidents) -> list[Case]:
    """Return the cases of the nodes that an outage explains and that are not back."""
    return [case for case in _claimed_everywhere(state) if case.active]


def _claimed_everywhere(state: Incidents) -> list[Case]:
    return [state.members[key] for key, claim in state.claims.items() if is_everywhere(state, claim)]


def _with_release(state: Incidents, ts: float, config: FindingConfig) -> Incidents:
    """Plan, or call off, that the nodes which stay silent after an outage speak for themselves."""
    left = {case.subject.node for case in _left_silent(state)}
    none_back = left == {case.subject.node for case in _claimed_everywhere(state)}
    if not left or none_back or telemetry_outage.is_many(len(left), state.layout.expected, config):
        return replace(state, release_at=None)
    at = ts + OUTAGE.rule.within_seconds if state.release_at is None else state.release_at
    return replace(state, release_at=at)


def _released(state: Incidents, ts: float, config: FindingConfig) -> Incidents:
    return _freed(state, {case.key for case in _left_silent(state)}, ts, config)


def _freed(state: Incidents, free: Container[str], ts: float, config: FindingConfig) -> Incidents:
    claims = {key: claim for key, claim in state.claims.items() if key not in free}
    return replace(_refreshed(replace(state, claims=claims)), judge_at=ts + config.hold_seconds)


def is_everywhere(state: Incidents, claim: Claim) -> bool:
    """Return whether a case is claimed by an incident about nodes wherever they stand."""
    return state.scope.cases[claim.incident].subject.type in EVERYWHERE


def _pruned(state: Incidents, ts: float, config: FindingConfig) -> Incidents:
    """Forget what no incident explains and no detector says any more, and let go who relapsed without it."""
    claims = {}
    for key, claim in state.claims.items():
        incident, member = state.scope.cases[claim.incident], state.members[key]
        relapsed = incident.ended_at is not None and member.active and member.since > incident.ended_at
        if not relapsed:
            claims[key] = claim
    kept = {k: c for k, c in state.members.items() if k in claims or c.fresh_at(ts, config)}
    return replace(state, members=kept, claims=claims)


def _joined(state: Incidents, ts: float, config: FindingConfig) -> Incidents:
    """Let live incidents claim what their members show besides, and members that follow in step."""
    claims = dict(state.claims)
    live = [(c, _window(state, c)) for _, c in sorted(state.scope.cases.items()) if c.status in LIVE]
    for key, case in state.members.items():
        if key in claims or not case.active:
            continue
        for incident, window in live:
            if _belongs(state, case, incident, window, config):
                claims[key] = Claim(incident.key, ts)
                break
    return replace(state, claims=claims)


def _window(state: Incidents, incident: Case) -> tuple[float, float]:
    """Return between which onsets a case is in step with the members of an incident."""
    pattern = pattern_of(incident)
    onsets = [
        state.members[key].since
        for key, claim in state.claims.items()
        if claim.incident == incident.key and state.members[key].kind in pattern.rule.evidence
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
        # Who is still silent when the others are back is no part of an outage any more.
        ongoing = incident.active or incident.subject.type not in EVERYWHERE
        return ongoing and window[0] <= case.since <= window[1]
    return incident.active and case.since >= incident.since - config.agree_within_seconds


def _is_free(state: Incidents, pattern: Pattern, case: Case) -> bool:
    return case.kind in pattern.rule.evidence and case.key not in state.claims


def _opened(state: Incidents, pattern: Pattern, found: Explanation, ts: float) -> Incidents:
    explained = {s.name for s in found.explained}
    mine = [
        case
        for _, case in sorted(state.members.items())
        if _is_free(state, pattern, case) and unit_of(pattern, case) in explained
    ]
    subject = subject_of(found.domain, mine[0].subject.cluster)
    return _explained(state, build_suspicion(pattern, subject, found, ts), mine)


def _explained(state: Incidents, word: Suspicion, mine: list[Case]) -> Incidents:
    """Return the state with the incident that ``word`` tells of, and its claims on the cases."""
    key = dedup_key(word.subject, word.kind)
    case = revived(state.scope.cases.get(key), word) or made(key, word)
    claims = {**state.claims, **{m.key: Claim(key, word.ts) for m in mine}}
    return replace(state, scope=Scope({**state.scope.cases, key: case}), claims=claims)


def _refreshed(state: Incidents) -> Incidents:
    """Bring the incidents up to date with their members' cases."""
    mine: dict[str, list[Case]] = {}
    for key, claim in sorted(state.claims.items()):
        mine.setdefault(claim.incident, []).append(state.members[key])
    cases = dict(state.scope.cases)
    for key, members in mine.items():
        if cases[key].status in LIVE:
            cases[key] = summed(cases[key], members)
    return replace(state, scope=Scope(cases))
