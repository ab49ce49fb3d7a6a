"""Which cases are members of which incident of a cluster, and how they are shown: not notified."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from alerts.cases.case import Case
from alerts.cases.lifecycle import LIVE, NOTIFIED
from alerts.cases.scope import Scope
from alerts.finding import Finding, dedup_key, finding_id
from alerts.kinds import UNHEARD_KIND
from slowrank.telemetry import Suspicion
from streams.cluster.incidents.cases import made, revived, summed
from streams.cluster.incidents.kinds import EVERYWHERE, SILENCE, Pattern
from streams.cluster.inventory import Layout


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


def is_everywhere(state: Incidents, membership: Membership) -> bool:
    """Return whether a case is claimed by an incident about nodes wherever they stand."""
    return state.scope.cases[membership.incident].subject.type in EVERYWHERE


def is_free(state: Incidents, pattern: Pattern, case: Case) -> bool:
    return case.kind in pattern.rule.evidence and case.key not in state.memberships


def explained(state: Incidents, suspicion: Suspicion, mine: list[Case]) -> Incidents:
    """Return the state with the incident of ``suspicion``, and ``mine`` as its members."""
    key = dedup_key(suspicion.subject, suspicion.kind)
    case = revived(state.scope.cases.get(key), suspicion) or made(key, suspicion)
    memberships = {**state.memberships, **{m.key: Membership(key, suspicion.ts) for m in mine}}
    return replace(state, scope=Scope({**state.scope.cases, key: case}), memberships=memberships)


def refreshed(state: Incidents) -> Incidents:
    """Bring the incidents up to date with their members' cases."""
    mine: dict[str, list[Case]] = {}
    for key, membership in sorted(state.memberships.items()):
        mine.setdefault(membership.incident, []).append(state.members[key])
    cases = dict(state.scope.cases)
    for key, members in mine.items():
        if cases[key].status in LIVE:
            cases[key] = summed(cases[key], members)
    return replace(state, scope=Scope(cases))


def membership_of(state: Incidents, case: Case) -> Membership | None:
    """Return by which incident a case is explained, if any.

    While the telemetry or the site is lost, a node's silence is, without its cases being weighed one by one.
    """
    membership = state.memberships.get(case.key)
    if membership is None and case.kind in SILENCE:
        of_node = state.memberships.get(dedup_key(case.subject, UNHEARD_KIND))
        return of_node if of_node is not None and is_everywhere(state, of_node) else None
    return membership


def as_member(finding: Finding, membership: Membership) -> Finding:
    """Return the finding of a case that an incident explains: its id stays, and it is not notified."""
    opened_before = finding.status != "suspected" and finding.detected_at < membership.since
    if opened_before:
        return replace(
            finding, status="resolved", resolved_at=membership.since, group_key=membership.incident
        )
    if finding.status in NOTIFIED:
        return replace(finding, status="suspected", group_key=membership.incident)
    return replace(finding, group_key=membership.incident)


def with_members(finding: Finding, state: Incidents) -> Finding:
    """Return an incident's finding with the findings of its members as its blast radius."""
    mine = [
        finding_id(key, state.members[key].first_onset)
        for key, membership in sorted(state.memberships.items())
        if membership.incident == finding.dedup_key and state.members[key].kind != UNHEARD_KIND
    ]
    return replace(finding, blast_radius=replace(finding.blast_radius, other_findings=tuple(mine)))
