"""Opsgenie and Jira Service Management: requests within the documented limits, and the life of alerts."""

import asyncio
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import get_args
from urllib.parse import urlsplit

import pytest

from alerts.config import FindingConfig
from alerts.finding import Action
from alerts.notify import DEFAULT_EVENTS, EventType
from api.app import create_app
from api.delivery.receivers.receiver import Notification
from api.delivery.receivers.registry import receiver_named
from api.delivery.sample_event import TYPE as SAMPLE
from store.findings import findings
from tests.api.delivery.receivers.people import acknowledge
from tests.api.delivery.receivers.test_receivers import FINDINGS, example

KEY = "eb243592-faa2-4ba2-a551-1afdf565c889"
LINK = "https://slowrank.example.org/findings/fnd_1?t=1.2"


def delivery(finding, happened="finding.opened", receipt=""):
    at = datetime(2026, 11, 20, 7, 34, 2, tzinfo=UTC)
    notification = Notification("msg_01", happened, at, finding, LINK, KEY, receipt=receipt)
    return json.loads(receiver_named("opsgenie").body(notification, "https://slowrank.example.org"))


def actions(sent):
    """Return what is asked for, in order: (what, of which severity's alert)."""
    return [(what, alias.rpartition("-")[2]) for what, alias in map(asked_for, sent["requests"])]


def asked_for(request):
    if not request.get("path"):
        return "create", request["body"]["alias"]
    url = urlsplit(request["path"])
    assert url.query == "identifierType=alias"
    alias, what = url.path.removeprefix("/").split("/")
    return what, alias


def test_an_alert_carries_what_the_person_on_call_needs():
    """Title, priority, place, links, and cost, cause and action in the description."""
    command = 'scontrol update nodename=gpu-0423 reason="<slow>"'
    runbook = "https://docs.example.org/r"
    finding = example(action=Action("DRAIN_NODE", "Drain gpu-0423.", (command,), runbook_url=runbook))
    sent = delivery(finding)
    [alert] = [request["body"] for request in sent["requests"]]
    assert sent["headers"] == {"authorization": f"GenieKey {KEY}"}
    lines, details = alert.pop("description").split("\n"), alert.pop("details")
    assert alert == {
        "message": finding["title"],
        "alias": f"{finding['id']}-critical",
        "tags": ["slowrank", "critical", "straggler.fail_slow", "prod-a"],
        "entity": "gpu-0423/gpu/5",
        "source": "slowrank",
        "priority": "P1",
    }
    assert lines[0] == finding["title"]
    assert "Cost: 969.3 GPU-h per hour" in lines
    assert lines[-4:] == [
        "Do: Drain gpu-0423.",
        'scontrol update nodename=gpu-0423 reason="&lt;slow&gt;"',
        f"Finding: {LINK}",
        f"Runbook: {runbook}",
    ]
    assert details["Why"] == "throttle.thermal (93 %)"
    assert (details["Job"], details["Slowdown"]) == ("812345", "1.31")


FIELDS = {"message", "alias", "description", "tags", "details", "entity", "source", "priority"}
ACTION_FIELDS = {"user", "note", "source"}


def units(text):
    """Return the length of a text as Java counts it."""
    return len(text.encode("utf-16-le")) // 2


def refusal(request):
    """Return what of a request the API's reference does not allow; "" for nothing.

    https://docs.opsgenie.com/docs/alert-api and definitions/alert.yaml of opsgenie-oas: a message has 130
    characters, an alias 512, a description 15,000, 20 tags 50 each, all details 8,000, an entity 512, a
    source and a user 100, a note 25,000; details are texts.
    """
    what, alias = asked_for(request)
    sent = request["body"]
    details = sent.get("details", {})
    tests = {
        "action": what in ("create", "acknowledge", "close", "notes"),
        "fields": set(sent) <= (FIELDS if what == "create" else ACTION_FIELDS),
        "required": what != "create" or 0 < units(sent["message"]) <= 130,
        "note": what != "notes" or units(sent["note"]) > 0,
        "notes": units(sent.get("note", "")) <= 25_000,
        "alias": 0 < units(alias) <= 512,
        "description": units(sent.get("description", "")) <= 15_000,
        "tags": len(sent.get("tags", ())) <= 20 and all(0 < units(tag) <= 50 for tag in sent.get("tags", ())),
        "details": sum(units(name) + units(text) for name, text in details.items()) <= 8_000,
        "entity": units(sent.get("entity", "")) <= 512,
        "who": all(units(sent.get(name, "")) <= 100 for name in ("source", "user")),
        "priority": what != "create" or sent["priority"] in ("P1", "P2", "P3", "P4", "P5"),
        "markup": not any(
            mark in sent.get(name, "") for name in ("message", "description", "note") for mark in "<>"
        ),
    }
    return ", ".join(name for name, passed in tests.items() if not passed)


