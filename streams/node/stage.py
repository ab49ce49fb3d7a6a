"""What a node's telemetry says by itself: hardware faults, changed levels, devices that vanished, silence."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from detectors.change_point import ChangeConfig
from slowrank.telemetry import NodeEvent, NodeSample, Record, Suspicion
from streams.exporter_health import clock_error
from streams.fleet import Fleet
from streams.hardware_states import RECOVERY, RECOVERY_CLEAR
from streams.job_events import CHANGES, excuse, planned
from streams.node_events import EventRules
from streams.pairwise import delay_told
from streams.places import Places
from streams.readings import Readings
from streams.silence import Silence, SilenceConfig
from streams.stage import Output
from streams.startup import phase_told
from streams.suspicions import Place


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """Knobs of the node stage. ``gone`` is how long (seconds) a GPU must be missing from live records;
    events are remembered for ``events`` seconds, the longest window of their rules; without
    ``level_changes`` no change point is looked for; with ``readings`` each node's minutes are told, for
    whoever compares nodes."""

    silence: SilenceConfig = field(default_factory=SilenceConfig)
    change: ChangeConfig = field(default_factory=ChangeConfig)
    level_changes: bool = True
    readings: bool = False
    gone: float = 3.0
    events: float = 86400.0


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
        self._fleet = Fleet(
            self._config.change if self._config.level_changes else None, gone=self._config.gone
        )
        self._events: dict[tuple[str, str], _Events] = {}
        self._silence = Silence(self._config.silence)
        self._places = Places()
        self._readings = Readings() if self._config.readings else None

    @property
    def ignored(self) -> Counter[str]:
        """Samples that changed nothing, by reason: for tests, no metric tells them."""
        return self._fleet.ignored

    def process(self, record: Record | Suspicion) -> Sequence[Output]:
        """Take one sample or event; other records are not this stage's."""
        return self.process_many([record])

    def process_many(self, records: Sequence[Record | Suspicion]) -> list[Output]:
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

    def _together(self, records: Sequence[Record | Suspicion]) -> list[Output]:
        samples = self._fleet.fresh(records)
        if samples and self._readings is not None:
            self._readings.take(list(samples.values()))
        found = dict(zip(samples, self._fleet.update(list(samples.values())), strict=True))
        outputs: list[Output] = []
        for number, record in enumerate(records):
            if number in samples:
                sample = samples[number]
                place = Place.of(sample)
                outputs += self._places.seen(sample, place)
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
        self._places.forget(oldest)
        return found if self._readings is None else [*found, *self._readings.tick(event_time)]

    def _recovered(self, sample: NodeSample, found: Sequence[Suspicion]) -> list[Suspicion]:
        """End what events raised about a GPU once its driver asks for no recovery any more."""
        over = [s for s in found if s.detector == RECOVERY and s.state == "clear"]
        if not over:
            return []
        rules = self._events.setdefault((sample.cluster, sample.node), _Events(last=sample.ts)).rules
        # The state ends when it has not held for a while: what came meanwhile is news.
        return [e for s in over for e in rules.recovered(s.subject, s.ts - RECOVERY_CLEAR, s.ts)]

    def _event(self, event: NodeEvent) -> Sequence[Suspicion]:
        held = self._events.setdefault((event.cluster, event.node), _Events())
        held.last = max(held.last, event.ts)
        of_job = [*excuse(event), *planned(event), *phase_told(event)]
        return [*of_job, *delay_told(event), *held.rules.update(event)]
