"""The /metrics of every role, with a value of each metric."""

import psycopg
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from api.metrics import ApiMetrics, DatabaseGauges, NotifierMetrics, WebhookGauges
from api.metrics import new_registry as api_registry
from exporters.metric_help import HELP
from exporters.metrics_page import text
from streams.runtime.monitoring.capacity import Forecast
from streams.runtime.monitoring.health import Health
from streams.runtime.monitoring.metrics import SinkMetrics
from streams.runtime.monitoring.metrics import new_registry as worker_registry


def pages():
    """The page of each role."""
    registries = {
        "api": _api(),
        "notifier": _notifier(),
        "detect": _worker("detect"),
        "sink": _worker("sink"),
    }
    SinkMetrics(registries["sink"]).capacity("sink", Forecast(0.5))
    written = {role: generate_latest(registry).decode() for role, registry in registries.items()}
    return written | {"exporter": text(dict.fromkeys(HELP, 1.0))}


def exported():
    """Names of all series that some role serves."""
    families = [f for page in pages().values() for f in text_string_to_metric_families(page)]
    names = {f"{f.name}_total" if f.type == "counter" else f.name for f in families}
    parts = ("bucket", "sum", "count")
    return names | {f"{f.name}_{part}" for f in families if f.type == "histogram" for part in parts}


def _api():
    registry = api_registry()
    metrics = ApiMetrics(registry)
    registry.register(DatabaseGauges(lambda: {("hang.job", "critical"): 1}, psycopg.OperationalError))
    metrics.observe("GET", "/api/v1/findings", 200, 0.1)
    metrics.ingested.labels("http").inc()
    metrics.rejected.labels("schema").inc()
    return registry


def _notifier():
    registry = api_registry()
    NotifierMetrics(registry).deliveries.labels("wh_1", "delivered").inc()
    registry.register(WebhookGauges(lambda: {"wh_1": True}, psycopg.OperationalError))
    return registry


def _worker(role):
    health = Health(role, lambda: 0.0)
    health.events["node-samples"] = 5
    health.dead_letters["node-samples", "schema"] = 1
    health.lag["node-samples"], health.age_seconds["node-samples"] = 3, 1.5
    health.snapshots.refused["old"] = 1
    return worker_registry(health, lambda: 0.0)
