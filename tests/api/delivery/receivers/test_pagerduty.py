"""PagerDuty Events API v2: the body within the documented limits, and the life of an alert there."""

import asyncio
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import get_args

import pytest

from alerts.config import FindingConfig
from alerts.finding import Action
from alerts.notify import DEFAULT_EVENTS, EventType
from api.app import create_app
from api.delivery.receivers.receiver import Notification
from api.delivery.receivers.registry import receiver_named
from store.findings import findings
from tests.api.delivery.receivers.people import acknowledge
from tests.api.delivery.receivers.test_receivers import FINDINGS, example

KEY = "0123456789abcdefABCDEF0123456789"
LINK = "https://slowrank.example.org/findings/fnd_1?t=1.2"


def delivery(finding, happened, receipt=""):
    at = datetime(2026, 11, 20, 7, 34, 2, tzinfo=UTC)
    notification = Notification("msg_01", happened, at, finding, LINK, KEY, receipt=receipt)
    sent = json.loads(receiver_named("pagerduty").body(notification, "https://slowrank.example.org"))
    return sent | {"bodies": [one["body"] for one in sent["requests"]]}


def event(finding, happened="finding.opened"):
    """The one event of a delivery about an alert that PagerDuty has as it is."""
    (one,) = delivery(finding, happened, receipt=finding["severity"])["bodies"]
    return one


def test_a_trigger_carries_what_the_person_on_call_needs():
    """Title, severity, place, links, and cost, cause and action as details."""
    command = "scontrol update nodename=gpu-0423"
    runbook = "https://docs.example.org/r"
    finding = example(action=Action("DRAIN_NODE", "Drain gpu-0423.", (command,), runbook_url=runbook))
    got = event(finding)
    assert (got["routing_key"], got["event_action"], got["dedup_key"]) == (KEY, "trigger", finding["id"])
    assert (got["client"], got["client_url"]) == ("slowrank", LINK)
    assert got["links"] == [{"href": LINK, "text": "Finding"}, {"href": runbook, "text": "Runbook"}]
    details = got["payload"].pop("custom_details")
    assert got["payload"] == {
        "summary": finding["title"],
        "severity": "critical",
        "source": "gpu-0423",
        "timestamp": finding["detected_at"],
        "component": "gpu-0423/gpu/5",
        "group": "prod-a",
        "class": "straggler.fail_slow",
    }
    assert details["Cost"] == "969.3 GPU-h per hour"
    assert details["Why"] == "throttle.thermal (93 %)"
    assert details["Commands"] == [command]


TRIGGER = {"routing_key", "event_action", "dedup_key", "payload", "client", "client_url", "links", "images"}
PAYLOAD = {"summary", "source", "severity", "timestamp", "component", "group", "class", "custom_details"}


def refusal(sent):
    """Return what of an event the reference of the Events API v2 does not allow; "" for nothing.

    Of a key 32 characters, of a ``dedup_key`` 255, of a summary 1,024, of a body 512 kB; four severities.
    """
    payload = sent.get("payload", {})
    tests = {
        "routing_key": len(sent["routing_key"]) == 32,
        "event_action": sent["event_action"] in ("trigger", "acknowledge", "resolve"),
        "dedup_key": 0 < len(sent["dedup_key"]) <= 255,
        "fields": set(sent) <= TRIGGER and set(payload) <= PAYLOAD,
        "payload": sent["event_action"] != "trigger" or {"summary", "source", "severity"} <= set(payload),
        "summary": 0 < len(payload.get("summary", "x")) <= 1024,
        "source": payload.get("source", "x") != "",
        "severity": payload.get("severity", "info") in ("critical", "error", "warning", "info"),
        "timestamp": datetime.fromisoformat(payload.get("timestamp", "2026-11-20T00:00:00Z")).tzinfo
        is not None,
        "links": all(link["href"].startswith("http") and link["text"] for link in sent.get("links", ())),
        "size": len(json.dumps(sent).encode()) <= 512_000,
    }
    return ", ".join(name for name, passed in tests.items() if not passed)


@pytest.mark.parametrize(
    "finding", [*FINDINGS.values(), example(title=""), example(title="\U0001f525" * 5000)]
)
@pytest.mark.parametrize("happened", get_args(EventType))
@pytest.mark.parametrize("status", ["open", "acknowledged", "resolved", "expired"])
@pytest.mark.parametrize("severity", ["critical", "error", "warning", "info"])
def test_events_keep_the_reference(finding, happened, status, severity):
    """Whatever the finding is called, in every state, and where the alert is not open yet."""
    changed = finding | {"severity": severity, "status": status}
    for receipt in ("", severity):
        sent = delivery(changed, happened, receipt)["bodies"]
        assert sent
        assert {refusal(one) for one in sent} == {""}


