"""The notifier on a real database and real HTTP: signed, at least once, on time, and never silent."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta

import pytest
from prometheus_client import generate_latest
from standardwebhooks.webhooks import Webhook as Verifier

from api.delivery.notifier import Limits
from api.delivery.receivers.registry import RECEIVERS, receiver_named
from api.delivery.retry import SCHEDULE
from api.delivery.webhook_health import KIND as FAILING
from api.delivery.webhook_health import end_recovered
from store.findings import deliveries, findings, search, webhooks


def drain(made):
    return asyncio.run(made[0].drain())


def log_of(pool, webhook):
    with pool.connection() as conn:
        return deliveries.listed(conn, webhook.id)


def endpoint(pool, webhook):
    with pool.connection() as conn:
        return webhooks.get(conn, webhook.id)


@pytest.mark.parametrize("name", [one.name for one in RECEIVERS if one.transport == "http"])
def test_every_receiver_gets_it_with_proof(pool, receiver, add_webhook, save_finding, notifier, name):
    """One open finding: one request that names it, signed or with the secret that the receiver issued."""
    webhook, secret = add_webhook(receiver.url, format=name)
    finding = save_finding()

    assert drain(notifier(receiver)) == 1
    (got,) = receiver.got
    if receiver_named(name).credential:
        assert secret in got.body.decode()
        assert "webhook-signature" not in got.headers
    else:
        assert Verifier(secret).verify(got.body, got.headers) == json.loads(got.body)
    assert finding.title in got.body.decode()
    (line,) = log_of(pool, webhook)
    assert (line.state, line.attempts, line.last_status) == ("delivered", 1, 200)
    assert got.headers["webhook-id"] == line.event_id
    assert drain(notifier(receiver)) == 0


def test_only_what_the_endpoint_asked_for(receiver, add_webhook, save_finding, notifier):
    """Suspicions, too mild ones, other kinds and other clusters are not sent."""
    add_webhook(receiver.url, min_severity="error", kinds=("straggler",), clusters=("prod-a",))
    save_finding(node="suspected", status="suspected")
    save_finding(node="mild", severity="warning")
    save_finding(node="kind", kind="throttle.thermal")
    save_finding(node="cluster", cluster="prod-b")
    wanted = save_finding(node="wanted")

    assert drain(notifier(receiver)) == 1
    assert json.loads(receiver.got[0].body)["data"]["id"] == wanted.id


def test_only_what_asks_somebody_to_act_is_sent_by_default(
    pool, start_receiver, add_webhook, save_finding, notifier
):
    """Opened, escalated, resolved and reopened; acknowledgements, feedback and updates are by name."""
    people, named = start_receiver(), start_receiver()
    wanted = ("finding.acknowledged", "finding.feedback", "finding.updated")
    add_webhook(people.url)
    add_webhook(named.url, events=wanted)
    made, onset = notifier(people, named), time.time() - 600
    word = findings.Edit("ann", datetime.now(UTC))

    def sent(receiver):
        drain(made)
        return [json.loads(got.body)["type"] for got in receiver.got]

    def saved(seconds, **fields):
        return save_finding(onset=onset, last_seen_at=onset + seconds, **fields)

    finding = saved(30, severity="error")
    assert sent(people) == ["finding.opened"]
    with pool.connection() as conn:
        findings.acknowledge(conn, finding.id, word)
        drain(made)
        findings.feedback(conn, finding.id, "true_positive", word)
    assert sent(people) == ["finding.opened"]
    saved(40, severity="critical")
    drain(made)
    saved(50, severity="warning")
    drain(made)
    saved(60, severity="warning", status="resolved", resolved_at=onset + 60)
    drain(made)
    saved(90, severity="warning", occurrences=2)
    assert sent(people) == [f"finding.{step}" for step in ("opened", "escalated", "resolved", "reopened")]
    assert sent(named) == list(wanted)


def test_one_event_goes_to_every_endpoint(start_receiver, add_webhook, save_finding, notifier):
    """Fan-out: each endpoint gets its own request, with its own secret and the same webhook-id."""
    one, two = start_receiver(), start_receiver()
    secrets = [add_webhook(r.url)[1] for r in (one, two)]
    save_finding()
    assert drain(notifier(one, two)) == 2
    for receiver, secret in zip((one, two), secrets, strict=True):
        Verifier(secret).verify(receiver.got[0].body, receiver.got[0].headers)
    assert one.got[0].headers["webhook-id"] == two.got[0].headers["webhook-id"]


def test_failures_are_tried_again_with_the_same_id(
    pool, start_receiver, add_webhook, save_finding, notifier, clock
):
    """500, a redirect and a throttle are retried on schedule until the receiver takes it."""
    receiver = start_receiver(
        answers=[
            (500, {}, b"no"),
            (302, {"location": "/x"}, b""),
            (429, {"retry-after": "60"}, b""),
            (200, {}, b""),
        ]
    )
    webhook, _ = add_webhook(receiver.url)
    save_finding()
    made = notifier(receiver)
    due = []
    for _ in range(4):
        assert drain(made) == 1
        line = log_of(pool, webhook)[0]
        due.append(line.next_attempt_at)
        assert drain(made) == 0
        clock.ahead = line.next_attempt_at - datetime.now(UTC) + timedelta(milliseconds=1)

    assert len({got.headers["webhook-id"] for got in receiver.got}) == 1
    assert len({got.body for got in receiver.got}) == 1
    assert line.state == "delivered"
    with pool.connection() as conn:
        tries = deliveries.attempts(conn, line.id)
    assert [t.status for t in tries] == [500, 302, 429, 200]
    waits = [(at - t.at).total_seconds() for at, t in zip(due[:3], tries[:3], strict=True)]
    for wait, least in zip(waits, (SCHEDULE[1], SCHEDULE[2], 60), strict=True):
        assert least <= wait < least + 2


def test_an_endpoint_that_never_answers_ends_in_a_finding(
    pool, start_receiver, add_webhook, save_finding, notifier, clock
):
    """After the whole schedule the endpoint is marked failing and a self finding notifies the others."""
    dead, alive = start_receiver(answers=[(503, {}, b"")]), start_receiver()
    webhook, _ = add_webhook(dead.url)
    save_finding(severity="error")
    made = notifier(dead, alive)
    add_webhook(alive.url, kinds=("self",))
    for delay in (*SCHEDULE[1:], 0):
        drain(made)
        clock.ahead += timedelta(seconds=1.3 * delay)

    # Its own failure is sent to the others only.
    assert len(dead.got) == len(SCHEDULE)
    assert [line.state for line in log_of(pool, webhook)][-1] == "failed"
    assert endpoint(pool, webhook).failing_since is not None
    drain(made)
    told = json.loads(alive.got[0].body)
    assert (told["data"]["kind"], told["data"]["severity"]) == (FAILING, "warning")
    assert webhook.id in told["data"]["action"]["commands"][0]
    with pool.connection() as conn:
        assert len(search.find(conn, search.FindingFilter(kinds=("self",))).items) == 1

    dead.answers = [(200, {}, b"")]
    clock.ahead += timedelta(days=1)
    save_finding(node="the next")
    drain(made)
    assert endpoint(pool, webhook).failing_since is None
    told = [json.loads(got.body) for got in alive.got]
    assert [t["type"] for t in told if t["data"]["kind"] == FAILING] == ["finding.opened", "finding.resolved"]


@pytest.fixture
def failing_webhook(pool, start_receiver, add_webhook, save_finding, notifier, clock):
    """An endpoint that took nothing through a whole schedule, of findings in two clusters."""
    dead = start_receiver(answers=[(503, {}, b"")])
    webhook, _ = add_webhook(dead.url, kinds=("straggler",))
    save_finding(severity="error")
    save_finding(severity="error", cluster="prod-b")
    made = notifier(dead)
    for delay in SCHEDULE:
        clock.ahead += timedelta(seconds=1.3 * delay)
        drain(made)
    return webhook


def own(pool):
    with pool.connection() as conn:
        return [f.status for f in search.find(conn, search.FindingFilter(kinds=("self",))).items]


@pytest.mark.slow
@pytest.mark.parametrize("step", ["switch-off", "take-back", "remove"])
def test_what_ends_the_failing_ends_the_finding(client, pool, notifier, clock, failing_webhook, step):
    """Without any delivery: an endpoint that is switched off, taken back or removed fails no longer."""
    url = f"/api/v1/webhooks/{failing_webhook.id}"

    def run_a_moment():
        async def for_a_moment():
            stop = asyncio.Event()
            running = asyncio.create_task(notifier()[0].run(stop))
            await asyncio.sleep(0.5)
            stop.set()
            await running

        asyncio.run(for_a_moment())

    run_a_moment()
    assert own(pool) == ["open"]
    if step == "remove":
        client.delete(url)
    else:
        client.patch(url, json={"enabled": step == "take-back"})
    run_a_moment()
    assert own(pool) == ["resolved"]


def test_an_endpoint_that_fails_again_is_reported_again(
    pool, client, start_receiver, add_webhook, save_finding, notifier, clock
):
    """Also where the very delivery that it failed by is sent once more by hand, and fails once more."""
    dead, alive = start_receiver(answers=[(503, {}, b"")]), start_receiver()
    webhook, _ = add_webhook(dead.url, kinds=("straggler",))
    add_webhook(alive.url, kinds=("self",))
    save_finding(severity="error")
    made = notifier(dead, alive)
    for delay in SCHEDULE:
        clock.ahead += timedelta(seconds=1.3 * delay)
        drain(made)
    client.patch(f"/api/v1/webhooks/{webhook.id}", json={"enabled": False})
    with pool.connection() as conn:
        end_recovered(conn, clock())
    client.patch(f"/api/v1/webhooks/{webhook.id}", json={"enabled": True})
    clock.ahead += timedelta(minutes=1)
    for _ in range(3):
        with pool.connection() as conn:
            deliveries.retry(conn, log_of(pool, webhook)[0].id, clock())
        drain(made)
    assert own(pool) == ["open"]
    told = [json.loads(got.body)["type"] for got in alive.got]
    assert told == ["finding.opened", "finding.resolved", "finding.reopened"]


def test_gone_switches_the_endpoint_off(pool, start_receiver, add_webhook, save_finding, notifier):
    """410 ends the endpoint: nothing more is sent, and the reason is shown."""
    receiver = start_receiver(answers=[(410, {}, b"")])
    webhook, _ = add_webhook(receiver.url)
    save_finding(node="a")
    made = notifier(receiver)
    drain(made)
    save_finding(node="b")
    assert drain(made) == 0
    assert not endpoint(pool, webhook).enabled
    assert "410" in endpoint(pool, webhook).disabled_reason


def test_a_refused_address_gets_nothing(pool, receiver, add_webhook, save_finding, notifier):
    """A URL whose port the operator has not allowed is never connected to; the log gives the reason."""
    webhook, _ = add_webhook(receiver.url)
    save_finding()
    drain(notifier())
    assert receiver.got == []
    assert "SLOWRANK_WEBHOOK_ALLOW_PORTS" in log_of(pool, webhook)[0].last_error


@pytest.mark.slow
def test_a_slow_endpoint_does_not_hold_up_another(start_receiver, add_webhook, save_finding, notifier):
    """While one receiver sits on its answers, ten findings reach the other."""
    slow, quick = start_receiver(before_answer=lambda got: time.sleep(1.5)), start_receiver()
    add_webhook(slow.url)
    add_webhook(quick.url)
    for i in range(10):
        save_finding(node=f"n{i}")
    made, _ = notifier(slow, quick, limits=Limits(concurrency=2))

    async def until_quick_has_all():
        stop = asyncio.Event()
        running = asyncio.create_task(made.run(stop))
        started = time.monotonic()
        await asyncio.to_thread(quick.wait_for, 10)
        took = time.monotonic() - started
        stop.set()
        await running
        return took

    took = asyncio.run(until_quick_has_all())
    assert len(slow.got) * 1.5 <= took + 1.5


@pytest.mark.slow
def test_a_running_notifier_hears_of_a_finding_at_once(receiver, add_webhook, save_finding, notifier):
    """LISTEN wakes the notifier: far sooner than its poll interval of a minute."""
    add_webhook(receiver.url)
    made, registry = notifier(receiver, limits=Limits(poll_seconds=60))

    async def save_while_idle():
        stop = asyncio.Event()
        running = asyncio.create_task(made.run(stop))
        await asyncio.sleep(1.0)
        started = time.monotonic()
        await asyncio.to_thread(save_finding)
        await asyncio.to_thread(receiver.wait_for, 1)
        took = time.monotonic() - started
        stop.set()
        await running
        return took

    assert asyncio.run(save_while_idle()) < 5
    text = generate_latest(registry).decode()
    assert 'result="delivered"} 1.0' in text


def test_a_silenced_finding_is_not_sent_until_the_silence_ends(
    client, receiver, add_webhook, save_finding, notifier, clock
):
    """A silence over the API holds deliveries back; what is still open when it ends is notified then."""
    add_webhook(receiver.url)
    body = {
        "matchers": [{"name": "node", "value": "gpu-.*", "isRegex": True}],
        "endsAt": (datetime.now(UTC) + timedelta(hours=1)).isoformat(),
        "comment": "maintenance",
    }
    assert client.post("/api/v1/silences", json=body).status_code == 201
    save_finding()
    made = notifier(receiver)
    assert drain(made) == 0
    clock.ahead = timedelta(hours=1, seconds=5)
    assert drain(made) == 1


def test_a_silence_ended_over_the_api_lets_its_findings_go(
    client, receiver, add_webhook, save_finding, notifier
):
    """What it held back is sent at the next look, and not when the silence would have ended."""
    add_webhook(receiver.url)
    body = {
        "matchers": [{"name": "node", "value": "gpu-.*", "isRegex": True}],
        "endsAt": (datetime.now(UTC) + timedelta(days=14)).isoformat(),
        "comment": "maintenance, done early",
    }
    made = client.post("/api/v1/silences", json=body).json()
    save_finding()
    sender = notifier(receiver)
    assert drain(sender) == 0
    assert client.delete(f"/api/v1/silences/{made['id']}").status_code == 204
    assert drain(sender) == 1


def test_both_secrets_sign_while_rotating(client, pool, receiver, add_webhook, save_finding, notifier):
    """After a rotation receivers with the old and with the new secret both verify."""
    webhook, old = add_webhook(receiver.url)
    new = client.post(f"/api/v1/webhooks/{webhook.id}/secret").json()["secret"]
    save_finding()
    drain(notifier(receiver))
    for secret in (old, new):
        Verifier(secret).verify(receiver.got[0].body, receiver.got[0].headers)


@pytest.mark.slow
def test_killed_in_mid_delivery_it_is_sent_again_under_the_same_id(
    pool, api_dsn, start_receiver, add_webhook, save_finding, tmp_path
):
    """SIGKILL while the receiver has the request but has not answered: another process delivers it again."""
    processes: list[subprocess.Popen[bytes]] = []

    def start():
        environment = {n: v for n, v in os.environ.items() if not n.startswith("SLOWRANK_")} | {
            "SLOWRANK_DATABASE_URL": api_dsn,
            "SLOWRANK_WEBHOOK_ALLOW_HTTP": '["127.0.0.1"]',
            "SLOWRANK_WEBHOOK_ALLOW_PRIVATE": '["127.0.0.1"]',
            "SLOWRANK_WEBHOOK_ALLOW_PORTS": f"[{receiver.port}]",
            "SLOWRANK_NOTIFIER_LEASE_SECONDS": "20",
            "SLOWRANK_NOTIFIER_POLL_SECONDS": "0.5",
            "SLOWRANK_NOTIFIER_METRICS_PORT": "0",
        }
        command = [sys.executable, "-c", "from cli import main; main()", "notifier", "run"]
        with (tmp_path / "log").open("ab") as log:
            processes.append(subprocess.Popen(command, env=environment, cwd=tmp_path, stderr=log))
        return processes[-1]

    def kill_the_first(got):
        if len(receiver.got) == 1:
            victim.send_signal(signal.SIGKILL)
            victim.wait(10)

    receiver = start_receiver(before_answer=kill_the_first)
    webhook, secret = add_webhook(receiver.url)
    victim = start()
    save_finding()
    try:
        receiver.wait_for(1, 60)
        victim.wait(10)
        assert log_of(pool, webhook)[0].state == "pending"
        with pool.connection() as conn:
            # As time would: no lease is shorter than the longest attempt.
            conn.execute("UPDATE deliveries SET leased_until = now()")
        second = start()
        first, again = receiver.wait_for(2, 60)
        deadline = time.monotonic() + 20
        while log_of(pool, webhook)[0].state != "delivered" and time.monotonic() < deadline:
            time.sleep(0.05)
        second.send_signal(signal.SIGTERM)
        assert second.wait(20) == 0, (tmp_path / "log").read_text()
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait(10)

    assert first.headers["webhook-id"] == again.headers["webhook-id"]
    assert first.body == again.body
    Verifier(secret).verify(again.body, again.headers)
    assert log_of(pool, webhook)[0].state == "delivered"
    assert log_of(pool, webhook)[0].attempts == 2
