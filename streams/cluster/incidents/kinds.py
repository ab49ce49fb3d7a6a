"""Faults of racks, switches and rails as a table, their domains, and the suspicions that open incidents."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from alerts.cases.case import Case
from alerts.kind import DomainRule
from alerts.kinds import FABRIC, KINDS, kind_of
from detectors.node.fault_domains import Domain, DomainCause
from slowrank.telemetry import Evidence, Subject, Suspicion
from slowrank.telemetry.records import Suspect
from streams.cluster.inventory import Layout, rail_of

# Explanations listed in a finding, the likeliest first (chosen: what fits on a page).
SUSPECTS = 8


@dataclass(frozen=True, slots=True)
class Pattern:
    """A fault of a domain: the ``kind`` of its incident, and the ``rule`` by which that is found."""

    kind: str
    rule: DomainRule

    def explains(self, kind: str) -> bool:
        """Return whether a case of ``kind`` at a member needs no finding of its own."""
        # A hang belongs to its job; what caused it is decided in ``hang_attribution``.
        return kind.startswith(self.rule.inhibits) and not kind_of(kind).hang

    def holds(self, layout: Layout, domain: Subject, member: Subject) -> bool:
        """Return whether ``member`` lies in ``domain``."""
        nodes = layout.known if domain.type in EVERYWHERE else layout.nodes
        where = nodes.get(member.node or "")
        if where is None or (domain.rail is not None and rail_of(member) != domain.rail):
            return False
        return domain.rack in (None, where.rack) and domain.switch in (None, where.switch)


# Log-odds of what explains an incident: the largest vote of a family (``fusion.CEILING``), and one that is
# seven times less likely (chosen).
_LIKELY, _POSSIBLE = 6.0, 4.0

_BY_KIND = {name: Pattern(name, kind.domain) for name, kind in KINDS.items() if kind.domain is not None}

# In order of judgement: cases that a silent domain explains are no evidence for the patterns after it.
PATTERNS = tuple(pattern for pattern in _BY_KIND.values() if not pattern.rule.of_cluster)

# Of the telemetry and no machine; and of the machines of a rack or switch.
OUTAGE, _DARK = _BY_KIND["self.telemetry_gap"], _BY_KIND["node.silent"]

SILENCE = OUTAGE.rule.evidence

# Of all of a cluster, or of most of its places at once: judged as the telemetry is.
SITE = Pattern(_DARK.kind, replace(_DARK.rule, inhibits=SILENCE, within_seconds=OUTAGE.rule.within_seconds))

# Types of subjects that include nodes of any rack or switch, and nodes without labels.
EVERYWHERE = ("telemetry", "site")


def pattern_of(incident: Case) -> Pattern:
    """Return the pattern of an incident. Raises ``KeyError`` for a case of any other kind."""
    return SITE if incident.subject.type == "site" else _BY_KIND[incident.kind]


def unit_of(pattern: Pattern, case: Case) -> str:
    """Return what fails as one for the pattern: the node, or the port of the case."""
    node = case.subject.node or ""
    return f"{node}/{case.subject.nic}/{case.subject.port}" if pattern.rule.of_ports else node


def domains_of(
    pattern: Pattern, layout: Layout, suspects: Mapping[str, Subject]
) -> tuple[list[Domain], Mapping[str, int]]:
    """Return the domains that the suspects lie in, and how many of each type the cluster has."""
    members: dict[tuple[str, str], set[str]] = {}
    for name, subject in suspects.items():
        for domain in _domains_at(pattern, layout, subject):
            members.setdefault(domain, set()).add(name)
    sizes = _sizes(pattern, layout)
    found = [
        Domain(kind, name, frozenset(inside), sizes[kind, name])
        for (kind, name), inside in sorted(members.items())
        if (kind, name) in sizes
    ]
    return found, Counter(kind for kind, _ in sizes)


def subject_of(domain: Domain, cluster: str) -> Subject:
    """Return the domain as the subject of an incident."""
    if domain.type == "rack":
        return Subject(type="rack", cluster=cluster, rack=domain.name)
    if domain.type == "switch":
        return Subject(type="switch", cluster=cluster, switch=domain.name)
    switch, _, rail = domain.name.rpartition("/")
    return Subject(type="switch", cluster=cluster, switch=switch or None, rail=rail)


def build_suspicion(pattern: Pattern, subject: Subject, found: DomainCause, ts: float) -> Suspicion:
    """Return the suspicion that opens an incident: what its members' own suspicions do not contain."""
    nodes = sorted({s.place for s in found.explained})
    what = "ports" if pattern.rule.of_ports else "nodes"
    members = Evidence(
        metric="domain.members",
        unit="1",
        detector="domains",
        value=float(len(found.explained)),
        note=f"of {found.domain.size} {what} of {found.domain.type} {found.domain.name}: {_listed(nodes)}",
    )
    onsets = [s.onset for s in found.explained]
    return Suspicion(
        cluster=subject.cluster,
        detector="domains",
        catalogue_id="domains",
        family=pattern.rule.family,
        kind=pattern.kind,
        state="raise",
        subject=subject,
        ts=ts,
        onset=min(onsets),
        onset_lo=min(onsets),
        onset_hi=max(onsets),
        score=max(1.0, round(found.gain / 3.0, 3)),
        log_likelihood_ratio=_LIKELY,
        overwhelming=True,
        nodes=len(nodes),
        evidence=(members,),
        hypotheses=_hypotheses(pattern, found.domain),
        suspects=_suspects(subject, found),
        note=f"{round(found.probability, 4):g} of what could explain its members",
    )


