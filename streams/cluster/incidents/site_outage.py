"""Incidents of a whole cluster: many nodes that fell silent together are the site, or the telemetry path.

``telemetry_outage`` decides what explains silent nodes. Here their cases become members of the incident,
which is opened, confirmed and ended; nodes that stay silent after it become cases of their own.
"""

from collections.abc import Container, Iterable
from dataclasses import replace

from alerts.cases.case import Case
from alerts.cases.lifecycle import LIVE, NOTIFIED
from alerts.cases.scope import Scope
from alerts.config import FindingConfig
from alerts.finding import Status, dedup_key
from alerts.kinds import UNHEARD_KIND
from slowrank.telemetry import Suspicion
from streams.cluster.incidents import telemetry_outage
from streams.cluster.incidents.cases import opened, superseded, suspected
from streams.cluster.incidents.kinds import OUTAGE, SILENCE
from streams.cluster.incidents.members import Incidents, explained, is_everywhere, is_free, refreshed
from streams.silent_nodes import SilenceConfig, silent_after

# Seconds of silence of one node, of several that fell silent together, after which they are a finding (the
# ``stale`` time of single nodes).
_STALE = SilenceConfig().stale


def judge_cluster(state: Incidents, ts: float, config: FindingConfig) -> Incidents:
    """Make nodes that fell silent together members of a site or telemetry outage, once one is stale."""
    site = _site(state)
    if site:
        mine = [c for c in _silences_of(state, site) if is_free(state, OUTAGE, c)]
        if _any_stale(mine, ts):
            state = _suspected(
                state, telemetry_outage.site_lost(mine[0].subject.cluster, site, state.layout, ts), mine
            )
        if state.site_at is None and any(not _at_site(state, c) for c in _silences_of(state, site)):
            state = replace(state, site_at=max(ts, _lasts_at(state, site)))
        return _with_release(state, ts, config)
    silent = silent_nodes(state, ts, config)
    gone = {node: silent[node] for node in telemetry_outage.together(silent, state.layout, config)}
    mine = [c for c in _silences_of(state, gone) if is_free(state, OUTAGE, c)]
    if _any_stale(mine, ts):
        suspicion = telemetry_outage.telemetry_lost(mine[0].subject.cluster, gone, state.layout, ts)
        state = explained(state, suspicion, mine)
    return _with_release(state, ts, config)


def judge_site(state: Incidents, ts: float, config: FindingConfig) -> Incidents:
    """Open the incident of a site that is still silent; else judge the nodes that did not come back anew."""
    site = _site(state)
    if not site:
        free = {case.key for case in _left_silent(state) if _at_site(state, case, "suspected")}
        return refreshed(judge_cluster(_freed(state, free, ts, config), ts, config)) if free else state
    lasts_at = _lasts_at(state, site)
    if lasts_at > ts:
        # A pause is over, and another one has begun.
        return replace(state, site_at=lasts_at)
    mine = _silences_of(state, site)
    suspicion = telemetry_outage.site_lost(mine[0].subject.cluster, site, state.layout, ts)
    key = dedup_key(suspicion.subject, suspicion.kind)
    before = state.scope.cases.get(key)
    state = explained(state, suspicion, mine)
    if before is not None and before.status == "suspected":
        case = opened(before, suspicion)
        state = replace(state, scope=Scope({**state.scope.cases, key: case}))
    return refreshed(_with_release(_without_members(state, ts), ts, config))


def release(state: Incidents, ts: float, config: FindingConfig) -> Incidents:
    return _freed(state, {case.key for case in _left_silent(state)}, ts, config)


def silent_nodes(state: Incidents, ts: float, config: FindingConfig) -> dict[str, float]:
    """Return since when each node is silent that no incident explains."""
    found: dict[str, float] = {}
    for case in state.members.values():
        if is_free(state, OUTAGE, case) and case.fresh_at(ts, config):
            node = case.subject.node or ""
            found[node] = min(case.since, found.get(node, case.since))
    return found


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
    state = explained(state, suspicion, mine)
    if before is not None and before.status in NOTIFIED:
        return state
    waiting = suspected(before, state.scope.cases[key], suspicion)
    at = _lasts_at(state, {c.subject.node or "" for c in mine})
    return replace(state, scope=Scope({**state.scope.cases, key: waiting}), site_at=max(suspicion.ts, at))


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


def _freed(state: Incidents, free: Container[str], ts: float, config: FindingConfig) -> Incidents:
    memberships = {key: membership for key, membership in state.memberships.items() if key not in free}
    return replace(refreshed(replace(state, memberships=memberships)), judge_at=ts + config.hold_seconds)
