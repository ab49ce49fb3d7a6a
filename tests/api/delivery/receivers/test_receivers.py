"""The contract that every receiver keeps, over ordinary and hostile findings; then what each adds to it."""

import json
import math
from datetime import UTC, datetime
from typing import Any, get_args

import pytest

from alerts.finding import Action, BlastRadius, Cause, Finding, finding_id
from alerts.notify import EventType
from api.delivery.receivers.alertmanager import alert_labels
from api.delivery.receivers.receiver import MAX_BODY, Notification, fit
from api.delivery.receivers.registry import RECEIVERS, names, receiver_named
from api.delivery.sample_event import TYPE as SAMPLE
from slowrank.telemetry.records import Evidence, Subject

NOW = datetime(2026, 11, 20, 7, 34, 2, tzinfo=UTC)
HOSTILE = '</script><!channel> *x* `y` \x00\r\nX-Evil: 1 \u202e "\'{{7*7}} {job="a"} & 🔥'


def example(**changes):
    fields: dict[str, Any] = {
        "id": finding_id("prod-a/gpu/GPU-1/straggler.fail_slow", 1795160000.0),
        "dedup_key": "prod-a/gpu/GPU-1/straggler.fail_slow",
        "kind": "straggler.fail_slow",
        "title": "gpu-0423 GPU 5 (rank 3389) is 1.31x slower than 127 peers",
        "severity": "critical",
        "status": "open",
        "subject": Subject(type="gpu", cluster="prod-a", node="gpu-0423", gpu_index=5, job_id="812345"),
        "onset": 1795160000.0,
        "onset_lo": 1795159990.0,
        "onset_hi": 1795160010.0,
        "detected_at": 1795160080.0,
        "last_seen_at": 1795160090.0,
        "detector": "peer_step",
        "slowdown_ratio": 1.31,
        "gpu_hours_lost_per_hour": 969.3,
        "confidence": 0.97,
        "cause": Cause("throttle.thermal", 0.93),
        "blast_radius": BlastRadius(jobs=("812345",), ranks=4096),
        "action": Action("DRAIN_NODE", "Drain gpu-0423.", ("scontrol update nodename=gpu-0423",)),
        "evidence": (Evidence(metric="compute_seconds", unit="s", detector="peer_step", value=2.9),),
    } | changes
    return Finding(**fields).to_json()


FINDINGS = {
    "ordinary": example(),
    "resolved": example(status="resolved", resolved_at=1795161000.0),
    "bare": example(
        cause=None, gpu_hours_lost_per_hour=None, evidence=(), subject=Subject(type="node", cluster="c")
    ),
    "hostile": example(
        title=HOSTILE * 3,
        subject=Subject(type="gpu", cluster=HOSTILE, node=HOSTILE, job_id=HOSTILE),
        action=Action("WATCH", HOSTILE * 500, (HOSTILE,) * 50),
        cause=Cause(HOSTILE, math.nan),
    ),
    "huge": example(
        title="x" * 100_000,
        action=Action("WATCH", "y" * 100_000),
        blast_radius=BlastRadius(jobs=("j" * 10_000,) * 20, other_findings=("fnd_" + "0" * 26,) * 5000),
        evidence=tuple(
            Evidence(metric=f"m{i}", unit="s", detector="d", value=math.inf, note="n" * 500)
            for i in range(200)
        ),
    ),
}


def body(name, notification):
    return receiver_named(name).body(notification, "https://slowrank.example.org/")


@pytest.fixture(params=RECEIVERS, ids=names())
def receiver(request):
    """Each receiver of the list in turn."""
    return request.param


@pytest.mark.parametrize("which", FINDINGS)
@pytest.mark.parametrize("happened", [*get_args(EventType), SAMPLE, "finding.of_a_later_release"])
def test_every_receiver_keeps_the_contract(receiver, which, happened):
    """The body is strict JSON within its limit, an object or a list, the same for the same notification.

    Over HTTP that is 20 kB. A receipt of another receiver and long plots change nothing of this.
    """
    link = "https://slowrank.example.org/findings/fnd_1?t=1.2"
    earlier = [FINDINGS[which] | {"severity": severity} for severity in ("error", "warning", "info")]
    more: dict[str, Any] = {
        "earlier": earlier,
        "receipt": '{"of": "another"}',
        "plot": "<svg>ü</svg>" * 100_000,
    }
    notification = Notification("msg_01", happened, NOW, FINDINGS[which], link, **more)
    data = receiver.body(notification, "https://slowrank.example.org/")

    assert receiver.content_type.endswith("json")
    assert len(data) <= receiver.max_body
    assert receiver.max_body == MAX_BODY or receiver.transport != "http"
    parsed = json.loads(data, parse_constant=lambda c: pytest.fail(f"{c} is not JSON"))
    assert isinstance(parsed, dict | list)
    assert data == receiver.body(notification, "https://slowrank.example.org")
    if which == "ordinary":
        assert "gpu-0423 GPU 5" in data.decode()


def test_every_receiver_has_one_name(receiver):
    """The name, by which people choose it, is a plain word and leads back to the receiver."""
    assert receiver.name.isidentifier()
    assert receiver.name == receiver.name.lower()
    assert receiver_named(receiver.name) is receiver


def test_an_unknown_name_lists_the_names():
    """Whoever misspells one reads the right ones."""
    with pytest.raises(ValueError, match="'telegraph'; choose one of standard, cloudevents"):
        receiver_named("telegraph")


