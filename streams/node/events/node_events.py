"""Discrete events of nodes: what jobs declare, link delays, event rules, alerts of other systems."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from slowrank.telemetry import NodeEvent, Suspicion
from streams.node.events.external_alerts import ExternalAlerts
from streams.node.events.job_events import declared, excuse, planned, startup_phase
from streams.node.events.link_probes import link_delay
from streams.node.rules.event_rules import EventRules
from streams.node.rules.state_rules import RECOVERY, RECOVERY_CLEAR
from streams.stage import Output


@dataclass(slots=True)
class _Node:
    last: float
    rules: EventRules = field(default_factory=EventRules)
    alerts: ExternalAlerts = field(default_factory=ExternalAlerts)


class NodeEvents:
    """Applies the event rules node by node; events of a node may come in any order."""

    def __init__(self) -> None:
        self._nodes: dict[tuple[str, str], _Node] = {}

    def update(self, event: NodeEvent) -> list[Output]:
        """Process one event; return what it means for its job, its links and its devices."""
        node = self._node(event.cluster, event.node, event.ts)
        node.last = max(node.last, event.ts)
        of_job: list[Output] = [*excuse(event), *planned(event), *startup_phase(event), *declared(event)]
        of_node = [*node.rules.update(event), *node.alerts.update(event)]
        return [*of_job, *link_delay(event), *of_node]

    def end_recovered(self, states: Iterable[Suspicion]) -> list[Suspicion]:
        """End what events raised about the GPUs whose state ``RECOVERY`` clears among ``states``.

        That state clears once the driver has asked for no recovery for ``RECOVERY_CLEAR`` seconds: an event
        since then is a new fault.
        """
        ended: list[Suspicion] = []
        for s in states:
            if s.rule_id == RECOVERY and s.state == "clear":
                rules = self._node(s.cluster, str(s.subject.node), s.ts).rules
                ended += rules.recovered(s.subject, s.ts - RECOVERY_CLEAR, s.ts)
        return ended

    def forget(self, before: float) -> None:
        """Drop the nodes whose last event is older than ``before`` (event time)."""
        for key in [key for key, node in self._nodes.items() if node.last < before]:
            del self._nodes[key]

    def _node(self, cluster: str, name: str, ts: float) -> _Node:
        return self._nodes.setdefault((cluster, name), _Node(ts))
