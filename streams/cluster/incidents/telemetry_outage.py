"""When many nodes of a cluster fall silent together: whether domains, the whole site or neither explains it.

A dark domain (rack or switch) explains its own nodes. Where more than half of the cluster is silent and no
single domain explains it, the cause is above the domains: the site (its uplinks, its power, its telemetry
path) if whole domains fall silent, and only the telemetry if nodes of all domains do.
"""

from collections.abc import Iterator, Mapping
from typing import Literal

import msgspec

from alerts.config import FindingConfig
from alerts.kinds import FABRIC
from slowrank.telemetry import Evidence, Subject, Suspicion
from streams.cluster.incidents.kinds import OUTAGE, SITE, Pattern
from streams.cluster.inventory import Layout
from streams.suspicions import Claim

# Share of silent nodes from which a rack or switch is dark as a whole (chosen: three of four).
DARK_SHARE = 0.75

# Share that is nearly all of some nodes (chosen: one of ten may still report, of fewer none).
NEARLY = 0.9

# Dark domains listed in a finding (chosen: what fits in a line).
NAMED = 8

Silent = Mapping[str, float]
"""Since when (event time) each silent node is."""

Scale = Literal["domains", "site", "telemetry"]
"""What explains silent nodes: racks and switches, each its own nodes; the site; the telemetry alone."""

_DarkDomain = tuple[str, str, list[str]]
"""Type and name of a rack or switch, and its silent nodes."""


def is_many(silent: int, nodes: int, config: FindingConfig) -> bool:
    """Return whether so many silent nodes of all are no node's fault."""
    return silent >= config.mass_nodes and silent > config.mass_fraction * nodes


def scale_of(silent: Silent, layout: Layout) -> Scale:
    """Return what explains nodes that fell silent together.

    All of a cluster: the site. No more than half of it, or nearly all of them in one dark domain: domains. Of
    more, the site where nearly all are silent, or where half of them are in domains of which nearly all nodes
    are; else the telemetry. A single node is a node, also where it is all of its cluster.
    """
    nodes = max(layout.expected, len(silent))
    if nodes < 2 or len(silent) <= nodes / 2:
        return "domains"
    if len(silent) >= nodes:
        return "site"
    around = [p for p in _dark(silent, layout, DARK_SHARE) if len(p[2]) >= NEARLY * len(silent)]
    if around:
        # A rack or switch that has all nodes is the site.
        return "domains" if any(_size(layout, p) < nodes for p in around) else "site"
    whole = {node for _, _, inside in _dark(silent, layout, NEARLY) for node in inside}
    return "site" if len(silent) >= NEARLY * nodes or len(whole) >= len(silent) / 2 else "telemetry"


def together(silent: Silent, layout: Layout, config: FindingConfig) -> list[str]:
    """Return the nodes that fell silent together, if too many to be at fault themselves; else none.

    Those of a dark rack or switch do not count where domains explain the silence.
    """
    nodes = max(layout.expected, len(silent))
    if not is_many(len(silent), nodes, config):
        return []
    dark: set[str] = set()
    if scale_of(silent, layout) == "domains":
        least = config.mass_nodes
        found = _dark(silent, layout, DARK_SHARE)
        dark = {node for _, _, inside in found if len(inside) >= least for node in inside}
    burst = at_once({node: at for node, at in silent.items() if node not in dark})
    return burst if is_many(len(burst), nodes, config) else []


def at_once(silent: Silent) -> list[str]:
    """Return the most nodes that fell silent within ten seconds; of equals, the earliest."""
    onsets = sorted((at, node) for node, at in silent.items())
    first, longest = 0, (0, 0)
    for last, (at, _) in enumerate(onsets):
        while at - onsets[first][0] > OUTAGE.rule.within_seconds:
            first += 1
        longest = max(longest, (first, last + 1), key=lambda span: span[1] - span[0])
    return [node for _, node in onsets[slice(*longest)]]


def telemetry_lost(cluster: str, silent: Silent, layout: Layout, ts: float) -> Suspicion:
    """Return the suspicion of the telemetry path where no domain explains the silent nodes."""
    why = "many nodes fell silent at once, which is the telemetry path and not the nodes"
    subject = Subject(type="telemetry", cluster=cluster)
    return _suspicion(OUTAGE, subject, silent, layout, ts=ts, note=why)


def site_lost(cluster: str, silent: Silent, layout: Layout, ts: float) -> Suspicion:
    """Return the suspicion of the whole site: from silence alone its causes are equally likely."""
    why = "the nodes of whole racks and switches, or of all, fell silent at once"
    subject = Subject(type="site", cluster=cluster)
    raised = _suspicion(SITE, subject, silent, layout, ts=ts, note=why)
    causes = dict.fromkeys(
        (SITE.rule.hypothesis, FABRIC, OUTAGE.rule.hypothesis), raised.log_likelihood_ratio
    )
    return msgspec.structs.replace(raised, nodes=len(silent), hypotheses=causes)


def _suspicion(
    pattern: Pattern, subject: Subject, silent: Silent, layout: Layout, *, ts: float, note: str
) -> Suspicion:
    names = sorted({f"{kind} {name}" for kind, name, _ in _dark(silent, layout, DARK_SHARE)})
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    dark = f"; dark: {', '.join(names[:NAMED])}{more}" if names else ""
    seen = Evidence(
        metric="nodes_silent",
        unit="1",
        detector="silence",
        value=float(len(silent)),
        note=f"of {max(layout.expected, len(silent))} nodes, within seconds of each other{dark}",
    )
    claim = Claim(
        detector="silence.mass",
        catalogue_id="silence",
        family=pattern.rule.family,
        kind=pattern.kind,
        subject=subject,
        weight=4.0,
        score=2.0,
        overwhelming=True,
        evidence=(seen,),
        severity="error",
        note=note,
    )
    first, last = min(silent.values()), max(silent.values())
    return claim.suspicion("raise", ts=ts, onset=first, interval=(first, last))


def _size(layout: Layout, place: _DarkDomain) -> int:
    kind, name, _ = place
    return layout.racks[name] if kind == "rack" else layout.switches[name]


def _dark(silent: Silent, layout: Layout, share: float) -> Iterator[_DarkDomain]:
    """Yield type, name and silent nodes of each rack and switch of which so large a share is silent."""
    inside: dict[tuple[str, str], list[str]] = {}
    for node in sorted(silent.keys() & layout.nodes.keys()):
        where = layout.nodes[node]
        for kind, name in (("rack", where.rack), ("switch", where.switch)):
            if name is not None:
                inside.setdefault((kind, name), []).append(node)
    for (kind, name), nodes in sorted(inside.items()):
        place = kind, name, nodes
        # One node that is silent is a node, whatever is named after it.
        if len(nodes) >= max(2, share * _size(layout, place)):
            yield place
