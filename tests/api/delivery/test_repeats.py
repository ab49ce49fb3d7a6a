"""Repetitions to endpoints that forget what is not repeated: which findings, when, and beside deliveries."""

import asyncio
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from alerts.config import FindingConfig
from alerts.notify import DEFAULT_EVENTS
from api.delivery.receivers.alertmanager_push import REPEAT_SECONDS
from api.delivery.receivers.receiver import Notification
from api.delivery.receivers.registry import receiver_named, repeat_seconds
from store.findings import findings, leases, repeats, webhooks
from tests.api.delivery.receivers.test_receivers import example

NOW = datetime(2026, 11, 20, 7, 34, 2, tzinfo=UTC)


def alerts(finding, *earlier):
    notification = Notification("m", "finding.escalated", NOW, finding, "http://x/f", earlier=earlier)
    return json.loads(receiver_named("alertmanager_push").body(notification, "http://x"))


def test_former_labels_end_where_new_ones_begin():
    """Of the labels a finding had before, each that is not the present one ends once, with the event."""
    was = [example(severity=severity) for severity in ("error", "critical", "warning", "error")]
    firing, *ended = alerts(example(severity="critical"), *was)
    assert (firing["labels"]["severity"], "endsAt" in firing) == ("critical", False)
    assert [alert["labels"]["severity"] for alert in ended] == ["error", "warning"]
    assert {alert["endsAt"] for alert in ended} == {"2026-11-20T07:34:02Z"}
    assert {alert["startsAt"] for alert in (firing, *ended)} == {example()["onset"]}


def test_the_end_of_a_finding_ends_all_its_labels():
    """The true end, also of an alert whose own end may have been lost."""
    over = example(status="resolved", resolved_at=1795161000.0)
    assert {alert["endsAt"] for alert in alerts(over, example(severity="error"))} == {over["resolved_at"]}


def test_a_webhook_without_types_gets_those_that_change_labels(client):
    """Chosen types are kept; without any, updates are among them."""
    asked = {"url": "https://127.0.0.1/api/v2/alerts", "format": "alertmanager_push"}
    made = client.post("/api/v1/webhooks", json=asked).json()
    assert set(made["events"]) == DEFAULT_EVENTS | {"finding.updated"}
    made = client.post("/api/v1/webhooks", json=asked | {"events": ["finding.opened"]}).json()
    assert made["events"] == ["finding.opened"]


@pytest.fixture
def hook(receiver, add_webhook):
    """A webhook that is sent open findings again."""
    return add_webhook(receiver.url, format="alertmanager_push")[0]


@pytest.fixture
def drain(receiver, notifier):
    """Deliver what is due; return how many requests were made."""
    sender = notifier(receiver)[0]
    return lambda: asyncio.run(sender.drain())


@pytest.fixture
def later(clock):
    """Let time pass: by default until a repetition is due."""

    def pass_by(seconds=REPEAT_SECONDS):
        clock.ahead += timedelta(seconds=seconds)

    return pass_by


@pytest.fixture
def save(pool):
    """Store the next version of a finding."""

    def store(finding, **changes):
        version = replace(finding, last_seen_at=finding.last_seen_at + 30, **changes)
        with pool.connection() as conn:
            findings.save(conn, version, FindingConfig())

    return store


def test_only_formats_that_ask_are_repeated(receiver, add_webhook, save_finding, drain, later):
    """The other receivers remember: they are sent a finding once."""
    add_webhook(receiver.url, format="standard")
    save_finding()
    assert drain() == 1
    later()
    assert drain() == 0


def test_a_repetition_is_the_same_request(receiver, hook, save_finding, drain, later):
    """Not before its time; the same ``webhook-id`` and body."""
    save_finding()
    drain()
    later(REPEAT_SECONDS - 10)
    assert drain() == 0
    later(10)
    assert drain() == 1
    first, second = receiver.got
    assert first.body == second.body
    assert first.headers["webhook-id"] == second.headers["webhook-id"]


def test_the_end_is_repeated_for_five_minutes(receiver, hook, save_finding, save, drain, later):
    """An endpoint that restarts at the wrong moment is still sent the end; then there is silence."""
    finding = save_finding()
    drain()
    save(finding, status="resolved", resolved_at=finding.onset + 60)
    drain()
    requests = []
    for _ in range(10):
        later()
        requests.append(drain())
    assert requests == [1] * 4 + [0] * 6
    assert all("endsAt" in json.loads(got.body)[0] for got in receiver.got[1:])


def test_a_delivery_that_waits_takes_the_place_of_the_repetition(
    receiver, hook, save_finding, save, drain, later
):
    """While the newer state is retried the older one is not sent in between."""
    finding = save_finding(severity="error")
    drain()
    receiver.answers = [(200, {}, b""), (503, {"retry-after": "300"}, b""), (200, {}, b"")]
    save(finding, severity="critical")
    assert drain() == 1
    later()
    assert drain() == 0
    later(300)
    assert drain() == 1
    assert json.loads(receiver.got[-1].body)[0]["labels"]["severity"] == "critical"


def test_a_silence_does_not_end_what_fires(client, receiver, hook, save_finding, save, drain, later):
    """What a silence holds back is not sent; the state before it is repeated."""
    finding = save_finding(severity="error")
    drain()
    silence = {
        "matchers": [{"name": "node", "value": finding.subject.node}],
        "endsAt": (datetime.now(UTC) + timedelta(hours=2)).isoformat(),
        "comment": "maintenance",
    }
    assert client.post("/api/v1/silences", json=silence).status_code == 201
    save(finding, severity="critical")
    assert drain() == 0
    later()
    assert drain() == 1
    assert json.loads(receiver.got[-1].body)[0]["labels"]["severity"] == "error"


def test_repetitions_count_for_the_health_of_the_endpoint(receiver, hook, pool, save_finding, drain, later):
    """Three that fail make it failing; the next that succeeds ends that. The log keeps its one attempt."""
    save_finding()
    drain()
    receiver.answers = [(500, {}, b"")]
    for _ in range(3):
        later()
        assert drain() == 1

    def failing():
        with pool.connection() as conn:
            assert conn.execute("SELECT count(*) FROM delivery_attempts").fetchone() == (1,)
            return webhooks.failing_by_id(conn)[hook.id]

    assert failing()
    receiver.answers = [(200, {}, b"")]
    later()
    drain()
    assert not failing()


def test_a_leased_repetition_holds_back_the_next_delivery(
    hook, pool, save_finding, save, drain, clock, later
):
    """The end cannot overtake a repetition in progress, which would fire again after it."""
    finding = save_finding()
    drain()
    later()
    with pool.connection() as conn:
        now, intervals = clock(), repeat_seconds()
        (leased,) = repeats.lease_repeats(conn, intervals, now=now)
        assert leased.repeat
        assert repeats.lease_repeats(conn, intervals, now=now) == []
        save(finding, status="resolved", resolved_at=finding.onset + 60)
        assert leases.lease_due(conn, now=now + timedelta(seconds=59)) == []
        (end,) = leases.lease_due(conn, now=now + timedelta(seconds=61))
    assert end.event.type == "finding.resolved"