LONG_NAME = {"acknowledged": {"by": "\U0001f525" * 5000, "at": "2026-11-20T07:35:02Z", "note": ""}}


@pytest.mark.parametrize(
    "finding", [*FINDINGS.values(), example(title=""), example(title="\U0001f525" * 5000)]
)
@pytest.mark.parametrize("happened", [*get_args(EventType), SAMPLE, "finding.of_a_later_release"])
@pytest.mark.parametrize("status", ["open", "acknowledged", "resolved", "expired"])
@pytest.mark.parametrize("severity", ["critical", "error", "warning", "info"])
def test_requests_keep_the_reference(finding, happened, status, severity):
    """Whatever the finding is called, in every state, and whatever was delivered of it before."""
    changed = finding | {"severity": severity, "status": status} | LONG_NAME
    for receipt in ("", severity, "ended"):
        sent = delivery(changed, happened, receipt)
        assert sent["requests"]
        assert {refusal(one) for one in sent["requests"]} == {""}


OTHERS = [("close", "error"), ("close", "warning"), ("close", "info")]
ALL = [("close", "critical"), *OTHERS]
NEW, ACKNOWLEDGED = ("create", "critical"), ("acknowledge", "critical")


@pytest.mark.parametrize(
    ("happened", "status", "receipt", "asked"),
    [
        ("finding.opened", "open", "", [NEW]),
        (SAMPLE, "open", "", [NEW]),
        ("finding.escalated", "open", "error", [NEW, *OTHERS]),
        ("finding.escalated", "open", "", [NEW, *OTHERS]),
        ("finding.escalated", "acknowledged", "error", [NEW, *OTHERS]),
        ("finding.updated", "open", "critical", [NEW, ("notes", "critical")]),
        ("finding.updated", "open", "error", [NEW, *OTHERS]),
        ("finding.acknowledged", "acknowledged", "critical", [ACKNOWLEDGED]),
        ("finding.acknowledged", "acknowledged", "", [NEW, ACKNOWLEDGED, *OTHERS]),
        ("finding.acknowledged", "acknowledged", "error", [NEW, ACKNOWLEDGED, *OTHERS]),
        ("finding.feedback", "acknowledged", "critical", [ACKNOWLEDGED]),
        ("finding.resolved", "resolved", "critical", ALL),
        ("finding.resolved", "expired", "", ALL),
        ("finding.feedback", "resolved", "ended", ALL),
        ("finding.reopened", "open", "ended", [NEW, *OTHERS]),
        ("finding.opened", "open", "critical", [NEW]),
        ("finding.of_a_later_release", "open", "critical", [NEW, ("notes", "critical")]),
    ],
)
def test_what_is_asked_for_follows_state_and_receipt(happened, status, receipt, asked):
    """One alert of the finding's severity, the others closed; a repetition of an event adds no note."""
    sent = delivery(example(status=status), happened, receipt)
    assert actions(sent) == asked
    assert sent["receipt"] == ("ended" if status in ("resolved", "expired") else "critical")


def test_an_acknowledgement_has_a_name():
    """The alert shows who took the finding."""
    finding = example(status="acknowledged") | {"acknowledged": {"by": "ann"}}
    [request] = delivery(finding, "finding.acknowledged", "critical")["requests"]
    assert request["body"] == {"source": "slowrank", "user": "ann"}


class Alerts:
    """The documented rules: an alias opens an alert, which later requests with that alias change."""

    def __init__(self):
        self.open = {}
        self.opened = 0
        self.notes = []

    def take(self, got):
        assert got.headers["authorization"] == f"GenieKey {KEY}"
        path, sent = got.path.removeprefix("/v2/alerts"), json.loads(got.body)
        what, alias = asked_for({"path": path, "body": sent})
        if what == "create":
            # A request with the alias of an open alert counts, and changes neither priority nor message.
            self.opened += alias not in self.open
            self.open.setdefault(alias, (sent["priority"], "open"))
        elif what == "acknowledge" and alias in self.open:
            self.open[alias] = (self.open[alias][0], "acknowledged")
        elif what == "notes" and alias in self.open:
            self.notes.append(sent["note"])
        elif what == "close":
            self.open.pop(alias, None)


@pytest.fixture
def opsgenie(client, settings, pool, start_receiver):
    """The other end, with a webhook to it that was added over the API."""
    alerts = Alerts()
    receiver = start_receiver(before_answer=alerts.take, answers=[(202, {}, b'{"result":"accepted"}')])
    client._app = create_app(settings.model_copy(update={"webhook_allow_ports": (receiver.port,)}), pool)
    asked = sorted(DEFAULT_EVENTS | {"finding.acknowledged", "finding.updated"})
    url = f"http://127.0.0.1:{receiver.port}/v2/alerts"
    body = {"url": url, "format": "opsgenie", "secret": KEY, "events": asked}
    made = client.post("/api/v1/webhooks", json=body)
    assert made.status_code == 201, made.text
    assert "secret" not in made.json()
    return alerts, receiver, made.json()["id"]


