"""Counters, waits and lag of one worker process, for its health file, its metrics and its watchdog."""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from streams.job.memory import JobMemory
from streams.runtime.monitoring.lag_age import LagAges
from streams.runtime.monitoring.node_counts import NodeTotals
from streams.runtime.monitoring.snapshot_counts import SnapshotCounts

# For the metric alone, chosen: ten rounds. The watchdog, which ends workers, has limits of its own.
STALLED_SECONDS = 10.0


@dataclass(slots=True)
class Health:
    """Counters and times (seconds of ``clock``) of one worker process.

    ``age_seconds`` is the age of the oldest message of each topic that was not taken, ``load`` the share of
    its time that the worker was busy; ``member`` returns the worker's id in its consumer group, if known.
    """

    role: str
    clock: Callable[[], float]
    events: Counter[str] = field(default_factory=Counter)
    dead_letters: Counter[tuple[str, str]] = field(default_factory=Counter)
    outputs: Counter[str] = field(default_factory=Counter)
    event_time: dict[str, float] = field(default_factory=dict)
    lag: dict[str, int] = field(default_factory=dict)
    ages: LagAges = field(default_factory=LagAges)
    age_seconds: dict[str, float] = field(default_factory=dict)
    load: float = 0.0
    nodes: NodeTotals = field(default_factory=NodeTotals)
    jobs: JobMemory = field(default_factory=JobMemory)
    snapshots: SnapshotCounts = field(default_factory=SnapshotCounts)
    started: float = 0.0
    last_event: float = 0.0
    last_commit: float = 0.0
    waits: Counter[str] = field(default_factory=Counter)
    member: Callable[[], str] = str

    def __post_init__(self) -> None:
        self.started = self.last_event = self.last_commit = self.clock()

    def took(self, topic: str, partition: int = 0, logged: float | None = None) -> None:
        """Count one message taken from ``topic``, logged at a time (Unix seconds)."""
        self.events[topic] += 1
        if logged is not None:
            self.ages.took((topic, partition), logged)
        self.last_event = self.clock()

    def committed(self) -> None:
        """Note that offsets were committed."""
        self.last_commit = self.clock()

    @contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        """Mark that the worker waits for a server or a rebuild, which is no stall."""
        self.waits[what] += 1
        try:
            yield
        finally:
            # Subtraction drops keys that come to zero: the watchdog tests whether the Counter is empty. The
            # time spent waiting counts neither as a stall nor as a missing commit.
            self.waits -= Counter([what])
            self.last_event = self.last_commit = self.clock()

    @property
    def stalled(self) -> bool:
        """Whether messages wait and none has been taken for ten seconds, for whatever reason."""
        return sum(self.lag.values()) > 0 and self.clock() - self.last_event > STALLED_SECONDS

    def report(self) -> dict[str, object]:
        """Return the state as JSON-ready values."""
        now = self.clock()
        return {
            "role": self.role,
            "member_id": self.member(),
            "uptime_seconds": round(now - self.started, 1),
            "last_event_age_seconds": round(now - self.last_event, 1),
            "last_commit_age_seconds": round(now - self.last_commit, 1),
            "waiting_for": sorted(self.waits),
            "events": dict(self.events),
            "outputs": dict(self.outputs),
            "dead_letters": {f"{topic}/{reason}": n for (topic, reason), n in self.dead_letters.items()},
            "lag_records": dict(self.lag),
            "oldest_unprocessed_seconds": {topic: round(age, 1) for topic, age in self.age_seconds.items()},
            "load": round(self.load, 3),
            "snapshots": {"loaded": self.snapshots.loaded, "written": self.snapshots.written},
            "event_time": {name: round(ts, 3) for name, ts in self.event_time.items() if math.isfinite(ts)},
        }

    def write(self, path: Path) -> None:
        """Replace the health file atomically."""
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps(self.report()))
        fresh.replace(path)