ACTIONS = [
    ("finding.opened", "open", "trigger"),
    ("finding.escalated", "open", "trigger"),
    ("finding.escalated", "acknowledged", "trigger"),
    ("finding.updated", "open", "trigger"),
    ("finding.updated", "acknowledged", "acknowledge"),
    ("finding.acknowledged", "acknowledged", "acknowledge"),
    ("finding.feedback", "acknowledged", "acknowledge"),
    ("finding.feedback", "resolved", "resolve"),
    ("finding.resolved", "resolved", "resolve"),
    ("finding.resolved", "expired", "resolve"),
    ("finding.reopened", "open", "trigger"),
    ("finding.of_a_later_release", "open", "trigger"),
]


@pytest.mark.parametrize(("happened", "status", "action"), ACTIONS)
def test_the_action_follows_the_state(happened, status, action):
    """Only new trouble triggers an acknowledged alert again; every end resolves it."""
    resolved_at = 1795161000.0 if status in ("resolved", "expired") else None
    got = event(example(status=status, resolved_at=resolved_at), happened)
    assert got["event_action"] == action
    if action != "trigger":
        assert set(got) == {"routing_key", "event_action", "dedup_key"}


@pytest.mark.parametrize(
    ("receipt", "actions"),
    [
        ("critical", ["acknowledge"]),
        ("error", ["trigger", "acknowledge"]),
        ("", ["trigger", "acknowledge"]),
        ("ended", ["trigger", "acknowledge"]),
    ],
)
def test_an_acknowledgement_opens_the_alert_first_where_it_is_not_open(receipt, actions):
    """It may have superseded the opening, the relapse or the higher severity before that was sent."""
    sent = delivery(example(status="acknowledged"), "finding.acknowledged", receipt)
    assert [one["event_action"] for one in sent["bodies"]] == actions
    assert sent["receipt"] == "critical"
    assert sent["bodies"][0].get("payload", {}).get("severity", "critical") == "critical"


class Alerts:
    """PagerDuty's documented rules: a key opens an alert, which later events of that key change."""

    def __init__(self):
        self.open = {}
        self.opened = 0

    def take(self, got):
        sent = json.loads(got.body)
        assert sent["routing_key"] == KEY
        key, action = sent["dedup_key"], sent["event_action"]
        if action == "trigger":
            self.opened += key not in self.open
            self.open[key] = (sent["payload"]["severity"], self.open.get(key, ("", "triggered"))[1])
        elif action == "acknowledge" and key in self.open:
            self.open[key] = (self.open[key][0], "acknowledged")
        elif action == "resolve":
            self.open.pop(key, None)


@pytest.fixture
def pagerduty(client, settings, pool, start_receiver):
    """The other end, with a webhook to it that was added over the API."""
    alerts = Alerts()
    receiver = start_receiver(before_answer=alerts.take, answers=[(202, {}, b'{"status":"success"}')])
    client._app = create_app(settings.model_copy(update={"webhook_allow_ports": (receiver.port,)}), pool)
    asked = sorted(DEFAULT_EVENTS | {"finding.acknowledged"})
    body = {"url": receiver.url, "format": "pagerduty", "secret": KEY, "events": asked}
    made = client.post("/api/v1/webhooks", json=body)
    assert made.status_code == 201, made.text
    assert "secret" not in made.json()
    return alerts, receiver, made.json()["id"]


def test_an_alert_lives_as_long_as_its_finding(client, pagerduty, pool, save_finding, notifier):
    """Opened, acknowledged, escalated, of another kind, resolved, back again: one alert, then one more."""
    alerts, receiver, _ = pagerduty
    sender = notifier(receiver)[0]
    finding = save_finding(severity="error")

    def save(seconds, **changes):
        nonlocal finding
        finding = replace(finding, last_seen_at=finding.onset + seconds, **changes)
        with pool.connection() as conn:
            findings.save(conn, finding, FindingConfig())
        asyncio.run(sender.drain())

    asyncio.run(sender.drain())
    assert alerts.open == {finding.id: ("error", "triggered")}
    acknowledge(client, finding)
    asyncio.run(sender.drain())
    assert alerts.open == {finding.id: ("error", "acknowledged")}
    save(40, severity="critical", kind="hardware.gpu_fault")
    assert alerts.open == {finding.id: ("critical", "acknowledged")}
    save(60, status="resolved", resolved_at=finding.onset + 60)
    assert (alerts.open, alerts.opened) == ({}, 1)
    save(90, status="open", resolved_at=None, occurrences=2)
    assert (alerts.open, alerts.opened) == ({finding.id: ("critical", "triggered")}, 2)
    assert not any("webhook-signature" in got.headers for got in receiver.got)


