"""What a node's telemetry says by itself: hardware faults, changed levels, devices that vanished, silence."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from detectors.change import ChangeConfig
from slowrank.telemetry import NodeEvent, NodeSample, Record, Suspicion
from streams.node_events import EventRules
from streams.node_state import NodeState
from streams.silence import Silence, SilenceConfig
from streams.stage import Output
from streams.suspicions import Place


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """Knobs of the node stage. ``gone`` is how long (seconds) a GPU must be missing from live records;
    events are remembered for ``events`` seconds, the longest window of their rules."""

    silence: SilenceConfig = field(default_factory=SilenceConfig)
    change: ChangeConfig = field(default_factory=ChangeConfig)
    gone: float = 3.0
    events: float = 86400.0


@dataclass(slots=True)
class _Events:
    rules: EventRules = field(default_factory=EventRules)
    last: float = 0.0


class NodeStage:
    """Keyed by node: consumes its samples and events, emits suspicions that rarely convict alone.

    Samples of one node come in order of event time; one that is not younger than the last (a duplicate, a
    late record) is only counted, in ``ignored``. Events may come in any order.
    """

    def __init__(self, config: NodeConfig | None = None) -> None:
        self._config = config or NodeConfig()
        self._nodes: dict[tuple[str, str], NodeState] = {}
        self._events: dict[tuple[str, str], _Events] = {}
        self._silence = Silence(self._config.silence)
        self.ignored: Counter[str] = Counter()

    def process(self, record: Record | Suspicion) -> Sequence[Output]:
        """Take one sample or event; other records are not this stage's."""
        if isinstance(record, NodeSample):
            return self._sample(record)
        return self._event(record) if isinstance(record, NodeEvent) else ()

    def tick(self, event_time: float) -> Sequence[Output]:
        """Judge silence at the whole second of ``event_time``, and forget nodes that left long ago."""
        found = self._silence.tick(event_time)
        oldest = event_time - self._config.silence.expected
        for key in [k for k, node in self._nodes.items() if node.ts < oldest]:
            del self._nodes[key]
        for key in [k for k, e in self._events.items() if e.last < event_time - self._config.events]:
            del self._events[key]
        return found

    def _sample(self, sample: NodeSample) -> Sequence[Suspicion]:
        key = (sample.cluster, sample.node)
        node = self._nodes.get(key)
        if node is None:
            node = self._nodes[key] = NodeState(self._config.change, gone=self._config.gone)
        if sample.ts <= node.ts:
            duplicate = (sample.boot_id, sample.seq) == (node.boot_id, node.seq)
            self.ignored["duplicate" if duplicate else "late"] += 1
            return ()
        cleared = self._silence.heard(Place.of(sample), sample.ts)
        return [*cleared, *node.update(sample)]

    def _event(self, event: NodeEvent) -> Sequence[Suspicion]:
        held = self._events.setdefault((event.cluster, event.node), _Events())
        held.last = max(held.last, event.ts)
        return held.rules.update(event)
