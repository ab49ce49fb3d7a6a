"""Routes from a finding to an endpoint: waits, escalation, intervals, reminders, inhibition, templates."""

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from alerts.route import Route
from alerts.silence import Matcher
from store.findings import findings
from store.findings.findings import Edit

MINUTE = timedelta(minutes=1)


def nested(levels):
    """Lists within each other, as deep as JSON is read and deeper than it is written."""
    made: list[Any] = []
    for _ in range(levels):
        made = [made]
    return made


@pytest.fixture
def sent(receiver, notifier, clock):
    """Deliver what is due after another span; return type and node of what came since the last call."""
    sender = notifier(receiver)[0]
    seen: list[Any] = []

    def deliver(after=timedelta()):
        clock.ahead += after
        asyncio.run(sender.drain())
        bodies = [json.loads(got.body) for got in receiver.got[len(seen) :]]
        seen.extend(bodies)
        return [(body["type"].removeprefix("finding."), body["data"]["subject"]["node"]) for body in bodies]

    return deliver


@pytest.fixture
def acknowledge(pool):
    def act(finding):
        with pool.connection() as conn:
            findings.acknowledge(conn, finding.id, Edit("ops", datetime.now(UTC)))

    return act


@pytest.fixture
def end(pool):
    def act(finding):
        with pool.connection() as conn:
            findings.resolve(conn, finding.id, Edit("ops", datetime.now(UTC)))

    return act


def test_a_finding_is_sent_once_it_has_stood_for_the_wait(receiver, add_webhook, save_finding, sent):
    """Later events do not begin the wait anew, and are sent at once when it is over."""
    add_webhook(receiver.url, route=Route(wait_seconds=60))
    first = save_finding(severity="error")
    assert sent() == []
    save_finding(
        severity="critical", onset=first.onset, last_seen_at=first.onset + 40, as_of=first.onset + 40
    )
    assert sent(after=MINUTE / 2) == []
    assert sent(after=MINUTE / 2 + timedelta(seconds=1)) == [("escalated", "gpu-0423")]


def test_what_ends_within_the_wait_is_not_sent(receiver, add_webhook, save_finding, end, sent):
    """Neither the finding nor its end."""
    add_webhook(receiver.url, route=Route(wait_seconds=60))
    end(save_finding())
    assert sent(after=2 * MINUTE) == []


def test_a_finding_that_nobody_acknowledges_escalates(
    receiver, add_webhook, save_finding, acknowledge, end, sent
):
    """The second endpoint gets it after its wait, and later its end; nothing of one acknowledged in time."""
    add_webhook(receiver.url, route=Route(wait_seconds=900, unless_acknowledged=True))
    known, unknown = save_finding(node="known"), save_finding(node="unknown")
    acknowledge(known)
    assert sent(after=16 * MINUTE) == [("opened", "unknown")]
    acknowledge(unknown)
    end(known)
    end(unknown)
    assert sent(after=60 * MINUTE) == [("resolved", "unknown")]


def test_matchers_choose_findings(receiver, add_webhook, save_finding, end, sent):
    """All must match."""
    add_webhook(receiver.url, route=Route(matchers=(Matcher("node", "a.*", is_regex=True),)))
    end(save_finding(node="b1"))
    save_finding(node="a1")
    assert sent() == [("opened", "a1")]


def test_events_of_a_finding_keep_their_interval(receiver, add_webhook, save_finding, end, sent):
    """The end waits, too; of other findings nothing does."""
    add_webhook(receiver.url, route=Route(interval_seconds=300))
    one = save_finding(node="n1")
    assert sent() == [("opened", "n1")]
    end(one)
    save_finding(node="n2")
    assert sent(after=MINUTE) == [("opened", "n2")]
    assert sent(after=5 * MINUTE) == [("resolved", "n1")]


def test_a_reminder_comes_until_someone_acknowledges(receiver, add_webhook, save_finding, acknowledge, sent):
    """The last event again under the same webhook-id."""
    add_webhook(receiver.url, route=Route(repeat_seconds=3600))
    finding = save_finding()
    assert len(sent()) == 1
    assert sent(after=59 * MINUTE) == []
    assert sent(after=2 * MINUTE) == [("opened", "gpu-0423")]
    assert len({got.headers["webhook-id"] for got in receiver.got}) == 1
    acknowledge(finding)
    assert sent(after=120 * MINUTE) == []