def test_an_acknowledgement_that_supersedes_the_opening_opens_the_alert(
    client, pagerduty, save_finding, notifier
):
    """A person was faster than the notifier: the alert is there, and acknowledged."""
    alerts, receiver, _ = pagerduty
    sender = notifier(receiver)[0]
    finding = save_finding(severity="error")
    acknowledge(client, finding)
    asyncio.run(sender.drain())
    assert alerts.open == {finding.id: ("error", "acknowledged")}
    assert len(receiver.got) == 2
    assert len({got.headers["webhook-id"] for got in receiver.got}) == 1


def test_a_delivery_is_sent_again_from_its_first_event(client, pagerduty, save_finding, notifier, clock):
    """The trigger was accepted and the acknowledgement was not: both are sent again."""
    alerts, receiver, _ = pagerduty
    receiver.answers = [(202, {}, b""), (500, {}, b""), (202, {}, b"")]
    sender = notifier(receiver)[0]
    finding = save_finding(severity="error")
    acknowledge(client, finding)
    asyncio.run(sender.drain())
    assert len(receiver.got) == 2
    clock.ahead = timedelta(seconds=20)
    asyncio.run(sender.drain())
    actions = [json.loads(got.body)["event_action"] for got in receiver.got]
    assert actions == ["trigger", "acknowledge"] * 2
    assert alerts.open == {finding.id: ("error", "acknowledged")}


def test_the_key_is_needed_and_never_shown(client, pagerduty, pool, save_finding, notifier):
    """Without a well-formed key there is no webhook; a new key replaces the old one at once."""
    _, receiver, made = pagerduty
    hooks = "/api/v1/webhooks"
    form = "format pagerduty needs as secret a PagerDuty integration key: 32 letters and digits; "
    for wrong, why in (
        ({}, "none was sent"),
        ({"secret": KEY + "0"}, "the length of this one is 33"),
        ({"secret": ""}, "none was sent"),
        ({"secret": f"{KEY}\n"}, "the length of this one is 33, with spaces or line ends around it"),
    ):
        refused = client.post(hooks, json={"url": receiver.url, "format": "pagerduty"} | wrong)
        assert refused.status_code == 409
        assert refused.json()["errors"][0]["pointer"] == "#/body/secret"
        assert refused.json()["errors"][0]["detail"] == form + why
        assert KEY not in refused.text
    assert client.post(hooks, json={"url": receiver.url, "secret": KEY}).status_code == 409
    assert client.patch(f"{hooks}/{made}", json={"format": "slack"}).status_code == 409
    assert client.post(f"{hooks}/{made}/secret").status_code == 409

    new = client.post(f"{hooks}/{made}/secret", json={"secret": KEY[::-1]})
    assert (new.status_code, "secret" in new.json()) == (201, False)
    receiver.before_answer = lambda got: None
    save_finding()
    asyncio.run(notifier(receiver)[0].drain())
    assert json.loads(receiver.got[-1].body)["routing_key"] == KEY[::-1]
    shown = [client.get(path).text for path in (hooks, f"{hooks}/{made}", "/api/v1/audit")]
    assert not any(key in text for key in (KEY, KEY[::-1]) for text in shown)


def test_the_key_goes_to_no_other_server(client, pagerduty, settings, pool, start_receiver):
    """Who may change a webhook does not get the key that the API never shows; the path may change."""
    _, receiver, made = pagerduty
    other = start_receiver()
    ports = (receiver.port, other.port)
    client._app = create_app(settings.model_copy(update={"webhook_allow_ports": ports}), pool)
    refused = client.patch(f"/api/v1/webhooks/{made}", json={"url": other.url})
    assert refused.status_code == 409
    assert refused.json()["errors"][0]["pointer"] == "#/body/url"
    moved = client.patch(f"/api/v1/webhooks/{made}", json={"url": f"{receiver.url}/v2/enqueue"})
    assert moved.status_code == 200
