"""The contract every webhook format keeps, over ordinary and hostile findings."""

import json
import math
from datetime import UTC, datetime
from typing import Any, get_args

import pytest

from alerts.finding import Action, BlastRadius, Cause, Finding, finding_id
from alerts.notify import EventType
from api.formats import FORMATS, MAX_BODY, Event, alert_labels, body, fit
from api.sample import TYPE as SAMPLE
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


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("which", FINDINGS)
def test_every_format_keeps_the_contract(name, which):
    """Body is strict JSON of at most 20 kB, the same for the same event, and names finding and subject."""
    event = Event("msg_01", "finding.opened", NOW, FINDINGS[which])
    content_type, data = body(name, event, "https://slowrank.example.org/")

    assert content_type.endswith("json")
    assert len(data) <= MAX_BODY
    parsed = json.loads(data, parse_constant=lambda c: pytest.fail(f"{c} is not JSON"))
    assert isinstance(parsed, dict)
    assert (content_type, data) == body(name, event, "https://slowrank.example.org/")
    if which == "ordinary":
        assert "gpu-0423 GPU 5" in data.decode()


def test_standard_carries_the_finding_unchanged():
    """The default format's data is the finding.v1 object itself."""
    event = Event("msg_01", "finding.opened", NOW, FINDINGS["ordinary"])
    parsed = json.loads(body("standard", event, "https://x")[1])
    data = json.loads(json.dumps(FINDINGS["ordinary"]))
    assert parsed == {"type": "finding.opened", "timestamp": "2026-11-20T07:34:02Z", "data": data}


def test_cloudevents_has_the_required_attributes():
    """id, source, specversion and type are there; the id is the webhook's."""
    event = Event("msg_01", "finding.opened", NOW, FINDINGS["ordinary"])
    parsed = json.loads(body("cloudevents", event, "https://x")[1])
    assert parsed["id"] == "msg_01"
    assert parsed["specversion"] == "1.0"
    assert parsed["source"] == "//slowrank/prod-a"
    assert parsed["type"] == "io.slowrank.finding.opened.v1"
    assert parsed["subject"] == "gpu-0423/gpu/5"


def alertmanager(finding, happened="finding.opened"):
    return json.loads(body("alertmanager", Event("m", happened, NOW, finding), "https://x")[1])


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
    told = [alertmanager(finding) for finding in life]
    assert [each["status"] for each in told] == ["firing", "firing", "firing", "resolved"]
    assert [each["alerts"][0]["status"] for each in told] == [each["status"] for each in told]
    assert {str((e["groupKey"], e["groupLabels"], e["commonLabels"])) for e in told} == {
        str((told[0]["groupKey"], alert_labels(life[0]), alert_labels(life[0])))
    }
    alerts = [each["alerts"][0] for each in told]
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
    """Two GPUs of one job with the same trouble: the end of one says nothing of the other."""
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
def test_alertmanager_says_why_it_is_sent(happened, status, reason):
    """In Alertmanager's words, which are few: what it would not send has the reason ``unknown``."""
    resolved_at = 1795161000.0 if status in ("resolved", "expired") else None
    finding = example(status=status, resolved_at=resolved_at)
    parsed = json.loads(body("alertmanager", Event("m", happened, NOW, finding), "https://x")[1])
    assert parsed["notification_reason"] == reason


def test_the_reason_of_every_event_is_told_here():
    """A new type of event is not forgotten in the list above."""
    assert {happened for happened, _, _ in REASONS} == {*get_args(EventType), SAMPLE}


def test_slack_escapes_and_shortens():
    """No inserted string can mention a channel, and Slack's length limits hold."""
    parsed = json.loads(body("slack", Event("m", "t", NOW, FINDINGS["hostile"]), "https://x")[1])
    assert "<!" not in json.dumps(parsed)
    header, facts, action, _ = parsed["blocks"]
    assert len(header["text"]["text"]) <= 150
    assert all(len(field["text"]) <= 2000 for field in facts["fields"])
    assert len(action["text"]["text"]) <= 3000
    assert "\x00" not in parsed["text"]


@pytest.mark.parametrize(
    ("happened", "begins"),
    [
        ("finding.opened", "CRITICAL gpu-0423"),
        ("finding.escalated", "Escalated: CRITICAL gpu-0423"),
        ("finding.acknowledged", "Acknowledged: CRITICAL gpu-0423"),
        ("finding.feedback", "Feedback: CRITICAL gpu-0423"),
    ],
)
def test_slack_tells_an_opening_from_what_comes_after(happened, begins):
    """A channel that asked for acknowledgements does not take one for another finding."""
    parsed = json.loads(body("slack", Event("m", happened, NOW, FINDINGS["ordinary"]), "https://x")[1])
    assert parsed["text"].startswith(begins)


def test_fit_says_that_it_cut():
    """A finding that is too long keeps its identity and says that it was shortened."""
    small = fit(FINDINGS["huge"])
    assert small["truncated"] is True
    assert small["id"] == FINDINGS["huge"]["id"]
    assert fit(FINDINGS["ordinary"]) == FINDINGS["ordinary"]
