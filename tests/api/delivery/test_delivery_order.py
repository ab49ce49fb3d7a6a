"""Deliveries of one finding to one receiver: in order, and only its newest state."""

import asyncio
import json
import random
import socket
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from alerts.config import FindingConfig
from api.delivery.notifier import Limits
from store.findings import deliveries, findings, leases, outbox, webhooks
from tests.api.conftest import Receiver


@pytest.fixture
def save(pool, save_finding):
    """Store versions of one finding: ``save(seconds, …)`` as of so many seconds after its onset."""
    made = None

    def version(seconds, **changes):
        nonlocal made
        made = made or save_finding(onset=round(time.time() - 600, 3), severity="error")
        made = replace(made, last_seen_at=made.onset + seconds, **changes)
        if made.status == "resolved":
            made = replace(made, resolved_at=made.onset + seconds)
        with pool.connection() as conn:
            findings.save(conn, made, FindingConfig())
        return made

    return version


def drain(made):
    return asyncio.run(made[0].drain())


def types(receiver):
    return [json.loads(got.body)["type"].removeprefix("finding.") for got in receiver.got]


def log_of(pool, webhook):
    """Return {type: (state, what superseded it)} of the delivery log."""
    with pool.connection() as conn:
        lines = deliveries.listed(conn, webhook.id)
    kinds = {line.id: line.type.removeprefix("finding.") for line in lines}
    return {kinds[line.id]: (line.state, line.superseded_by and kinds[line.superseded_by]) for line in lines}


@pytest.fixture
def opened(start_receiver, add_webhook, save, notifier):
    """Open a finding and try to deliver it once, to a receiver that answers with these statuses: return the
    receiver, its endpoint and the notifier."""

    def start(*statuses):
        receiver = start_receiver(answers=[(status, {}, b"") for status in statuses])
        webhook, _ = add_webhook(receiver.url)
        made = notifier(receiver)
        save(30)
        drain(made)
        return receiver, webhook, made

    return start


def test_a_failed_delivery_is_not_sent_after_a_newer_state(pool, opened, save, clock):
    """Opened fails; what comes next is sent instead, and opened never again; the log records it."""
    receiver, webhook, made = opened(500, 500, 200)
    save(40, severity="critical")
    drain(made)
    assert types(receiver) == ["opened", "escalated"]
    for seconds in (20, 60, 86400):
        clock.ahead = timedelta(seconds=seconds)
        drain(made)
    assert types(receiver) == ["opened", "escalated", "escalated"]
    assert receiver.got[1].headers["webhook-id"] == receiver.got[2].headers["webhook-id"]
    assert log_of(pool, webhook) == {
        "opened": ("superseded", "escalated"),
        "escalated": ("delivered", None),
    }


@pytest.mark.parametrize("tried", [1, 3])
def test_the_end_of_what_an_endpoint_never_got_is_not_sent(pool, opened, save, clock, tried):
    """Nobody there has heard of the finding; its next relapse is sent, and the end of that."""
    receiver, webhook, made = opened(*[404] * tried, 200)
    for _ in range(tried - 1):
        clock.ahead += timedelta(seconds=60)
        drain(made)
    save(40, status="resolved")
    assert drain(made) == 0
    assert types(receiver) == ["opened"] * tried
    assert log_of(pool, webhook) == {"opened": ("superseded", "resolved"), "resolved": ("superseded", None)}
    save(90, status="open", resolved_at=None, occurrences=2)
    drain(made)
    save(100, status="resolved")
    drain(made)
    assert types(receiver)[tried:] == ["reopened", "resolved"]


def test_an_end_is_sent_where_an_earlier_one_did_not_arrive(opened, save):
    """What was opened there is still open: that its relapse did not arrive either changes nothing."""
    receiver, _, made = opened(200, 404, 404, 200)
    save(40, status="resolved")
    drain(made)
    save(90, status="open", resolved_at=None, occurrences=2)
    drain(made)
    save(100, status="resolved")
    drain(made)
    assert types(receiver) == ["opened", "resolved", "reopened", "resolved"]


