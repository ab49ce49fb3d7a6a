"""Which racks, switches and rails explain the cases of their members, and with enough evidence."""

from collections.abc import Iterable

from alerts.cases.case import Case
from alerts.kinds import UNHEARD_KIND
from alerts.reasoning.fusion import family_votes
from detectors.node.fault_domains import DomainCause, DomainConfig, Suspect, explain
from streams.cluster.incidents.kinds import Pattern, domains_of, unit_of
from streams.cluster.incidents.telemetry_outage import DARK_SHARE
from streams.cluster.inventory import Layout

# Log-odds from which the evidence of a member is enough for its domain without a second family (chosen: the
# vote that offsets the prior of a finding).
FIRM = 3.0


def explanations(
    cases: Iterable[Case], pattern: Pattern, layout: Layout, *, least: int = 3
) -> list[DomainCause]:
    """Return the domains that explain the cases, best first; the cases in order of their keys.

    ``least``: of so many nodes at least. Fewer than three are a domain only if they are all it has.
    """
    units: dict[str, list[Case]] = {}
    for case in cases:
        units.setdefault(unit_of(pattern, case), []).append(case)
    settings = DomainConfig(width=pattern.rule.within_seconds, places=least)
    if len({held[0].subject.node for held in units.values()}) < settings.places:
        return []
    suspects = [_suspect(name, held) for name, held in sorted(units.items())]
    domains, counts = domains_of(pattern, layout, {name: held[0].subject for name, held in units.items()})
    return [
        found
        for found in explain(suspects, domains, settings, counts=counts)
        # The whole cluster competes as an explanation only so that no part of it is blamed for what all show.
        if found.domain.type != "cluster"
        and _is_firm(found, [c for s in found.explained for c in units[s.name]])
    ]


def _suspect(name: str, cases: list[Case]) -> Suspect:
    votes = family_votes(s for case in cases for s in case.suspicions())
    onset = min(case.since for case in cases)
    # Sorted: a sum must not depend, in its last bit, on the order of arrival. The limit is that of one
    # family (``alerts.reasoning.fusion``).
    return Suspect(name, cases[0].subject.node or "", min(6.0, sum(sorted(votes.values()))), onset)


def _is_firm(found: DomainCause, cases: list[Case]) -> bool:
    if len({s.place for s in found.explained}) < DomainConfig().places:
        return len(found.explained) >= found.domain.size
    if all(case.kind == UNHEARD_KIND for case in cases):
        # A few missed reports are enough only where nearly all miss them.
        return len(found.explained) >= DARK_SHARE * found.domain.size
    suspicions = [s for case in cases for s in case.suspicions()]
    if any(case.rule.opens_alone for case in cases) or any(s.overwhelming for s in suspicions):
        return True
    return max(s.log_likelihood_ratio for s in suspicions) >= FIRM
