"""Which nodes stopped sending: one by one, or so many at once that the telemetry itself is ill.

Judged at whole seconds of event time from the last record of each node.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from slowrank.telemetry import Evidence, Subject, Suspicion
from streams.suspicions import Claim, Place

Kind = Literal["exporter.stale", "node.silent"]


@dataclass(frozen=True, slots=True)
class SilenceConfig:
    """Seconds of event time without a record, and how many nodes at once are no node's fault.

    ``at_once`` is how much less than ``stale`` a neighbour's silence may last to count as simultaneous;
    a node unheard of for ``expected`` seconds is taken to have left.
    """

    stale: float = 10.0
    silent: float = 30.0
    certain: float = 300.0
    expected: float = 600.0
    at_once: float = 3.0
    mass_fraction: float = 0.2
    mass_nodes: int = 3


@dataclass(slots=True)
class _Heard:
    place: Place
    last: float
    raised: dict[Kind, float] = field(default_factory=dict)
    certain: bool = False


class Silence:
    """The nodes of one key group and when each was last heard."""

    def __init__(self, config: SilenceConfig | None = None) -> None:
        self._config = config or SilenceConfig()
        self._heard: dict[tuple[str, str], _Heard] = {}
        self._mass: dict[str, float] = {}
        self._second = -math.inf

    def heard(self, place: Place, ts: float) -> list[Suspicion]:
        """Take that a node sent a record of event time ``ts``; return the clears this gives rise to."""
        held = self._heard.get((place.cluster, place.node))
        if held is None:
            self._heard[place.cluster, place.node] = _Heard(place, ts)
            return []
        held.place, held.last = place, max(held.last, ts)
        if not held.raised:
            return []
        cleared = [_claim(held, kind).suspicion("clear", ts=ts, onset=at) for kind, at in held.raised.items()]
        held.raised, held.certain = {}, False
        return cleared

    def tick(self, event_time: float) -> list[Suspicion]:
        """Judge all nodes at the whole second of ``event_time``; a second is judged once."""
        second = math.floor(event_time)
        if second <= self._second:
            return []
        self._second = second
        self._forget_the_departed(second)
        found: list[Suspicion] = []
        for cluster in sorted({cluster for cluster, _ in self._heard}):
            nodes = [h for _, h in sorted(self._heard.items()) if h.place.cluster == cluster]
            found += self._judge(cluster, nodes, float(second))
        return found

    def _judge(self, cluster: str, nodes: list[_Heard], now: float) -> Iterable[Suspicion]:
        config = self._config
        stale = [h for h in nodes if now - h.last >= config.stale - config.at_once]
        mass = len(stale) >= config.mass_nodes and len(stale) > config.mass_fraction * len(nodes)
        overdue = [h for h in nodes if now - h.last >= config.stale]
        if mass and overdue:
            return self._raise_mass(cluster, len(stale), len(nodes), now)
        if not mass and cluster in self._mass:
            return self._clear_mass(cluster, now)
        return [s for h in overdue for s in self._overdue(h, now)]

    def _overdue(self, held: _Heard, now: float) -> list[Suspicion]:
        config, silence, found = self._config, now - held.last, []
        deadlines: tuple[tuple[Kind, float], ...] = (
            ("exporter.stale", config.stale),
            ("node.silent", config.silent),
        )
        for kind, after in deadlines:
            if silence >= after and kind not in held.raised:
                held.raised[kind] = held.last
                found.append(_claim(held, kind).suspicion("raise", ts=held.last + after, onset=held.last))
        if silence >= config.certain and not held.certain:
            held.certain = True
            claim = _claim(held, "exporter.stale", certain=True)
            found.append(claim.suspicion("update", ts=held.last + config.certain, onset=held.last))
        return found

    def _raise_mass(self, cluster: str, silent: int, nodes: int, now: float) -> list[Suspicion]:
        if cluster in self._mass:
            return []
        self._mass[cluster] = now
        return [_mass_claim(cluster, silent, nodes).suspicion("raise", ts=now, onset=now)]

    def _clear_mass(self, cluster: str, now: float) -> list[Suspicion]:
        onset = self._mass.pop(cluster)
        return [_mass_claim(cluster, 0, 0).suspicion("clear", ts=now, onset=onset)]

    def _forget_the_departed(self, now: float) -> None:
        gone = [key for key, held in self._heard.items() if now - held.last > self._config.expected]
        for key in gone:
            del self._heard[key]


def _claim(held: _Heard, kind: Kind, *, certain: bool = False) -> Claim:
    return Claim(
        detector=f"silence.{kind}",
        family="silence",
        kind=kind,
        subject=held.place.whole_node(),
        weight=3.0 if certain else 1.0,
        overwhelming=certain,
        note="warning: no record from this node",
    )


def _mass_claim(cluster: str, silent: int, nodes: int) -> Claim:
    told = Evidence(
        metric="nodes_silent",
        unit="1",
        detector="silence",
        value=float(silent),
        note=f"of {nodes} nodes, within seconds of each other",
    )
    return Claim(
        detector="silence.mass",
        family="telemetry",
        kind="self.telemetry_gap",
        subject=Subject(type="telemetry", cluster=cluster),
        weight=4.0,
        score=2.0,
        overwhelming=True,
        evidence=(told,),
        note="error: many nodes fell silent at once, which is the telemetry path and not the nodes",
    )