def test_the_end_of_what_found_no_receiver_is_not_sent(pool, add_webhook, save, notifier):
    """Nothing listens there."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        away = Receiver(port=listening.getsockname()[1])
    webhook, _ = add_webhook(away.url)
    made = notifier(away)
    save(30)
    drain(made)
    with pool.connection() as conn:
        assert deliveries.listed(conn, webhook.id)[0].last_error.startswith("ConnectError: ")
    save(40, status="resolved")
    assert drain(made) == 0


@pytest.mark.parametrize("status", [429, 503, 504])
def test_an_end_is_sent_where_the_beginning_may_have_arrived(opened, save, status):
    """An answer of a gateway does not tell what became of it."""
    receiver, _, made = opened(status, 200)
    save(40, status="resolved")
    drain(made)
    assert types(receiver) == ["opened", "resolved"]


def test_the_end_of_what_no_notifier_tried_is_sent(receiver, add_webhook, save, notifier):
    """Else nobody would hear of a finding that came and went while none ran."""
    add_webhook(receiver.url)
    save(30)
    save(40, status="resolved")
    drain(notifier(receiver))
    assert types(receiver) == ["resolved"]


def test_an_endpoint_that_asks_for_ends_alone_gets_them(receiver, add_webhook, save, notifier):
    add_webhook(receiver.url, events=("finding.resolved",))
    save(30)
    save(40, status="resolved")
    drain(notifier(receiver))
    assert types(receiver) == ["resolved"]


def test_what_was_never_tried_is_superseded_too(pool, receiver, add_webhook, save, notifier):
    """Opened, resolved and opened again before the notifier looked: one call, for the last."""
    webhook, _ = add_webhook(receiver.url)
    save(30)
    save(40, status="resolved")
    save(90, status="open", resolved_at=None, occurrences=2)
    drain(notifier(receiver))
    assert types(receiver) == ["reopened"]
    assert log_of(pool, webhook) == {
        "opened": ("superseded", "reopened"),
        "resolved": ("superseded", "reopened"),
        "reopened": ("delivered", None),
    }


def test_two_findings_do_not_wait_for_each_other(opened, save_finding):
    """One finding's failed delivery is tried again though another finding has newer states."""
    receiver, _, made = opened(500, 200)
    save_finding(node="other")
    drain(made)
    assert types(receiver) == ["opened", "opened"]
    assert len({got.headers["webhook-id"] for got in receiver.got}) == 2


@pytest.mark.slow
def test_no_newer_state_overtakes_one_under_way(start_receiver, add_webhook, save, notifier):
    """Two notifiers and a slow receiver: resolved starts when opened has been answered."""
    answered: list[str] = []

    def slow(got):
        if len(receiver.got) == 1:
            time.sleep(1.0)
        answered.append(json.loads(got.body)["type"])

    receiver = start_receiver(before_answer=slow)
    add_webhook(receiver.url)
    several = [notifier(receiver, limits=Limits(poll_seconds=0.2))[0] for _ in range(2)]

    async def run_both():
        stop = asyncio.Event()
        running = [asyncio.create_task(each.run(stop)) for each in several]
        await asyncio.to_thread(save, 30)
        await asyncio.to_thread(receiver.wait_for, 1)
        await asyncio.to_thread(save, 40, status="resolved")
        await asyncio.to_thread(receiver.wait_for, 2)
        stop.set()
        await asyncio.gather(*running)

    asyncio.run(run_both())
    assert types(receiver) == ["opened", "resolved"]
    assert answered == ["finding.opened", "finding.resolved"]


def test_after_a_kill_only_the_newest_state_is_sent(pool, receiver, add_webhook, save, notifier, clock):
    """A lease without an answer holds back newer states until it runs out; then opened is written off."""
    webhook, _ = add_webhook(receiver.url)
    save(30)
    with pool.connection() as conn:
        (killed,) = leases.lease_due(conn, now=clock(), lease_seconds=60)
    save(40, status="resolved")
    made = notifier(receiver)
    assert drain(made) == 0
    with pool.connection() as conn:
        assert leases.next_due(conn) == killed.leased_until
    clock.ahead = timedelta(seconds=61)
    drain(made)
    assert types(receiver) == ["resolved"]
    assert log_of(pool, webhook)["opened"] == ("superseded", "resolved")


