"""When so many nodes of a cluster fall silent together that it is the telemetry path and no node."""

from collections import Counter
from collections.abc import Mapping

from alerts.config import FindingConfig
from slowrank.telemetry import Evidence, Subject, Suspicion
from streams.incident_kinds import OUTAGE
from streams.places import Layout
from streams.suspicions import Claim

DARK_SHARE = 0.75
"""A rack or switch of which so many nodes are silent is dark as a whole."""

Silent = Mapping[str, float]
"""Since when (event time) each silent node is."""


def is_many(silent: int, nodes: int, config: FindingConfig) -> bool:
    """Return whether so many silent nodes of all are no node's fault."""
    return silent >= config.mass_nodes and silent > config.mass_fraction * nodes


def is_most(silent: Silent, layout: Layout) -> bool:
    """Return whether more than half of the cluster is silent: no rack or switch is to blame for that."""
    return len(silent) > layout.expected / 2


def together(silent: Silent, layout: Layout, config: FindingConfig) -> list[str]:
    """Return the nodes that fell silent together, if too many to be at fault themselves; else none.

    A rack or switch that is dark as a whole counts only when most of the cluster is silent.
    """
    nodes = max(layout.expected, len(silent))
    if not is_many(len(silent), nodes, config):
        return []
    dark = _dark(silent, layout, config) if len(silent) <= nodes / 2 else set()
    burst = _burst(sorted((at, node) for node, at in silent.items() if node not in dark))
    return burst if is_many(len(burst), nodes, config) else []


def speak(cluster: str, silent: Silent, nodes: int, ts: float) -> Suspicion:
    """Return what is said when the telemetry path breaks for ``silent`` nodes of so many."""
    told = Evidence(
        metric="nodes_silent",
        unit="1",
        detector="silence",
        value=float(len(silent)),
        note=f"of {nodes} nodes, within seconds of each other",
    )
    claim = Claim(
        detector="silence.mass",
        family=OUTAGE.family,
        kind=OUTAGE.kind,
        subject=Subject(type="telemetry", cluster=cluster),
        weight=4.0,
        score=2.0,
        overwhelming=True,
        evidence=(told,),
        severity="error",
        note="many nodes fell silent at once, which is the telemetry path and not the nodes",
    )
    first, last = min(silent.values()), max(silent.values())
    return claim.suspicion("raise", ts=ts, onset=first, interval=(first, last))


def _dark(silent: Silent, layout: Layout, config: FindingConfig) -> set[str]:
    where = [(node, layout.nodes[node]) for node in silent if node in layout.nodes]
    racks = Counter(w.rack for _, w in where if w.rack is not None)
    switches = Counter(w.switch for _, w in where if w.switch is not None)

    def is_dark(quiet: int, size: int) -> bool:
        return quiet >= max(config.mass_nodes, DARK_SHARE * size)

    return {
        node
        for node, w in where
        if (w.rack is not None and is_dark(racks[w.rack], layout.racks[w.rack]))
        or (w.switch is not None and is_dark(switches[w.switch], layout.switches[w.switch]))
    }


def _burst(onsets: list[tuple[float, str]]) -> list[str]:
    """Return the most nodes that fell silent within ten seconds; of equals, the earliest."""
    first, longest = 0, (0, 0)
    for last, (at, _) in enumerate(onsets):
        while at - onsets[first][0] > OUTAGE.width:
            first += 1
        longest = max(longest, (first, last + 1), key=lambda span: span[1] - span[0])
    return [node for _, node in onsets[slice(*longest)]]
