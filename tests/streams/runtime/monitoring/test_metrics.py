"""The Prometheus page of a worker."""

import socket

import pytest
from prometheus_client import CollectorRegistry

from slowrank.settings import Settings
from slowrank.telemetry import Subject
from store.findings.findings import FindingChange
from streams.runtime.monitoring.health import Health
from streams.runtime.monitoring.metrics import MAX_CLUSTERS, SinkMetrics, new_registry, serve
from streams.runtime.monitoring.node_counts import NodeTotals
from tests.streams.files.test_finding_diff import finding


def value(registry, name, **labels):
    return registry.get_sample_value(name, labels)


@pytest.mark.parametrize(
    ("event", "counted"),
    [("finding.opened", 1), ("finding.reopened", 1), ("finding.updated", None), (None, None)],
)
def test_only_what_opens_a_finding_is_counted(event, counted):
    """The time from onset to finding is taken once for each opening, not for every version."""
    registry = CollectorRegistry()
    SinkMetrics(registry).saved(finding(), FindingChange("fnd_1", 1, "open", event), 12.0)
    assert value(registry, "slowrank_findings_opened_total", kind="straggler.fail_slow") == counted
    assert value(registry, "slowrank_event_to_finding_seconds_bucket", le="20.0") == (counted or 0)
    assert value(registry, "slowrank_event_to_finding_seconds_bucket", le="10.0") == 0


@pytest.mark.parametrize(
    ("kind", "label"),
    [
        ("xid.79", "xid.79"),
        ("xid.123456", "xid"),
        ("self.lag", "self"),
        ("'; drop--", "other"),
        ("", "other"),
    ],
)
def test_kinds_are_a_closed_set(kind, label):
    """A sender that invents codes makes no new series."""
    registry = CollectorRegistry()
    SinkMetrics(registry).saved(finding(kind=kind), FindingChange("fnd_1", 1, "open", "finding.opened"), 1.0)
    assert value(registry, "slowrank_findings_opened_total", kind=label) == 1


def test_a_worker_is_stalled_when_messages_wait_and_none_is_taken():
    """Nothing to read is no stall; nor is a lag that is being worked off."""
    now = [0.0]
    health = Health("detect", lambda: now[0])
    registry = new_registry(health, lambda: 100.0)
    now[0] = 60.0
    assert value(registry, "slowrank_worker_stalled") == 0
    health.lag = {"node-samples": 5}
    assert value(registry, "slowrank_worker_stalled") == 1
    assert value(registry, "slowrank_consumer_lag_records", topic="node-samples") == 5
    health.took("node-samples")
    assert value(registry, "slowrank_worker_stalled") == 0
    assert value(registry, "slowrank_samples_ingested_total", source="node-samples") == 1
    health.event_time = {"node-samples:0": 90.0, "job-steps:0": float("-inf")}
    assert value(registry, "slowrank_watermark_delay_seconds", stream="node-samples:0") == 10.0
    assert value(registry, "slowrank_watermark_delay_seconds", stream="job-steps:0") is None


def test_a_port_that_is_taken_costs_the_page_and_not_the_worker(caplog):
    """A second worker on a host goes on, and its log says what to set."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        serve(Settings(streams_metrics_port=port), "detect", CollectorRegistry())
    assert "SLOWRANK_STREAMS_METRICS_PORT" in caplog.text


def test_lost_gpu_hours_add_up_by_cluster():
    """What a version adds is counted once; clusters beyond the first ones share a label."""
    registry = CollectorRegistry()
    metrics = SinkMetrics(registry)
    for number in range(MAX_CLUSTERS + 2):
        subject = Subject(type="node", cluster=f"c{number}", node="n")
        for change in (
            FindingChange("f", 1, "open", None, 1.5),
            FindingChange("f", 2, "open", None, 0.5),
            None,
        ):
            metrics.saved(finding(subject=subject), change, 1.0)
    assert value(registry, "slowrank_gpu_hours_lost_total", cluster="c0") == 2.0
    assert value(registry, "slowrank_gpu_hours_lost_total", cluster="other") == 4.0


def test_gpu_hours_that_move_to_another_finding_are_counted_once():
    """A hang of 3 GPU-hours becomes part of an XID's finding, which goes on to 5: the counter ends at 5."""
    registry = CollectorRegistry()
    metrics = SinkMetrics(registry)
    for gpu_hours in (3.0, -3.0, 2.0, 3.0):
        metrics.saved(finding(), FindingChange("f", 1, "open", None, gpu_hours), 1.0)
    assert value(registry, "slowrank_gpu_hours_lost_total", cluster=finding().subject.cluster) == 5.0


@pytest.mark.parametrize(("role", "shown"), [("detect", 3.0), ("sink", None)])
def test_nodes_are_shown_by_who_knows_them(role, shown):
    """The detecting worker; the other has no page of them."""
    health = Health(role, lambda: 0.0)
    health.nodes = NodeTotals(reporting=3, expected=4, series=90)
    registry = new_registry(health, lambda: 0.0)
    assert value(registry, "slowrank_nodes_reporting") == shown
    assert value(registry, "slowrank_nodes_expected") == (shown and 4.0)
    assert value(registry, "slowrank_series_active") == (shown and 90.0)