def test_a_lease_that_ran_out_before_the_request_is_not_used(receiver, add_webhook, save, notifier, clock):
    """A notifier that stood still between lease and request (a laptop asleep) leaves it to the next one."""
    add_webhook(receiver.url)
    made = notifier(receiver, limits=Limits(lease_seconds=20))
    save(30)
    (due,) = made[0]._lease()
    clock.ahead = timedelta(seconds=21)
    asyncio.run(made[0]._deliver(due))
    assert receiver.got == []
    drain(made)
    assert types(receiver) == ["opened"]


def test_sending_an_old_delivery_again_sends_the_newest_state(client, opened, save):
    """Asked for opened once more, after resolved was taken: the receiver gets resolved again."""
    receiver, webhook, made = opened(200)
    save(40, status="resolved")
    drain(made)
    items = client.get(f"/api/v1/webhooks/{webhook.id}/deliveries").json()["items"]
    ids = {item["event_type"]: item["id"] for item in items}
    answer = client.post(f"/api/v1/deliveries/{ids['finding.opened']}/retry")
    assert (answer.status_code, answer.json()["id"]) == (202, ids["finding.resolved"])
    drain(made)
    assert types(receiver) == ["opened", "resolved", "resolved"]
    assert receiver.got[1].headers["webhook-id"] == receiver.got[2].headers["webhook-id"]


def test_a_retry_by_hand_does_not_start_beside_an_attempt_under_way(pool, add_webhook, save, clock):
    """The lease holds: what is being sent is not sent a second time at once."""
    add_webhook("http://127.0.0.1:1/hook")
    save(30)
    with pool.connection() as conn:
        (leased,) = leases.lease_due(conn, now=clock())
        assert deliveries.retry(conn, leased.id, clock())
        assert leases.lease_due(conn, now=clock() + timedelta(seconds=1)) == []


@pytest.mark.parametrize("change", ["milder", "another kind", "switched off meanwhile", "stricter"])
def test_who_was_sent_the_beginning_is_sent_the_end(pool, receiver, add_webhook, save, notifier, change):
    """Whatever the finding has become or the endpoint's filters have, an alert that was raised is ended."""
    webhook, _ = add_webhook(receiver.url, min_severity="error", kinds=("straggler",))
    made = notifier(receiver)
    save(30)
    drain(made)
    changes = {"milder": {"severity": "info"}, "another kind": {"kind": "throttle.thermal"}}.get(change, {})
    endpoints = {
        "switched off meanwhile": replace(webhook, enabled=False),
        "stricter": replace(webhook, min_severity="critical"),
    }
    with pool.connection() as conn:
        webhooks.update(conn, endpoints.get(change, webhook))
        save(40, **changes)
        save(50, status="resolved", **changes)
        if change == "switched off meanwhile":
            webhooks.update(conn, webhook)
    drain(made)
    assert types(receiver) == ["opened", "resolved"]


def test_a_finding_that_becomes_of_a_wanted_kind_is_news(receiver, add_webhook, save, notifier):
    """Its cause is found: who asked for that kind alone gets it then, once, and its end."""
    add_webhook(receiver.url, kinds=("throttle",))
    made = notifier(receiver)
    save(30)
    save(40, kind="throttle.thermal")
    drain(made)
    save(50, kind="throttle.power")
    drain(made)
    save(60, status="resolved")
    drain(made)
    assert types(receiver) == ["updated", "resolved"]


def test_an_update_is_no_news_for_a_webhook_added_later(receiver, add_webhook, save, notifier):
    """It starts with what happens from then on that asks somebody to act."""
    save(30)
    add_webhook(receiver.url)
    save(40, kind="throttle.thermal")
    drain(notifier(receiver))
    assert receiver.got == []


