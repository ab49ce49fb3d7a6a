"""One partition of one topic: its stage, its event time, and where in the log it stands."""

import math
from dataclasses import dataclass, field

from alerts.finding import Finding
from detectors.fleet.chronic import Pace
from slowrank.telemetry import (
    Heartbeat,
    JobEnded,
    JobSteps,
    NodeEvent,
    NodeSample,
    RankPace,
    Record,
    StageMessage,
)
from streams.node.job_events import end_of
from streams.rollup.paces import pace_row
from streams.rollup.rollup import RollUp, Rows
from streams.runtime.monitoring.node_counts import Senders
from streams.stage import Output, Stage
from streams.watermark import Watermark

HEARTBEAT_SECONDS = 2

LIVE_SECONDS = 60.0
"""From a record's time until it came into the log: what took longer is a recording that somebody sends, or a
spool that drains, and nobody waits for what follows."""


@dataclass(slots=True)
class PartitionState:
    """Drives a stage with the records of one partition, in order.

    Every other second of event time each cluster seen gets a heartbeat on ``suspicions``: without it the
    finding stage, which sees only rare suspicions, would not know that time has passed. ``heard`` is when the
    partition last brought a message, by the worker's clock, and ``live`` whether that was made just then;
    ``told`` is the second of the last heartbeat.
    """

    name: str
    stage: Stage
    next_offset: int = 0
    heard: float = -math.inf
    live: bool = False
    watermark: Watermark = field(default_factory=Watermark)
    told: int | None = None
    clusters: set[str] = field(default_factory=set)
    senders: Senders = field(default_factory=Senders)

    def process(self, record: Record | JobEnded, logged: float) -> list[Output | JobEnded]:
        """Take the next record, logged at a time (Unix seconds); return what it and the passing of time gave
        rise to. An event that ends a job gives rise to a record for the lane of its steps as well.
        """
        self.live = record.ts > logged - LIVE_SECONDS
        self.clusters.add(record.cluster)
        if isinstance(record, NodeSample):
            self.senders.heard(record)
        # Time passes before the record is taken, as in ``Pipeline.process``: live and replay must agree on
        # the order.
        outputs: list[Output | JobEnded] = [*self._pass(self.watermark.advance(record.ts))]
        outputs += self.stage.process(record)
        if isinstance(record, NodeEvent) and (end := end_of(record)) is not None:
            outputs.append(end)
        return outputs

    def reach(self, event_time: float) -> list[Output]:
        """Let time pass without a record, when the partition is read to its end and others know the time."""
        return self._pass(self.watermark.reach(event_time))

    def heartbeats(self) -> list[Heartbeat]:
        """Return the heartbeats of the second last told: where the lane stands."""
        if self.told is None:
            return []
        ts = float(self.told)
        return [Heartbeat(cluster=c, ts=ts, partition=self.name) for c in sorted(self.clusters)]

    def _pass(self, seconds: range) -> list[Output]:
        outputs: list[Output] = []
        for second in seconds:
            outputs += self.stage.tick(float(second))
            if second % HEARTBEAT_SECONDS == 0:
                self.told = second
                outputs += self.heartbeats()
        return outputs


@dataclass(slots=True)
class RollUpLane:
    """Rolls up the records of one partition; ``heard`` is when it last brought one, by the worker's clock."""

    name: str
    rollup: RollUp = field(default_factory=RollUp)
    heard: float = 0.0
    next_offset: int = 0
    watermark: Watermark = field(default_factory=Watermark)

    def process(self, record: NodeSample | JobSteps | JobEnded, _logged: float) -> Rows:
        """Take the next record; return the rows of the buckets that closed."""
        rows: Rows = []
        for second in self.watermark.advance(record.ts):
            rows += self.rollup.tick(float(second))
        return rows + self.rollup.add(record)


@dataclass(slots=True)
class FindingLane:
    """Feeds one partition of ``suspicions`` to the finding stage; heartbeats are its time.

    Paces pass it by: they are the store's.
    """

    name: str
    stage: Stage
    next_offset: int = 0
    clock: "FindingClock" = field(default_factory=lambda: FindingClock())

    @property
    def watermark(self) -> Watermark:
        """How far the slowest reporting lane is."""
        return self.clock.watermark

    def process(self, message: StageMessage, logged: float) -> list[Finding | Pace]:
        """Take the next message, and the log's time at it; return new versions of findings, or a pace."""
        if isinstance(message, RankPace):
            return [pace_row(message)]
        outputs: list[Output] = []
        if isinstance(message, Heartbeat):
            for second in self.clock.update(message, logged):
                outputs += self.stage.tick(float(second))
        else:
            outputs += self.stage.process(message)
            if message.ts <= self.watermark.time:
                # Its time has passed already; the next heartbeat may be long in coming.
                outputs += self.stage.tick(self.watermark.time)
        return [f for f in outputs if isinstance(f, Finding)]


@dataclass(slots=True)
class _Heard:
    second: float
    arrival: int
    at: float


class FindingClock:
    """Event time of the finding stage: that of the slowest lane that is still reporting.

    A lane is left out when nothing came of it for fifteen seconds in which others were heard: its job has
    ended, or its partition has no telemetry any more. Seconds are those of the log, and a time in which all
    were silent counts for next to nothing: lanes that catch up side by side after an outage are waited for,
    unless one falls ten minutes of event time behind.
    """

    PATIENCE = 15.0
    # Seconds of the log that count between two heartbeats, whoever they are of.
    LONGEST_GAP = 2.0
    # Heartbeats of one lane in ten minutes of event time.
    ROUNDS = 600 // HEARTBEAT_SECONDS

    def __init__(self) -> None:
        self._lanes: dict[tuple[str, str], _Heard] = {}
        self._arrivals = 0
        self._at = self._logged = 0.0
        self.watermark = Watermark()

    def update(self, beat: Heartbeat, logged: float) -> range:
        """Take a heartbeat, and the log's time at it; return the whole seconds that passed for the stage."""
        self._arrivals += 1
        self._at += min(max(0.0, logged - self._logged), self.LONGEST_GAP)
        self._logged = max(self._logged, logged)
        self._lanes[beat.cluster, beat.partition] = _Heard(beat.ts, self._arrivals, self._at)
        oldest, first = self._at - self.PATIENCE, self._arrivals - self.ROUNDS * len(self._lanes)
        self._lanes = {k: h for k, h in self._lanes.items() if h.at >= oldest and h.arrival > first}
        return self.watermark.reach(min((h.second for h in self._lanes.values()), default=-math.inf))
