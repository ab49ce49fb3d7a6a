"""Alertmanager's webhook: alerts about nodes become events of them, others are counted and ignored."""

import json
import time
from datetime import UTC, datetime, timedelta

import httpx
import pytest
from servers.alertmanager import Alertmanager

from api.delivery.receivers.receiver import Notification
from api.delivery.receivers.registry import receiver_named
from api.foreign.alertmanager import Alert, Reader
from tests.api.delivery.receivers.test_receivers import NOW, example
from tests.conftest import running

URL = "/api/v1/ingest/alertmanager"
GO_ZERO = "0001-01-01T00:00:00Z"
BEGAN = "2026-11-20T07:32:40.123456789Z"


def posted(status="firing", annotations=None, **labels):
    return {
        "status": status,
        "labels": {"alertname": "GpuTooHot", "node": "gpu-0423", **labels},
        "annotations": annotations or {},
        "startsAt": BEGAN,
        "endsAt": GO_ZERO,
        "generatorURL": "http://prometheus/graph",
        "fingerprint": "9a1f0c5d7be2443e",
    }


def notification(*alerts, **more):
    """As Alertmanager 0.34 sends it, with fields that this release does not know."""
    known = {"receiver": "slowrank", "status": "firing", "groupKey": "{}", "truncatedAlerts": 0}
    return known | {"version": "4", "alerts": list(alerts), "notification_reason": "x"} | more


@pytest.mark.parametrize(
    ("labels", "subject"),
    [
        ({"gpu": "5"}, {"gpu_index": 5}),
        ({"UUID": "GPU-3f1c9a52"}, {"gpu_uuid": "GPU-3f1c9a52"}),
        ({"device": "nvidia3", "gpu": "3"}, {"gpu_index": 3}),
        ({"device": "mlx5_0", "port": "1"}, {"nic": "mlx5_0", "port": "1"}),
        ({"device": "eth0"}, {"nic": "eth0"}),
        ({"device": "nvme0n1"}, {}),
        ({"xid": "79", "gpu": "1"}, {"kind": "xid.79", "gpu_index": 1}),
        ({"slowrank_kind": "link.nic_errors"}, {"kind": "link.nic_errors"}),
        ({"hpc_job": "812345"}, {"job_id": "812345"}),
    ],
)
def test_labels_name_what_an_alert_is_about(client, sink, labels, subject):
    """A GPU, a port, else the node; the kind by a label, or the number of an XID."""
    answer = client.post(URL, json=notification(posted(**labels)))
    assert (answer.status_code, answer.json()) == (200, {"accepted": 1, "ignored": {}})
    (event,) = sink.records
    always = {"alert": "9a1f0c5d7be2443e", "started_ms": 1795159960123}
    assert event.subject == always | subject
    assert (event.node, event.source, event.code) == ("gpu-0423", "alertmanager", "alert.firing")


def test_texts_and_kind_of_annotations(client, sink):
    """The first of summary, description and message; the severity where it is one of ours."""
    alert = posted(
        annotations={"summary": "92 degrees", "slowrank_kind": "throttle.thermal"}, severity="page"
    )
    client.post(URL, json=notification(alert))
    (event,) = sink.records
    assert (event.message, event.severity) == ("GpuTooHot: 92 degrees", "critical")
    assert event.subject["kind"] == "throttle.thermal"


def test_a_large_group_comes_at_once(client, sink):
    """Alertmanager does not divide it: hundreds of alerts, each with long texts."""
    alerts = [posted(gpu=str(i % 8), annotations={"summary": "x" * 1500}, n=str(i)) for i in range(500)]
    assert client.post(URL, json=notification(*alerts)).json() == {"accepted": 500, "ignored": {}}


def test_an_end_is_an_event_of_the_same_alert(client, sink):
    """Without a fingerprint its labels identify it."""
    for status in ("firing", "resolved"):
        client.post(URL, json=notification(posted(status) | {"fingerprint": ""}))
    first, second = sink.records
    assert (first.code, second.code) == ("alert.firing", "alert.resolved")
    assert first.subject["alert"] == second.subject["alert"] != ""