def _hypotheses(pattern: Pattern, domain: Domain) -> dict[str, float]:
    """Return what explains an incident: all that nodes behind one switch surely share is the way out."""
    if pattern.rule.evidence == SILENCE and domain.type == "switch":
        return {FABRIC: _LIKELY, pattern.rule.hypothesis: _POSSIBLE}
    return {pattern.rule.hypothesis: _LIKELY}


def _suspects(subject: Subject, found: DomainCause) -> tuple[Suspect, ...]:
    """Return the domain and those that could explain the same members, where there are any."""
    others = [
        (subject_of(domain, subject.cluster), share)
        for domain, share in found.others
        if domain.type != "cluster" and share >= 0.01
    ]
    ranked = [(subject, found.probability), *others] if others else []
    return tuple(Suspect(subject=s, probability=round(p, 4)) for s, p in ranked[:SUSPECTS])


def _domains_at(pattern: Pattern, layout: Layout, subject: Subject) -> Iterable[tuple[str, str]]:
    where, rail = layout.nodes[subject.node or ""], rail_of(subject)
    yield "cluster", ""
    if where.rack is not None:
        yield "rack", where.rack
    if where.switch is not None:
        yield "switch", where.switch
    if pattern.rule.of_ports and rail is not None:
        yield "rail", f"/{rail}"
        if where.switch is not None:
            yield "switch rail", f"{where.switch}/{rail}"


def _sizes(pattern: Pattern, layout: Layout) -> dict[tuple[str, str], int]:
    """Return the number of members of every domain of the cluster."""
    racks = {("rack", name): nodes for name, nodes in layout.racks.items()}
    switches = {("switch", name): nodes for name, nodes in layout.switches.items()}
    sizes = racks | switches
    if pattern.rule.of_ports:
        sizes = {domain: layout.ports[domain] for domain in sizes}
        rails = max((w.ports for w in layout.nodes.values()), default=0)
        # A node with fewer ports than others counts on every rail: the rail then only needs more members.
        sizes |= {("rail", f"/{r}"): len(layout.nodes) for r in range(rails)}
        sizes |= {("switch rail", f"{s}/{r}"): n for s, n in layout.switches.items() for r in range(rails)}
    # A cluster of one rack or switch would be that domain once more.
    if len(racks) > 1 or len(switches) > 1:
        everything = (w.ports if pattern.rule.of_ports else 1 for w in layout.nodes.values())
        sizes["cluster", ""] = sum(everything)
    return sizes


def _listed(nodes: list[str], most: int = 40) -> str:
    more = f" and {len(nodes) - most} more" if len(nodes) > most else ""
    return ", ".join(nodes[:most]) + more
