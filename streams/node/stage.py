"""The node stage: samples and events of single nodes in, suspicions out."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from slowrank.telemetry import NodeEvent, NodeSample, Suspicion
from streams.node.config import NodeConfig
from streams.node.detectors.exporter_health import clock_error
from streams.node.inventory import NodeAnnouncer
from streams.node.job_events import CHANGES, excuse, planned, startup_phase
from streams.node.link_probes import link_delay
from streams.node.liveness import Silence
from streams.node.minute_means import MinuteSums
from streams.node.node_table import NodeTable
from streams.node.rules.event_rules import EventRules
from streams.node.rules.state_rules import RECOVERY, RECOVERY_CLEAR
from streams.stage import Input, Output
from streams.suspicions import Place


@dataclass(slots=True)
class _Events:
    rules: EventRules = field(default_factory=EventRules)
    last: float = 0.0


class NodeStage:
    """Keyed by node: consumes its samples and events, emits suspicions that rarely convict alone.

    Samples of one node come in order of event time; one that is not younger than the last (a duplicate, a
    late record) is only counted, in ``ignored``. Events may come in any order. How records are cut into
    batches changes nothing but the cost: many nodes at once are far cheaper than one by one.
    """

    def __init__(self, config: NodeConfig | None = None) -> None:
        self._config = config or NodeConfig()
        self._fleet = NodeTable(self._config)
        self._events: dict[tuple[str, str], _Events] = {}
        self._silence = Silence(self._config.silence)
        self._announcer = NodeAnnouncer()
        self._readings = MinuteSums() if self._config.readings else None

    @property
    def ignored(self) -> Counter[str]:
        """Samples that changed nothing, by reason: for tests, not exported."""
        return self._fleet.ignored

    def process(self, record: Input) -> Sequence[Output]:
        """Take one sample or event; other records are not this stage's."""
        return self.process_many([record])

    def process_many(self, records: Sequence[Input]) -> list[Output]:
        """Take records; return what each gives rise to, in their order."""
        outputs: list[Output] = []
        first = 0
        # Samples are taken all at once: those before a planned change are not to be learnt from after it.
        for number, record in enumerate(records):
            if isinstance(record, NodeEvent) and record.code in CHANGES:
                outputs += self._together(records[first : number + 1])
                self._fleet.relearn((record.cluster, record.node))
                first = number + 1
        return outputs + self._together(records[first:])

    def _together(self, records: Sequence[Input]) -> list[Output]:
        samples = self._fleet.fresh(records)
        if samples and self._readings is not None:
            self._readings.take(list(samples.values()))
        found = dict(zip(samples, self._fleet.update(list(samples.values())), strict=True))
        outputs: list[Output] = []
        for number, record in enumerate(records):
            if number in samples:
                sample = samples[number]
                place = Place.of(sample)
                outputs += self._announcer.update(sample, place)
                # By the cluster's time: a clock that is ahead would hide silence, one that is behind would
                # feign it.
                outputs += self._silence.heard(place, sample.ts - clock_error(sample))
                outputs += found[number]
                if found[number]:
                    outputs += self._recovered(sample, found[number])
            elif isinstance(record, NodeSample):
                outputs += self._silence.heard_out_of_turn(Place.of(record), record.ts - clock_error(record))
            elif isinstance(record, NodeEvent):
                outputs += self._event(record)
        return outputs

    def tick(self, event_time: float) -> Sequence[Output]:
        """Judge silence at the whole second of ``event_time``, tell of minutes that are over, and forget
        nodes that left long ago.
        """
        found = self._silence.tick(event_time)
        oldest = event_time - self._config.silence.expected
        self._fleet.forget(oldest)
        for key in [k for k, e in self._events.items() if e.last < event_time - self._config.events]:
            del self._events[key]
        self._announcer.forget(oldest)
        return found if self._readings is None else [*found, *self._readings.tick(event_time)]

    def _recovered(self, sample: NodeSample, found: Sequence[Suspicion]) -> list[Suspicion]:
        """End what events raised about a GPU once its driver asks for no recovery any more."""
        over = [s for s in found if s.detector == RECOVERY and s.state == "clear"]
        if not over:
            return []
        rules = self._events.setdefault((sample.cluster, sample.node), _Events(last=sample.ts)).rules
        # The state ends only after it has not held for a while: events since then are new.
        return [e for s in over for e in rules.recovered(s.subject, s.ts - RECOVERY_CLEAR, s.ts)]

    def _event(self, event: NodeEvent) -> Sequence[Output]:
        held = self._events.setdefault((event.cluster, event.node), _Events())
        held.last = max(held.last, event.ts)
        of_job: list[Output] = [*excuse(event), *planned(event), *startup_phase(event)]
        return [*of_job, *link_delay(event), *held.rules.update(event)]