def test_an_open_finding_inhibits_others(client, receiver, add_webhook, save_finding, end, sent):
    """What it explains waits for its end; a finding elsewhere is sent at once."""
    rule = {
        "source": [{"name": "kind", "value": "node.silent"}],
        "target": [{"name": "kind", "value": "node.silent", "isEqual": False}],
        "equal": ["cluster", "node"],
        "comment": "a silent node explains what is seen of it",
    }
    made = client.post("/api/v1/inhibitions", json=rule)
    assert made.status_code == 201, made.text
    add_webhook(receiver.url)
    cause = save_finding(node="n1", kind="node.silent")
    save_finding(node="n1")
    save_finding(node="n2")
    assert sorted(sent()) == [("opened", "n1"), ("opened", "n2")]
    assert sent(after=MINUTE) == []
    end(cause)
    assert sorted(sent(after=MINUTE)) == [("opened", "n1"), ("resolved", "n1")]
    assert client.get("/api/v1/inhibitions").json()["items"][0]["id"] == made.json()["id"]
    assert client.delete(f"/api/v1/inhibitions/{made.json()['id']}").status_code == 204
    assert client.delete(f"/api/v1/inhibitions/{made.json()['id']}").status_code == 404


def test_a_maintenance_window_holds_back_until_it_ends(
    client, receiver, add_webhook, save_finding, sent, pool
):
    """An occurrence that is now, made over the API."""
    now = datetime.now(UTC).replace(microsecond=0)
    window = {
        "matchers": [{"name": "node", "value": "gpu-0423"}],
        "startsAt": (now - MINUTE).isoformat(),
        "endsAt": (now + timedelta(weeks=4)).isoformat(),
        "comment": "weekly reboot",
        "recurrence": {
            "weekdays": [f"{now - MINUTE:%a}".lower()],
            "duration_seconds": 1800,
            "time_zone": "UTC",
        },
    }
    made = client.post("/api/v1/silences", json=window)
    assert made.status_code == 201, made.text
    assert made.json()["status"]["state"] == "active"
    assert made.json()["recurrence"]["duration_seconds"] == 1800
    add_webhook(receiver.url)
    save_finding()
    assert sent(after=20 * MINUTE) == []
    assert sent(after=11 * MINUTE) == [("opened", "gpu-0423")]


def test_a_body_of_ones_own(receiver, add_webhook, save_finding, notifier):
    """Texts of a finding fill it in and stay texts; a place of one field keeps the field's type."""
    template = {
        "text": "{{ finding.title }} ({{type}})",
        "gpu": "{{ finding.subject.gpu_index }}",
        "none": "{{ finding.x.0 }}",
    }
    add_webhook(receiver.url, format="template", template=template)
    hostile = '"}, {{ link }} </script>\r\nx: 1'
    save_finding(title=hostile)
    asyncio.run(notifier(receiver)[0].drain())
    (got,) = receiver.got
    assert json.loads(got.body) == {"text": f"{hostile} (finding.opened)", "gpu": 5, "none": None}


def test_a_body_that_becomes_too_large_is_not_sent(receiver, add_webhook, save_finding, notifier, pool):
    """It counts as a failed attempt, whose error names the limit."""
    add_webhook(receiver.url, format="template", template=["{{ finding }}"] * 200)
    save_finding()
    asyncio.run(notifier(receiver)[0].drain())
    assert receiver.got == []
    with pool.connection() as conn:
        (error,) = conn.execute("SELECT last_error FROM deliveries").fetchone()
    assert "20000 are allowed" in error


def test_a_number_is_no_truth_value(client):
    """As the document has it: `"isEqual": 0` would silently turn a matcher round."""
    matcher = {"name": "node", "value": "n1", "isEqual": 0}
    rule = {"source": [matcher], "target": [matcher], "equal": ["node"], "comment": "c"}
    assert client.post("/api/v1/inhibitions", json=rule).status_code == 422


@pytest.mark.parametrize(
    ("fields", "pointer"),
    [
        ({"format": "template", "template": {"text": "{{ 7*7 }}"}}, "#/body/template"),
        ({"format": "template", "template": {"text": "{{ finding.title|upper }}"}}, "#/body/template"),
        ({"format": "template", "template": {"text": "{{ self.__class__ }}"}}, "#/body/template"),
        ({"format": "template", "template": {"text": "{% for x in y %}{{"}}, "#/body/template"),
        ({"format": "template", "template": {"text": "x" * 9000}}, "#/body/template"),
        ({"format": "template", "template": nested(300)}, "#/body/template"),
        ({"format": "template", "template": nested(900)}, "#/body/template"),
        ({"template": {"text": "x"}}, "#/body/template"),
        ({"format": "alertmanager_push", "repeat_seconds": 3600}, "#/body/repeat_seconds"),
        ({"matchers": [{"name": "node", "value": "(a+)+$", "isRegex": True}]}, "#/body/matchers"),
        ({"kinds": ["bogus"]}, "#/body/kinds"),
    ],
)
def test_what_a_webhook_cannot_be_is_refused(client, fields, pointer):
    """With a 409 that points to the field."""
    answer = client.post("/api/v1/webhooks", json={"url": "https://127.0.0.1/api/v2/alerts"} | fields)
    assert answer.status_code == 409, answer.text
    assert answer.json()["errors"][0]["pointer"] == pointer