def test_standard_carries_the_finding_unchanged():
    """The default receiver's data is the finding.v1 object itself."""
    notification = Notification("msg_01", "finding.opened", NOW, FINDINGS["ordinary"])
    parsed = json.loads(body("standard", notification))
    data = json.loads(json.dumps(FINDINGS["ordinary"]))
    assert parsed == {"type": "finding.opened", "timestamp": "2026-11-20T07:34:02Z", "data": data}


def test_cloudevents_has_the_required_attributes():
    """id, source, specversion and type are there; the id is the webhook's."""
    notification = Notification("msg_01", "finding.opened", NOW, FINDINGS["ordinary"])
    parsed = json.loads(body("cloudevents", notification))
    assert parsed["id"] == "msg_01"
    assert parsed["specversion"] == "1.0"
    assert parsed["source"] == "//slowrank/prod-a"
    assert parsed["type"] == "io.slowrank.finding.opened.v1"
    assert parsed["subject"] == "gpu-0423/gpu/5"


def alertmanager(finding, happened="finding.opened"):
    return json.loads(body("alertmanager", Notification("m", happened, NOW, finding)))


def test_an_alert_is_the_same_from_its_opening_to_its_end():
    """Labels, fingerprint and group stay while severity, kind, place and numbers of the finding change."""
    placed = Subject(
        type="gpu", cluster="prod-a", node="gpu-0423", gpu_index=5, rack="r1", switch="s1", job_id="9"
    )
    life = [
        example(severity="warning"),
        example(severity="critical", slowdown_ratio=2.0),
        example(kind="hardware.gpu_fault", subject=placed),
        example(kind="hardware.gpu_fault", severity="error", status="resolved", resolved_at=1795161000.0),
    ]
    bodies = [alertmanager(finding) for finding in life]
    assert [each["status"] for each in bodies] == ["firing", "firing", "firing", "resolved"]
    assert [each["alerts"][0]["status"] for each in bodies] == [each["status"] for each in bodies]
    assert {str((e["groupKey"], e["groupLabels"], e["commonLabels"])) for e in bodies} == {
        str((bodies[0]["groupKey"], alert_labels(life[0]), alert_labels(life[0])))
    }
    alerts = [each["alerts"][0] for each in bodies]
    assert {str((alert["labels"], alert["fingerprint"], alert["startsAt"])) for alert in alerts} == {
        str((alert_labels(life[0]), alerts[0]["fingerprint"], alerts[0]["startsAt"]))
    }
    assert alerts[0]["endsAt"] == "0001-01-01T00:00:00Z"
    assert alerts[3]["endsAt"] == life[3]["resolved_at"]


def test_what_changes_is_an_annotation():
    """Severity, kind and place stand where they may change."""
    annotations = alertmanager(FINDINGS["ordinary"])["alerts"][0]["annotations"]
    assert {name: annotations[name] for name in ("severity", "kind", "node", "gpu", "job_id", "subject")} == {
        "severity": "critical",
        "kind": "straggler.fail_slow",
        "node": "gpu-0423",
        "gpu": "5",
        "job_id": "812345",
        "subject": "gpu-0423/gpu/5",
    }


def test_two_findings_are_two_alerts_in_two_groups():
    """Two GPUs of one job with the same trouble: the end of one does not end the other."""
    one = alertmanager(FINDINGS["ordinary"])
    two = alertmanager(example(id=finding_id("prod-a/gpu/GPU-2/straggler.fail_slow", 1795160000.0)))
    for name in ("groupKey", "groupLabels"):
        assert one[name] != two[name]
    assert one["alerts"][0]["fingerprint"] != two["alerts"][0]["fingerprint"]


def test_identity_does_not_depend_on_length():
    """A finding that has to be shortened is still the same alert."""
    cluster = "c" * 200
    short = example(subject=Subject(type="gpu", cluster=cluster, node="n", gpu_index=1))
    long = short | {"title": "x" * 100_000}
    assert alertmanager(short)["groupKey"] == alertmanager(long)["groupKey"]


REASONS = [
    ("finding.opened", "open", "first notification"),
    ("finding.reopened", "open", "first notification"),
    ("finding.escalated", "open", "new alerts added"),
    ("finding.escalated", "acknowledged", "new alerts added"),
    ("finding.updated", "open", "unknown"),
    ("finding.acknowledged", "acknowledged", "unknown"),
    ("finding.feedback", "open", "unknown"),
    ("finding.resolved", "resolved", "all alerts resolved"),
    ("finding.resolved", "expired", "all alerts resolved"),
    ("finding.feedback", "resolved", "unknown"),
    (SAMPLE, "open", "first notification"),
]


@pytest.mark.parametrize(("happened", "status", "reason"), REASONS)
def test_alertmanager_gets_a_reason(happened, status, reason):
    """One of Alertmanager's own; an event it would not send has the reason ``unknown``."""
    resolved_at = 1795161000.0 if status in ("resolved", "expired") else None
    finding = example(status=status, resolved_at=resolved_at)
    parsed = json.loads(body("alertmanager", Notification("m", happened, NOW, finding)))
    assert parsed["notification_reason"] == reason


def test_every_event_has_its_reason_above():
    """A new type of event is not forgotten in the list above."""
    assert {happened for happened, _, _ in REASONS} == {*get_args(EventType), SAMPLE}


def test_fit_marks_what_it_cut():
    """A finding that is too long keeps its identity and is marked as shortened."""
    small = fit(FINDINGS["huge"])
    assert small["truncated"] is True
    assert small["id"] == FINDINGS["huge"]["id"]
    assert fit(FINDINGS["ordinary"]) == FINDINGS["ordinary"]
