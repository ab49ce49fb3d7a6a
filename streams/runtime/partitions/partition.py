"""One partition of one topic: its stage, its event time, and where in the log it stands."""

import math
from dataclasses import dataclass, field
from typing import Any

from alerts.finding import Finding
from slowrank.telemetry import (
    Heartbeat,
    JobDeclared,
    JobEnded,
    JobNodes,
    JobSteps,
    LoadedMinute,
    NodeAnnounced,
    NodeEvent,
    NodeSample,
    RankPace,
    Record,
    StageMessage,
    StepsReported,
)
from slowrank.telemetry.topics import NODE_EVENTS
from streams.node.events.job_events import end_of
from streams.rollup.message_rows import MessageRow, row_of
from streams.rollup.rollup import RollUp, Rows
from streams.runtime.monitoring.node_counts import NodeCounts
from streams.stage import Buffering, Output, Restorable, Stage
from streams.watermark import Watermark

# Event time between heartbeats. Chosen: half a message a second and partition, two seconds of latency.
HEARTBEAT_SECONDS = 2

# Largest delay from a record's time to the log of a live record. A longer one is a recording being sent or a
# spool being drained. Chosen: far above the seconds that an exporter buffers, far below an outage.
LIVE_SECONDS = 60.0

_CAN_WAIT = NodeAnnounced | LoadedMinute | RankPace | StepsReported | JobNodes | JobDeclared

# Fields of a ``PartitionState`` in its snapshots. When the last message came is of one process only.
_KEPT = ("live", "watermark", "last_beat", "clusters", "senders")


@dataclass(slots=True)
class PartitionState:
    """Feeds the records of one partition to a stage, in order.

    Every other second of event time each cluster seen gets a heartbeat on ``suspicions``: these are rare, so
    that event time would not advance in the finding stage without it. ``received`` is when the partition last
    brought a message, by the worker's clock; ``live`` whether that was logged as soon as it was made;
    ``last_beat`` is the second of the last heartbeat.
    """

    name: str
    stage: Stage
    next_offset: int = 0
    received: float = -math.inf
    live: bool = False
    watermark: Watermark = field(default_factory=Watermark)
    last_beat: int | None = None
    clusters: set[str] = field(default_factory=set)
    senders: NodeCounts = field(default_factory=NodeCounts)

    def snapshot(self) -> Any:
        """Return what ``restore`` needs, and none of the settings; None where the stage gives none."""
        if not isinstance(self.stage, Restorable):
            return None
        return {"stage": self.stage.snapshot(), **{name: getattr(self, name) for name in _KEPT}}

    def restore(self, kept: Any) -> None:
        """Take what ``snapshot`` returned, in this process or another."""
        if not isinstance(self.stage, Restorable):
            raise TypeError("this stage gives no snapshots")
        self.stage.restore(kept["stage"])
        for name in _KEPT:
            setattr(self, name, kept[name])

    def process(self, record: Record | JobEnded, logged: float) -> list[Output | JobEnded]:
        """Process the next record, logged at a time (Unix seconds); return its outputs and the ticks'.

        An event that ends a job also puts out a record for the partition of the job's steps.
        """
        self.live = record.ts > logged - LIVE_SECONDS
        self.clusters.add(record.cluster)
        if isinstance(record, NodeSample):
            self.senders.update(record)
        # Time passes before the record is taken, as in ``Pipeline.process``: live and replay must agree on
        # the order.
        outputs: list[Output | JobEnded] = [*self._pass(self.watermark.advance(record.ts))]
        if self.watermark.passed_again and isinstance(self.stage, Buffering):
            # A worker that reads the log again has only the records' time: what its ticks process here must
            # not be waiting in this state any more, for its outputs are taken to be durable.
            outputs += self.stage.flush()
        outputs += self.stage.process(record)
        if isinstance(record, NodeEvent) and (end := end_of(record)) is not None:
            outputs.append(end)
        return outputs

    def reach(self, event_time: float) -> list[Output]:
        """Advance event time without a record: the partition is read to its end, others are further."""
        return self._pass(self.watermark.reach(event_time))

    def heartbeats(self) -> list[Heartbeat]:
        """Return the last heartbeats again."""
        if self.last_beat is None:
            return []
        ts = float(self.last_beat)
        return [Heartbeat(cluster=c, ts=ts, partition=self.name) for c in sorted(self.clusters)]

    def _pass(self, seconds: range) -> list[Output]:
        outputs: list[Output] = []
        for second in seconds:
            outputs += self.stage.tick(float(second))
            if second % HEARTBEAT_SECONDS == 0:
                self.last_beat = second
                outputs += self.heartbeats()
        return outputs


