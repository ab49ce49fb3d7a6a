"""How the cases that an incident explains are shown: as its members, which are not notified."""

from dataclasses import replace

from alerts.cases.case import Case
from alerts.cases.lifecycle import NOTIFIED
from alerts.finding import Finding, dedup_key, finding_id
from alerts.kinds import UNHEARD_KIND
from streams.cluster.incident_kinds import SILENCE
from streams.cluster.incidents import Incidents, Membership, is_everywhere


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
