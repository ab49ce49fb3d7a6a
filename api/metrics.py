"""Prometheus metrics of the API and the notifier, in one registry per process.

Label values are closed sets (route templates, status codes, own ids), never text from telemetry.
"""

from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from slowrank import __version__

_METHODS = frozenset({"GET", "HEAD", "POST", "PATCH", "PUT", "DELETE", "OPTIONS"})


def new_registry() -> CollectorRegistry:
    """Return a registry with ``slowrank_build_info``."""
    registry = CollectorRegistry(auto_describe=True)
    info = Gauge("slowrank_build_info", "The running build.", ["version"], registry=registry)
    info.labels(__version__).set(1)
    return registry


class ApiMetrics:
    """Metrics that the API counts itself."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._requests = Histogram(
            "slowrank_http_request_seconds",
            "Time to answer, by route template.",
            ["method", "route", "status"],
            buckets=(0.005, 0.02, 0.1, 0.5, 2, 10),
            registry=registry,
        )
        self.ingested = Counter(
            "slowrank_samples_ingested_total", "Rows accepted.", ["source"], registry=registry
        )
        self.rejected = Counter(
            "slowrank_samples_rejected_total", "Rows refused.", ["reason"], registry=registry
        )
        # From zero on, so that an increase by a single request can be seen.
        self.rejected.labels("too_many_nodes")
        self.waiting = Gauge(
            "slowrank_ingest_waiting_measurements",
            "Measurements of other systems that wait for the rest of their rounds.",
            registry=registry,
        )
        self.feedback = Counter(
            "slowrank_feedback_total", "Verdicts given by people.", ["verdict"], registry=registry
        )

        self.connections = Gauge("slowrank_api_connections", "Open connections.", registry=registry)
        self.ended = Counter(
            "slowrank_api_connections_ended_total",
            "Connections ended as one too many (address, total) or for waiting (head, body, sending).",
            ["reason"],
            registry=registry,
        )

    def observe(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count one answer."""
        label = method if method in _METHODS else "OTHER"
        self._requests.labels(label, route, f"{status // 100}xx").observe(seconds)


class NotifierMetrics:
    """Metrics that the notifier counts."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.deliveries = Counter(
            "slowrank_webhook_deliveries_total",
            "Delivery attempts by result.",
            ["endpoint", "result"],
            registry=registry,
        )
        self.seconds = Histogram(
            "slowrank_webhook_attempt_seconds",
            "Time of one attempt.",
            buckets=(0.05, 0.2, 1, 5, 15),
            registry=registry,
        )
        self.oldest = Gauge(
            "slowrank_webhook_queue_oldest_seconds", "Age of the oldest due delivery.", registry=registry
        )


class WebhookGauges(Collector):
    """Whether each endpoint is failing, read from the database on every scrape.

    A read that raises one of ``errors`` leaves the gauge out.
    """

    def __init__(self, read: Callable[[], Mapping[str, bool]], errors: type[Exception]) -> None:
        self._read = read
        self._errors = errors

    def describe(self) -> Iterable[Metric]:
        """Return nothing, so that registering does not query the database."""
        return []

    def collect(self) -> Iterable[Metric]:
        """Read the gauge."""
        gauge = GaugeMetricFamily(
            "slowrank_webhook_failing", "Whether deliveries to an endpoint fail.", labels=["endpoint"]
        )
        try:
            for endpoint, failing in self._read().items():
                gauge.add_metric([endpoint], failing)
        except self._errors:
            return []
        return [gauge]


class DatabaseGauges(Collector):
    """Gauges read on every scrape; ``read`` counts open findings by (kind, severity) in the database.

    A read that raises one of ``errors`` leaves the gauges out and sets ``slowrank_database_up`` to 0.
    """

    def __init__(self, read: Callable[[], Mapping[tuple[str, str], float]], errors: type[Exception]) -> None:
        self._read = read
        self._errors = errors

    def describe(self) -> Iterable[Metric]:
        """Return nothing, so that registering does not query the database."""
        return []

    def collect(self) -> Iterable[Metric]:
        """Read the gauges."""
        up = GaugeMetricFamily("slowrank_database_up", "Whether the database answered this scrape.")
        findings = GaugeMetricFamily("slowrank_findings_open", "Open findings.", labels=["kind", "severity"])
        try:
            for (kind, severity), count in self._read().items():
                findings.add_metric([kind, severity], count)
            up.add_metric([], 1)
        except self._errors:
            up.add_metric([], 0)
        return [up, findings]