def test_what_is_not_about_a_node_is_ignored(client, sink):
    """Alertmanager would repeat nothing that was answered with an error, so there is none."""
    alerts = [posted(node=""), posted(), posted(source="slowrank"), posted(cluster="full")]
    answer = client.post(URL, json=notification(*alerts))
    assert answer.json()["accepted"] == 1
    assert answer.json()["ignored"] == {"no_node": 1, "own_alert": 1, "too_many_instances": 1}
    assert [event.cluster for event in sink.records] == ["default"]


def test_our_own_alerts_do_not_come_back(client, sink):
    """What the receivers for Alertmanager send carries the label by which it is recognised."""
    made = Notification("msg_1", "finding.opened", NOW, example(), "http://x/f")
    (alert,) = receiver_body("alertmanager_push", made)
    answer = client.post(URL, json=notification(alert | {"status": "firing"}))
    assert answer.json() == {"accepted": 0, "ignored": {"own_alert": 1}}
    assert client.post(URL, json=receiver_body("alertmanager", made)).json()["accepted"] == 0
    assert sink.records == []


def receiver_body(name, made):
    return json.loads(receiver_named(name).body(made, "http://x"))


def test_a_key_writes_into_its_clusters_only(client_with, sink):
    """The only cluster of a key is the default; another one is refused."""
    client = client_with("telemetry:write", clusters=("a",))
    answer = client.post(URL, json=notification(posted(), posted(cluster="b")))
    assert answer.json() == {"accepted": 1, "ignored": {"forbidden_cluster": 1}}
    assert [event.cluster for event in sink.records] == ["a"]
    assert client_with("findings:write").post(URL, json=notification(posted())).status_code == 403


def test_an_absent_pipeline_is_to_be_tried_again(client, sink):
    """503, which Alertmanager retries; a body of another version is a 422, which it does not."""
    sink.refusal = "no broker"
    assert client.post(URL, json=notification(posted())).status_code == 503
    assert client.post(URL, json=notification(posted(), version="3")).status_code == 422
    assert client.post(URL, json=notification(posted() | {"startsAt": 0})).status_code == 422


@pytest.mark.parametrize("text", ["</script>", "\x00", "a\r\nX: 1", "\u202e", "x" * 100_000, "🔥", ""])
def test_hostile_labels_make_valid_events(text):
    """Names keep their alphabet and length, texts their limit."""
    labels = {"alertname": text, "node": text or "n", "gpu": text, "device": text, "hpc_job": text}
    alert = Alert(True, labels | {"slowrank_kind": text}, {"summary": text}, datetime.now(UTC), text)
    events, ignored = Reader("c").events([alert], datetime.now(UTC).timestamp())
    assert len(events) + ignored.total() == 1
    assert not ignored


@pytest.fixture
def alertmanager(live, new_token):
    """A real Alertmanager that notifies the API."""
    with running(Alertmanager(webhook=f"{live()}{URL}", token=new_token("telemetry:write"))) as server:
        yield server


def received(sink, count):
    until = time.monotonic() + 30
    while len(sink.records) < count:
        assert time.monotonic() < until, sink.records
        time.sleep(0.05)
    return [(one.node, one.code, one.subject["gpu_index"], one.message) for one in sink.records]


@pytest.mark.integration
@pytest.mark.slow
def test_a_real_alertmanager_is_understood(alertmanager, sink):
    """What Prometheus would post to it arrives as an event, and its end as another one of the same alert."""
    labels = {"alertname": "GpuTooHot", "node": "gpu-0423", "gpu": "5", "severity": "warning"}
    alert = {"labels": labels, "annotations": {"summary": "92 degrees"}}
    now = datetime.now(UTC)
    firing = alert | {"startsAt": (now - timedelta(seconds=5)).isoformat()}
    ended = firing | {"endsAt": now.isoformat()}
    for posted_alert, count in ((firing, 1), (ended, 2)):
        answer = httpx.post(f"{alertmanager.url}/api/v2/alerts", json=[posted_alert], trust_env=False)
        answer.raise_for_status()
        found = received(sink, count)
    assert found == [
        ("gpu-0423", code, 5, "GpuTooHot: 92 degrees") for code in ("alert.firing", "alert.resolved")
    ]
    assert len({one.subject["alert"] for one in sink.records}) == 1
