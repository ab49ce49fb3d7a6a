"""Findings of detectors on trial: under keys and ids of their own, so that they touch no other finding."""

from dataclasses import replace

from alerts.cases.case import Case
from alerts.cases.scope import Scope
from alerts.finding import Finding, finding_id

SUFFIX = "/shadow"


def raised_in_shadow(case: Case) -> bool:
    """Return whether a detector on trial has ever raised the case.

    Others may have raised it, too: whether they did before or after does not count, as the order in which
    suspicions come must change nothing.
    """
    return any(source.on_trial for source in case.sources.values())


def shadow_id(case: Case) -> str:
    """Return the id of the case's finding in shadow."""
    return finding_id(case.key + SUFFIX, case.first_onset)


def shadowed(finding: Finding, scope: Scope) -> Finding:
    """Return a finding of a scope as one in shadow, which names the others in shadow as they are named."""
    alone = [case for case in scope.cases.values() if raised_in_shadow(case)]
    keys = {case.key: case.key + SUFFIX for case in alone}
    ids = {finding_id(c.key, c.first_onset): shadow_id(c) for c in alone}
    others = finding.blast_radius.other_findings
    return replace(
        finding,
        shadow=True,
        dedup_key=finding.dedup_key + SUFFIX,
        group_key=None if finding.group_key is None else keys.get(finding.group_key, finding.group_key),
        blast_radius=replace(finding.blast_radius, other_findings=tuple(ids.get(i, i) for i in others)),
    )