def test_who_was_not_sent_the_beginning_is_not_sent_the_end(receiver, add_webhook, save, notifier):
    """Too mild from first to last: nothing."""
    add_webhook(receiver.url, min_severity="critical")
    save(30)
    save(40, status="resolved")
    drain(notifier(receiver))
    assert receiver.got == []


class Fast:
    """A clock that runs two hundred times as fast, so that retries of hours come within the test."""

    def __init__(self):
        self.start = datetime.now(UTC)

    def __call__(self):
        return self.start + 200 * (datetime.now(UTC) - self.start)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_states_arrive_in_order_whatever_the_receiver_answers(
    pool, start_receiver, add_webhook, save_finding, notifier, seed
):
    """Two notifiers, a slow receiver that refuses a third: no finding goes back, and its end arrives."""
    chance, steps = random.Random(seed), ("open", "open", "resolved", "open", "resolved")
    statuses = [*(chance.choice((200, 200, 500)) for _ in range(60)), 200]
    receiver = start_receiver(
        answers=[(status, {}, b"") for status in statuses],
        before_answer=lambda got: time.sleep(chance.random() / 50),
    )
    webhook, _ = add_webhook(receiver.url)
    limits, clock = Limits(poll_seconds=0.05, lease_seconds=1e5), Fast()
    several = [notifier(receiver, limits=limits)[0] for _ in range(2)]
    for each in several:
        each.now = clock
    onset = round(time.time() - 600, 3)
    nodes = [f"n{i}" for i in range(6)]

    def live():
        for step, status in enumerate(steps):
            for node in nodes:
                at = {"onset": onset, "last_seen_at": onset + 30 + step}
                grown = {"severity": "critical" if step else "error", "occurrences": 1 + (step > 2)}
                save_finding(node=node, status=status, **at, **grown)
                time.sleep(chance.random() / 20)
        until = time.monotonic() + 20
        while waiting(pool, webhook) and time.monotonic() < until:
            time.sleep(0.1)

    async def run():
        stop = asyncio.Event()
        running = [asyncio.create_task(each.run(stop)) for each in several]
        await asyncio.to_thread(live)
        stop.set()
        await asyncio.gather(*running)

    asyncio.run(run())
    with pool.connection() as conn:
        number = {event.id: event.seq for event in outbox.after(conn, 0)}
    got = [(json.loads(each.body)["data"], number[each.headers["webhook-id"]]) for each in receiver.got]
    for node in nodes:
        mine = [(data["status"], seq) for data, seq in got if data["subject"]["node"] == node]
        assert [seq for _, seq in mine] == sorted(seq for _, seq in mine)
        assert mine[-1][0] == "resolved"
    assert waiting(pool, webhook) == []


def waiting(pool, webhook):
    with pool.connection() as conn:
        return [line for line in deliveries.listed(conn, webhook.id) if line.state == "pending"]


@pytest.fixture
def silence_all(client):
    """Mute what happens on any node for an hour."""

    def start():
        body = {
            "matchers": [{"name": "node", "value": ".*", "isRegex": True}],
            "endsAt": (datetime.now(UTC) + timedelta(hours=1)).isoformat(),
            "comment": "maintenance",
        }
        assert client.post("/api/v1/silences", json=body).status_code == 201

    return start


def test_an_end_during_a_silence_is_sent_after_it(opened, save, clock, silence_all):
    """Otherwise what rang before the silence would fire for ever at the receiver."""
    receiver, _, made = opened(200)
    silence_all()
    save(40, status="resolved")
    assert drain(made) == 0
    clock.ahead = timedelta(hours=1, seconds=5)
    drain(made)
    assert types(receiver) == ["opened", "resolved"]


def test_what_began_and_ended_during_a_silence_is_not_sent(opened, save, clock, silence_all):
    """Also where the endpoint was sent an earlier occurrence."""
    receiver, _, made = opened(200)
    save(40, status="resolved")
    drain(made)
    silence_all()
    save(90, status="open", resolved_at=None, occurrences=2)
    save(120, status="resolved", occurrences=2)
    clock.ahead = timedelta(hours=1, seconds=5)
    drain(made)
    assert types(receiver) == ["opened", "resolved"]