@dataclass(slots=True)
class RollUpPartition:
    """Rolls up the records of one partition; ``received`` is when the last came, by the worker's clock."""

    name: str
    rollup: RollUp = field(default_factory=RollUp)
    received: float = 0.0
    next_offset: int = 0
    watermark: Watermark = field(default_factory=Watermark)

    def process(self, record: NodeSample | JobSteps | JobEnded, _logged: float) -> Rows:
        """Take the next record; return the rows of the buckets that closed."""
        rows: Rows = []
        for second in self.watermark.advance(record.ts):
            rows += self.rollup.tick(float(second))
        return rows + self.rollup.add(record)


@dataclass(slots=True)
class FindingPartition:
    """Feeds one partition of ``suspicions`` to the finding stage; heartbeats advance its event time.

    Paces and what jobs declare become rows as well.
    """

    name: str
    stage: Stage
    next_offset: int = 0
    clock: "FindingClock" = field(default_factory=lambda: FindingClock())

    @property
    def watermark(self) -> Watermark:
        """Event time of the slowest partition that reports."""
        return self.clock.watermark

    def process(self, message: StageMessage, logged: float) -> list[Finding | MessageRow]:
        """Take the next message, and the log's time at it; return new versions of findings, or a row."""
        rows: list[Finding | MessageRow] = []
        if isinstance(message, RankPace | JobDeclared):
            rows.append(row_of(message))
        outputs: list[Output] = []
        if isinstance(message, Heartbeat):
            for second in self.clock.update(message, logged):
                outputs += self.stage.tick(float(second))
        else:
            outputs += self.stage.process(message)
            # Its time has passed already, and the next heartbeat may take long. Announcements, minutes and
            # paces can wait: those of a fleet come in thousands, and each would have everything since its
            # time folded anew.
            waits = isinstance(message, _CAN_WAIT)
            if message.ts <= self.watermark.time and not waits:
                outputs += self.stage.tick(self.watermark.time)
        return [*rows, *(f for f in outputs if isinstance(f, Finding))]


@dataclass(slots=True)
class _Beat:
    second: float
    arrival: int
    at: float
    of_events: bool


class FindingClock:
    """Event time of the finding stage: that of the slowest partition that still reports.

    A partition is left out when no heartbeat came of it for ``PATIENCE_SECONDS`` in which others came: its
    job has ended, or it has no telemetry any more. Seconds are those of the log, and a gap between two
    heartbeats counts for at most ``LONGEST_GAP_SECONDS``: partitions that catch up side by side after an
    outage are waited for, unless one falls ``ROUNDS`` heartbeats behind. A partition of events counts only
    where none of samples or steps does: its time is that of its last few events, which may be hours ago.
    """

    # Chosen: seven heartbeats of a partition may be late before it is left out.
    PATIENCE_SECONDS = 15.0
    # One heartbeat interval, whichever partition the two heartbeats are of.
    LONGEST_GAP_SECONDS = 2.0
    # Heartbeats of a partition in ten minutes of event time. Chosen: the longest catch-up waited for.
    ROUNDS = 600 // HEARTBEAT_SECONDS

    def __init__(self) -> None:
        self._partitions: dict[tuple[str, str], _Beat] = {}
        self._arrivals = 0
        self._at = self._logged = 0.0
        self.watermark = Watermark()

    def update(self, beat: Heartbeat, logged: float) -> range:
        """Take a heartbeat and the log's time at it; return the whole seconds that passed for the stage."""
        self._arrivals += 1
        self._at += min(max(0.0, logged - self._logged), self.LONGEST_GAP_SECONDS)
        self._logged = max(self._logged, logged)
        self._partitions[beat.cluster, beat.partition] = _Beat(
            beat.ts, self._arrivals, self._at, _is_of_events(beat.partition)
        )
        oldest, first = self._at - self.PATIENCE_SECONDS, self._arrivals - self.ROUNDS * len(self._partitions)
        self._partitions = {
            key: b for key, b in self._partitions.items() if b.at >= oldest and b.arrival > first
        }
        beats = self._partitions.values()
        counted = [b.second for b in beats if not b.of_events] or [b.second for b in beats]
        return self.watermark.reach(min(counted, default=-math.inf))


def _is_of_events(partition: str) -> bool:
    # Topics may have a prefix (``slowrank.telemetry.topics.topic_name``).
    return partition.rpartition(":")[0].endswith(NODE_EVENTS)
