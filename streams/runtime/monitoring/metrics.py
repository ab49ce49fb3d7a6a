"""The Prometheus page of a worker. Labels are closed sets, but for the names of the first clusters."""

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from alerts.finding import Finding
from alerts.kinds import KINDS
from slowrank import __version__
from slowrank.page_server import PageServer
from slowrank.settings import Settings
from store.findings.findings import FindingChange
from streams.runtime.faust_app import Role
from streams.runtime.monitoring.capacity import Forecast
from streams.runtime.monitoring.health import Health
from streams.runtime.monitoring.job_metrics import JobMetrics
from streams.runtime.monitoring.node_counts import NodeTotals
from streams.runtime.monitoring.snapshot_counts import SnapshotCounts

log = logging.getLogger(__name__)

Counts = Iterable[tuple[Sequence[str], int]]
"""Label values and how many."""

# Cluster names as labels. Chosen: they come from telemetry, and their number must be bounded.
MAX_CLUSTERS = 64

_OPENED = frozenset({"finding.opened", "finding.reopened"})


class SinkMetrics:
    """Metrics of the storing worker: findings stored, GPU-hours lost, seconds each role is behind."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._opened = Counter(
            "slowrank_findings_opened", "Findings opened or reopened.", ["kind"], registry=registry
        )
        self._seconds = Histogram(
            "slowrank_event_to_finding_seconds",
            "From the onset of what happened to its stored finding, learning and detection included.",
            buckets=(2, 5, 10, 20, 30, 60, 120, 300, 900, 3600),
            registry=registry,
        )
        self._behind = Gauge(
            "slowrank_consumer_lag_seconds",
            "How long the oldest message has waited for a worker of the role.",
            ["role"],
            registry=registry,
        )

        self._capacity = Gauge(
            "slowrank_capacity_used_ratio",
            "Share of the time that the busiest worker of the role is busy.",
            ["role"],
            registry=registry,
        )
        self._behind_in = Gauge(
            "slowrank_capacity_exhausted_seconds",
            "Until the role has too little capacity if its load grows on; +Inf if it does not grow.",
            ["role"],
            registry=registry,
        )

        self._lost = Counter(
            "slowrank_gpu_hours_lost", "GPU-hours lost to findings.", ["cluster"], registry=registry
        )
        self._due: dict[str, float] = {}
        self._clusters: set[str] = set()

    def behind(self, role: str, seconds: float) -> None:
        """Set how many seconds a role is behind."""
        self._behind.labels(role).set(seconds)

    def capacity(self, role: str, forecast: Forecast) -> None:
        """Set how much of its capacity a role uses."""
        self._capacity.labels(role).set(forecast.load)
        self._behind_in.labels(role).set(math.inf if forecast.behind_in is None else forecast.behind_in)

    def saved(self, finding: Finding, change: FindingChange | None, seconds: float) -> None:
        """Count a stored version, ``seconds`` after its onset, if it opened a finding, and what it adds."""
        if change is None:
            return
        if change.event in _OPENED:
            self._opened.labels(counted_kind(finding.kind)).inc()
            self._seconds.observe(seconds)
        cluster = self._cluster(finding.subject.cluster)
        # Hours that move to another finding are counted there again; a counter cannot decrease.
        due = self._due.pop(cluster, 0.0) + change.gpu_hours
        if due > 0:
            self._lost.labels(cluster).inc(due)
        elif due:
            self._due[cluster] = due

    def _cluster(self, name: str) -> str:
        if len(self._clusters) < MAX_CLUSTERS:
            self._clusters.add(name)
        return name if name in self._clusters else "other"


class HealthMetrics(Collector):
    """Metrics of one worker, from its ``Health``."""

    def __init__(self, health: Health, wall: Callable[[], float]) -> None:
        self._health = health
        self._wall = wall

    def collect(self) -> Iterator[Metric]:
        """Yield the metric families."""
        health = self._health
        yield _counter(
            "samples_ingested", "Messages taken.", ("source",), [((t,), n) for t, n in health.events.items()]
        )
        yield _counter(
            "dead_letters", "Messages set aside.", ("topic", "reason"), health.dead_letters.items()
        )
        yield _gauge("consumer_lag_records", "Messages not yet taken.", "topic", dict(health.lag))
        yield _gauge(
            "oldest_unprocessed_seconds",
            "Age of the oldest message not yet taken.",
            "topic",
            dict(health.age_seconds),
        )
        yield GaugeMetricFamily(
            "slowrank_worker_load_ratio", "Share of the time that it is busy.", health.load
        )
        delays = {n: self._wall() - ts for n, ts in health.event_time.items() if math.isfinite(ts)}
        yield _gauge("watermark_delay_seconds", "Wall clock less event time.", "stream", delays)
        age = health.clock() - health.last_commit
        yield GaugeMetricFamily("slowrank_last_commit_age_seconds", "Since the last commit.", age)
        if health.role == "detect":
            yield from _nodes(health.nodes)
            yield from JobMetrics(lambda: health.jobs).collect()
            yield from _snapshots(health.snapshots, self._wall())
        waits = float(bool(health.waits))
        yield GaugeMetricFamily("slowrank_worker_waiting", "1 while a server is away.", waits)
        stalled = float(health.stalled)
        yield GaugeMetricFamily(
            "slowrank_worker_stalled", "1 while messages wait and none is taken.", stalled
        )


def _nodes(present: NodeTotals) -> Iterator[Metric]:
    yield GaugeMetricFamily("slowrank_nodes_reporting", "Nodes with a sample lately.", present.reporting)
    yield GaugeMetricFamily("slowrank_nodes_expected", "Nodes that report or may again.", present.expected)
    yield GaugeMetricFamily("slowrank_series_active", "Series of the nodes that report.", present.series)


def _snapshots(counts: SnapshotCounts, now: float) -> Iterator[Metric]:
    done = {"loaded": counts.loaded, "written": counts.written, "failed": counts.failed}
    yield _counter(
        "snapshots", "Snapshots of partitions.", ("result",), [((name,), n) for name, n in done.items()]
    )
    refused = [((reason,), n) for reason, n in counts.refused.items()]
    yield _counter("snapshots_refused", "Snapshots that were not used.", ("reason",), refused)
    age = now - min(counts.at.values(), default=now)
    yield GaugeMetricFamily("slowrank_snapshot_age_seconds", "Age of the oldest partition's snapshot.", age)
    size = sum(counts.sizes.values())
    yield GaugeMetricFamily("slowrank_snapshot_bytes", "Snapshots on disk, compressed.", size)
    yield CounterMetricFamily("slowrank_snapshot_cpu_seconds", "Spent on snapshots.", counts.seconds)


def new_registry(health: Health, wall: Callable[[], float]) -> CollectorRegistry:
    """Return the registry of a worker; ``wall`` is in Unix seconds."""
    registry = CollectorRegistry()
    registry.register(HealthMetrics(health, wall))
    info = Gauge("slowrank_build_info", "The running build.", ["version"], registry=registry)
    info.labels(__version__).set(1)
    return registry


def serve(settings: Settings, role: Role, registry: CollectorRegistry) -> None:
    """Serve the page if there is to be one; a port that is taken costs the page, not the worker."""
    if not settings.streams_metrics_port:
        return
    # Both workers of a host have one setting; the sink's page is on the port after it.
    port = settings.streams_metrics_port + (role == "sink")
    try:
        page = partial(_page, registry)
        PageServer(settings.metrics_host, port, page, media_type=CONTENT_TYPE_LATEST)
    except OSError as error:
        log.error(
            "no /metrics on %s:%d: %s. Give workers of one host different SLOWRANK_STREAMS_METRICS_PORT.",
            settings.metrics_host,
            port,
            error,
        )


def _page(registry: CollectorRegistry, _: str) -> bytes:
    return generate_latest(registry)


def counted_kind(kind: str) -> str:
    """Return the kind as a label: its own name, that of its family, or ``other``."""
    family = kind.split(".", 1)[0]
    return kind if kind in KINDS else family if family in KINDS else "other"


def _counter(
    name: str, text: str, labels: tuple[str, ...], values: Iterable[tuple[tuple[str, ...], int]]
) -> Metric:
    family = CounterMetricFamily(f"slowrank_{name}", text, labels=labels)
    for label_values, value in values:
        family.add_metric(label_values, value)
    return family


def _gauge(name: str, text: str, label: str, values: dict[str, float]) -> Metric:
    family = GaugeMetricFamily(f"slowrank_{name}", text, labels=[label])
    for label_value, value in values.items():
        family.add_metric([label_value], value)
    return family
