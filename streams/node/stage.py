"""The node stage: samples and events of single nodes in, suspicions out."""

from collections import Counter
from collections.abc import Sequence

from slowrank.telemetry import NodeEvent, NodeSample
from streams.clock_error import clock_error
from streams.node.config import NodeConfig
from streams.node.events.job_events import CHANGES
from streams.node.events.node_events import NodeEvents
from streams.node.inventory import NodeAnnouncer
from streams.node.liveness import Liveness
from streams.node.loaded_minutes import LoadedMinutes
from streams.node.minute_means import MinuteSums
from streams.node.node_table import NodeTable
from streams.stage import Input, Output
from streams.suspicions import Location


class NodeStage:
    """Finds what samples and events of single nodes show, keyed by node.

    Samples of one node come in order of event time; one that is not younger than the last (a duplicate, a
    late record) is only counted, in ``ignored``. Events may come in any order. How records are cut into
    batches changes only the cost: many nodes at once are far cheaper than one by one.
    """

    def __init__(self, config: NodeConfig | None = None) -> None:
        self._config = config or NodeConfig()
        self._table = NodeTable(self._config)
        self._events = NodeEvents()
        self._liveness = Liveness(self._config.silence)
        self._announcer = NodeAnnouncer()
        self._loaded = LoadedMinutes() if self._config.loaded_minutes else None
        wanted = self._config.readings or self._config.readings_of_jobs
        self._minutes = MinuteSums(all_nodes=self._config.readings) if wanted else None

    @property
    def ignored(self) -> Counter[str]:
        """Samples that changed nothing, by reason: for tests, not exported."""
        return self._table.ignored

    def process(self, record: Input) -> Sequence[Output]:
        """Process one sample or event; records of other kinds give nothing."""
        return self.process_many([record])

    def process_many(self, records: Sequence[Input]) -> list[Output]:
        """Process records; return the outputs of each, in their order."""
        outputs: list[Output] = []
        first = 0
        # Samples are processed in one batch, but those before a planned change belong to the old levels.
        for number, record in enumerate(records):
            if isinstance(record, NodeEvent) and record.code in CHANGES:
                outputs += self._batch(records[first : number + 1])
                self._table.relearn((record.cluster, record.node))
                first = number + 1
        return outputs + self._batch(records[first:])

    def tick(self, event_time: float) -> Sequence[Output]:
        """Return missing nodes and complete minutes at ``event_time``; drop nodes gone for long."""
        found = self._liveness.tick(event_time)
        oldest = event_time - self._config.silence.expected
        self._table.forget(oldest)
        self._events.forget(event_time - self._config.events)
        self._announcer.forget(oldest)
        loaded = [] if self._loaded is None else self._loaded.tick(event_time)
        minutes = [] if self._minutes is None else self._minutes.tick(event_time)
        return [*found, *loaded, *minutes]

    def resume(self, event_time: float) -> None:
        """Count the silence of nodes from ``event_time`` on."""
        self._liveness.resume(event_time)

    def _batch(self, records: Sequence[Input]) -> list[Output]:
        samples = self._table.fresh(records)
        if samples and self._loaded is not None:
            self._loaded.take(list(samples.values()))
        if samples and self._minutes is not None:
            self._minutes.take(list(samples.values()))
        found = dict(zip(samples, self._table.update(list(samples.values())), strict=True))
        outputs: list[Output] = []
        for number, record in enumerate(records):
            if isinstance(record, NodeEvent):
                outputs += self._events.update(record)
            elif isinstance(record, NodeSample):
                location = Location.of(record)
                # In the cluster's time: a clock that is ahead would hide missing records, one that is behind
                # would feign them.
                read_at = record.ts - clock_error(record)
                if number not in samples:
                    outputs += self._liveness.update_late(location, read_at)
                    continue
                # Not before the end of a suspected silence, within which a draining spool's records lie.
                outputs += self._announcer.update(
                    record, location, after=self._liveness.suspected_until(location)
                )
                outputs += self._liveness.update(location, read_at)
                outputs += found[number]
                outputs += self._events.end_recovered(found[number])
        return outputs