def test_an_alert_lives_as_long_as_its_finding(client, opsgenie, pool, save_finding, notifier):
    """Opened, acknowledged, of another kind, escalated, resolved, back again: one alert at any time."""
    alerts, receiver, _ = opsgenie
    sender = notifier(receiver)[0]
    finding = save_finding(severity="error")

    def save(seconds, **changes):
        nonlocal finding
        finding = replace(finding, last_seen_at=finding.onset + seconds, **changes)
        with pool.connection() as conn:
            findings.save(conn, finding, FindingConfig())
        asyncio.run(sender.drain())

    asyncio.run(sender.drain())
    assert alerts.open == {f"{finding.id}-error": ("P2", "open")}
    save(40, title="another title", kind="hardware.gpu_fault")
    assert ["another title" in note for note in alerts.notes] == [True]
    acknowledge(client, finding)
    asyncio.run(sender.drain())
    assert (alerts.open, alerts.opened) == ({f"{finding.id}-error": ("P2", "acknowledged")}, 1)
    save(50, severity="critical")
    assert alerts.open == {f"{finding.id}-critical": ("P1", "open")}
    save(60, severity="warning")
    assert alerts.open == {f"{finding.id}-warning": ("P3", "acknowledged")}
    save(70, status="resolved", resolved_at=finding.onset + 70)
    assert (alerts.open, alerts.opened) == ({}, 3)
    save(90, status="open", severity="critical", resolved_at=None, occurrences=2)
    assert (alerts.open, alerts.opened) == ({f"{finding.id}-critical": ("P1", "open")}, 4)
    assert not any("webhook-signature" in got.headers for got in receiver.got)


@pytest.mark.parametrize("status", [429, 503])
def test_a_delivery_is_sent_again_from_its_first_request(
    client, opsgenie, pool, save_finding, notifier, clock, status
):
    """The new alert was accepted and the end of the former was not: nothing stays open in the end."""
    alerts, receiver, hook = opsgenie
    sender = notifier(receiver)[0]
    finding = save_finding(severity="error")
    asyncio.run(sender.drain())
    receiver.answers = [(202, {}, b""), (202, {}, b""), (status, {}, b""), (202, {}, b"")]
    worse = replace(finding, last_seen_at=finding.onset + 40, severity="critical")
    with pool.connection() as conn:
        findings.save(conn, worse, FindingConfig())
    asyncio.run(sender.drain())
    assert len(receiver.got) == 3
    last = client.get(f"/api/v1/webhooks/{hook}/deliveries").json()["items"][0]
    assert (last["status"], last["last_status"]) == ("pending", status)
    clock.ahead = timedelta(seconds=20)
    asyncio.run(sender.drain())
    assert alerts.open == {f"{finding.id}-critical": ("P1", "open")}
    assert len(receiver.got) == 7
    assert len({got.headers["webhook-id"] for got in receiver.got}) == 2


@pytest.mark.parametrize(
    "url",
    [
        "https://api.opsgenie.com",
        "https://api.opsgenie.com/v2/alerts?apiKey=1",
        "https://api.opsgenie.com/v2/alerts/",
    ],
)
def test_the_url_is_that_of_the_alerts(client, url):
    """What is appended to it makes the requests; the example shows the form."""
    refused = client.post("/api/v1/webhooks", json={"url": url, "format": "opsgenie", "secret": KEY})
    assert refused.status_code == 403
    assert "https://api.opsgenie.com/v2/alerts" in refused.json()["detail"]


def test_the_key_is_needed_and_never_shown(client, opsgenie, pool, save_finding, notifier):
    """Without a well-formed key there is no webhook; it stands in no answer, log or audit."""
    _, receiver, made = opsgenie
    body = {"url": f"http://127.0.0.1:{receiver.port}/v2/alerts", "format": "opsgenie"}
    for wrong in ({}, {"secret": "short"}, {"secret": f"{KEY}\r\nx-evil: 1"}, {"secret": "ü" * 36}):
        refused = client.post("/api/v1/webhooks", json=body | wrong)
        assert refused.status_code == 409
        assert refused.json()["errors"][0]["pointer"] == "#/body/secret"
        assert "20 to 200 letters" in refused.json()["errors"][0]["detail"]
        assert KEY not in refused.text
    save_finding()
    asyncio.run(notifier(receiver)[0].drain())
    paths = ("", f"/{made}", f"/{made}/deliveries")
    shown = [client.get(f"/api/v1/webhooks{path}").text for path in paths] + [
        client.get("/api/v1/audit").text
    ]
    assert not any(KEY in text for text in shown)
    assert receiver.got[-1].headers["authorization"] == f"GenieKey {KEY}"
