"""How a worker is doing: what it counted, what it waits for, how far behind it is; for people and probes."""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector


@dataclass(slots=True)
class Health:
    """Counters and times (seconds of ``clock``) of one worker process."""

    role: str
    clock: Callable[[], float]
    events: Counter[str] = field(default_factory=Counter)
    dead_letters: Counter[tuple[str, str]] = field(default_factory=Counter)
    outputs: Counter[str] = field(default_factory=Counter)
    event_time: dict[str, float] = field(default_factory=dict)
    lag: dict[str, int] = field(default_factory=dict)
    started: float = 0.0
    last_event: float = 0.0
    last_commit: float = 0.0
    waits: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.started = self.last_event = self.last_commit = self.clock()

    def took(self, topic: str) -> None:
        """Count one message taken from ``topic``."""
        self.events[topic] += 1
        self.last_event = self.clock()

    def committed(self) -> None:
        """Note that offsets were committed."""
        self.last_commit = self.clock()

    @contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        """Say what the worker waits for, so that waiting is not taken for being stuck."""
        self.waits[what] += 1
        try:
            yield
        finally:
            self.waits -= Counter([what])
            self.last_event = self.last_commit = self.clock()

    def report(self) -> dict[str, object]:
        """Return the state as JSON-ready values."""
        now = self.clock()
        return {
            "role": self.role,
            "uptime_seconds": round(now - self.started, 1),
            "last_event_age_seconds": round(now - self.last_event, 1),
            "last_commit_age_seconds": round(now - self.last_commit, 1),
            "waiting_for": sorted(self.waits),
            "events": dict(self.events),
            "outputs": dict(self.outputs),
            "dead_letters": {f"{topic}/{reason}": n for (topic, reason), n in self.dead_letters.items()},
            "lag_records": dict(self.lag),
            "event_time": {name: round(ts, 3) for name, ts in self.event_time.items() if math.isfinite(ts)},
        }

    def write(self, path: Path) -> None:
        """Replace the heartbeat file in one step."""
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps(self.report()))
        fresh.replace(path)


class HealthMetrics(Collector):
    """The same as Prometheus metrics."""

    def __init__(self, health: Health, wall: Callable[[], float]) -> None:
        self._health = health
        self._wall = wall

    def collect(self) -> Iterator[Metric]:
        """Yield the metric families."""
        health, now = self._health, self._health.clock()
        events = CounterMetricFamily("slowrank_samples_ingested", "Messages taken", labels=["source"])
        for topic, n in health.events.items():
            events.add_metric([topic], n)
        yield events
        letters = CounterMetricFamily(
            "slowrank_dead_letters", "Messages set aside", labels=["topic", "reason"]
        )
        for (topic, reason), n in health.dead_letters.items():
            letters.add_metric([topic, reason], n)
        yield letters
        lag = GaugeMetricFamily("slowrank_consumer_lag_records", "Messages not yet taken", labels=["topic"])
        for topic, behind in health.lag.items():
            lag.add_metric([topic], behind)
        yield lag
        delay = GaugeMetricFamily(
            "slowrank_watermark_delay_seconds", "Wall less event time", labels=["stream"]
        )
        for name, ts in health.event_time.items():
            if not math.isfinite(ts):
                continue
            delay.add_metric([name], self._wall() - ts)
        yield delay
        yield GaugeMetricFamily(
            "slowrank_last_commit_age_seconds", "Since the last commit", now - health.last_commit
        )
        yield GaugeMetricFamily(
            "slowrank_worker_waiting", "1 while a server is away", float(bool(health.waits))
        )
