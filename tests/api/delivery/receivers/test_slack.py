"""Slack: payloads within its limits, and with a bot's token one message a finding, kept up to date."""

import asyncio
import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import get_args

import pytest

from alerts.config import FindingConfig
from alerts.finding import Action
from alerts.notify import DEFAULT_EVENTS, EventType
from api.app import create_app
from api.delivery.receivers.finding_text import escaped
from api.delivery.receivers.receiver import Notification
from api.delivery.receivers.registry import receiver_named
from api.delivery.slack_client import SlackClient
from store.findings import findings
from tests.api.delivery.receivers.slack_server import TOKEN, Slack, refusal
from tests.api.delivery.receivers.test_receivers import FINDINGS, body, example

NOW = datetime(2026, 11, 20, 7, 34, 2, tzinfo=UTC)
CHANNEL = "C0123456789"
LINK = "https://slowrank.example.org/findings/fnd_1?t=1.2"
AMPERSANDS = example(title="&" * 500, action=Action("WATCH", "<" * 5000), kind="k")
EMOJI = example(title="🔥" * 500, action=Action("WATCH", "🔥" * 5000))


@pytest.mark.parametrize("finding", [*FINDINGS.values(), AMPERSANDS, EMOJI, example(title="")])
@pytest.mark.parametrize("happened", get_args(EventType))
@pytest.mark.parametrize("status", ["open", "acknowledged", "resolved", "expired"])
def test_payloads_keep_slacks_limits(finding, happened, status):
    """Both modes, in every state: lengths in UTF-16 after escaping, no empty text, no mention."""
    drawn = f"a`<b> in Hz\n{'█&' * 500}\n" * 9
    notification = Notification("m", happened, NOW, finding | {"status": status}, LINK, TOKEN, plot=drawn)
    by_webhook = json.loads(receiver_named("slack").body(notification, ""))
    by_bot = json.loads(receiver_named("slack_bot").body(notification, ""))
    replies = [by_bot["reply"]] if by_bot["reply"] else []
    for payload in (by_webhook, by_bot["message"], *replies):
        assert refusal(payload) == ""
        assert "<" not in json.dumps(payload)
        assert "\\u0000" not in json.dumps(payload)


def test_an_escape_is_never_cut():
    """What does not fit is left out whole."""
    assert escaped("a&b<c>", 100) == "a&amp;b&lt;c&gt;"
    assert [escaped("a&b", limit) for limit in range(1, 8)] == ["a", *["a"] * 4, "a&amp;", "a&amp;b"]
    assert [escaped("🔥b", limit) for limit in (1, 2, 3)] == ["", "🔥", "🔥b"]


def test_slack_escapes_and_shortens():
    """No inserted string can mention a channel, and Slack's length limits hold."""
    parsed = json.loads(body("slack", Notification("m", "t", NOW, FINDINGS["hostile"])))
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
def test_slack_marks_what_is_no_opening(happened, begins):
    """A channel that asked for acknowledgements does not take one for another finding."""
    parsed = json.loads(body("slack", Notification("m", happened, NOW, FINDINGS["ordinary"])))
    assert parsed["text"].startswith(begins)


@pytest.fixture
def slack(start_receiver):
    """A workspace whose API is on loopback: (workspace, receiver, URL of a channel)."""
    workspace = Slack()
    receiver = start_receiver(reply=lambda got: (200, {}, workspace.answer(got)))
    return workspace, receiver, f"http://127.0.0.1:{receiver.port}/api/chat.postMessage?channel={CHANNEL}"


@pytest.fixture
def hooked(slack, client, settings, pool, notifier):
    """The workspace with a webhook to its channel, the webhook, and a function that sends what is due."""
    workspace, receiver, url = slack
    client._app = create_app(settings.model_copy(update={"webhook_allow_ports": (receiver.port,)}), pool)
    events = [*DEFAULT_EVENTS, "finding.acknowledged", "finding.updated"]
    asked = {"url": url, "format": "slack_bot", "secret": TOKEN, "events": events}
    made = client.post("/api/v1/webhooks", json=asked)
    assert made.status_code == 201, made.text
    assert TOKEN not in made.text
    sender = notifier(receiver)[0]
    return workspace, made.json()["id"], lambda: asyncio.run(sender.drain())


@pytest.fixture
def save(pool):
    """Store the next version of a finding."""

    def store(finding, seconds, **changes):
        with pool.connection() as conn:
            findings.save(
                conn, replace(finding, last_seen_at=finding.onset + seconds, **changes), FindingConfig()
            )

    return store


def last_error(pool):
    with pool.connection() as conn:
        row = conn.execute(
            "SELECT state, last_error FROM deliveries ORDER BY created_at DESC LIMIT 1"
        ).fetchone()
    return row


def test_a_finding_is_one_message_that_follows_it(hooked, client, save_finding, save):
    """Its message has the present state; what happened is in the thread, new trouble in the channel too."""
    slack, _, drain = hooked
    one = save_finding(severity="warning", title="one is slow")
    save_finding(node="gpu-0001", title="two is slow")
    drain()
    assert sorted(slack.shown()) == [
        ("CRITICAL two is slow", None, True),
        ("WARNING one is slow", None, True),
    ]

    save(one, 40, severity="critical", title="one is slower")
    drain()
    url = f"/api/v1/findings/{one.id}"
    assert client.patch(url, json={"status": "acknowledged"}, headers={"if-match": "*"}).status_code == 200
    drain()
    acknowledged = "Acknowledged: CRITICAL one is slower"
    assert (acknowledged, None, True) in slack.shown()
    save(one, 60, severity="critical", title="one is slower", status="resolved", resolved_at=one.onset + 60)
    drain()
    save(one, 90, severity="critical", title="one again", occurrences=2)
    drain()
    now = "CRITICAL one again"
    assert sorted(slack.shown()) == sorted(
        [
            (now, None, True),
            ("CRITICAL two is slow", None, True),
            ("Escalated: CRITICAL one is slower", now, True),
            (acknowledged, now, False),
            ("Resolved: one is slower", now, False),
            ("Back again: CRITICAL one again", now, True),
        ]
    )
    assert slack.calls.count("chat.update") == 4


@pytest.mark.parametrize("error", ["message_not_found", "cant_update_message", "edit_window_closed"])
def test_a_message_that_is_lost_is_posted_anew(hooked, save_finding, save, error):
    """It was deleted, or the workspace allows no changes of old ones: later updates go to the new one."""
    slack, _, drain = hooked
    finding = save_finding(severity="warning")
    drain()
    slack.refusing = [error]
    save(finding, 40, severity="critical")
    drain()
    save(finding, 60, severity="critical", status="resolved", resolved_at=finding.onset + 60)
    drain()
    posts = ["chat.postMessage", "chat.update", "chat.postMessage", "chat.update", "chat.postMessage"]
    assert slack.calls == posts
    first, second, reply = slack.shown()
    assert (first[0][:7], second[0][:9], reply[1]) == ("WARNING", "Resolved:", second[0])


@pytest.mark.parametrize("error", ["invalid_auth", "not_in_channel", "channel_not_found"])
def test_a_refusal_in_a_200_is_a_failure(hooked, pool, save_finding, clock, error):
    """It is in the log by its name and tried again; the token is not there."""
    slack, _, drain = hooked
    slack.refusing = [error]
    save_finding()
    drain()
    assert last_error(pool) == ("pending", f"Slack: chat.postMessage {error}")
    clock.ahead += type(clock.ahead)(seconds=3)
    drain()
    assert last_error(pool) == ("delivered", "")
    assert len(slack.messages) == 1
    with pool.connection() as conn:
        logged = conn.execute("SELECT error || excerpt FROM delivery_attempts").fetchall()
    assert TOKEN not in str(logged)


def test_a_reply_that_fails_does_not_lose_the_message(hooked, pool, save_finding, save, clock):
    """The update is repeated with it, which changes nothing, and there is one reply."""
    slack, _, drain = hooked
    finding = save_finding(severity="warning")
    drain()
    slack.refusing = ["", "internal_error"]
    save(finding, 40, severity="critical")
    drain()
    assert last_error(pool) == ("pending", "Slack: chat.postMessage internal_error")
    clock.ahead += type(clock.ahead)(seconds=3)
    drain()
    assert slack.calls == ["chat.postMessage", *["chat.update", "chat.postMessage"] * 2]
    assert len(slack.messages) == 2


def test_another_channel_gets_a_message_of_its_own(hooked, client, pool, save_finding, save):
    """After the webhook is moved, the message in the old channel stays as it was."""
    slack, _, drain = hooked
    finding = save_finding(severity="warning")
    drain()
    with pool.connection() as conn:
        conn.execute("UPDATE webhooks SET url = replace(url, %s, 'C999')", (CHANNEL,))
    save(finding, 40, severity="critical")
    drain()
    assert [channel for channel, _ in slack.messages] == [CHANNEL, "C999"]


def test_busy_slack_is_asked_again_when_it_says(slack, notifier, add_webhook, save_finding, pool, clock):
    """429 with Retry-After; an answer that is not Slack's is a failure as well."""
    _, receiver, url = slack
    add_webhook(url, format="slack_bot")
    receiver.reply = lambda got: (429, {"retry-after": "77"}, b"")
    save_finding()
    sender = notifier(receiver)[0]
    before = clock()
    asyncio.run(sender.drain())
    with pool.connection() as conn:
        [(again,)] = conn.execute("SELECT next_attempt_at FROM deliveries").fetchall()
    assert 76 < (again - before).total_seconds() < 80
    receiver.reply = lambda got: (200, {}, b"<html>")
    clock.ahead += type(clock.ahead)(seconds=80)
    asyncio.run(sender.drain())
    assert last_error(pool) == ("pending", "the answer is not that of Slack's Web API")


def test_two_calls_take_no_longer_than_an_attempt():
    """The lease of a delivery is longer than one attempt, however many calls that has."""

    class Never:
        async def post(self, url, headers, body, /):
            await asyncio.sleep(60)

    notification = Notification("m", "finding.opened", NOW, example(), LINK, TOKEN)
    data = receiver_named("slack_bot").body(notification, "")
    url = f"https://slack.com/api/chat.postMessage?channel={CHANNEL}"
    answer = asyncio.run(SlackClient(Never(), total_seconds=0.2).post(url, {}, data))
    assert answer.error == "timeout: no complete answer within 0.2 s"


@pytest.mark.parametrize(
    "change",
    [
        {"url": "https://slack.com/api/chat.postMessage"},
        {"url": "https://slack.com/api/chat.postMessage?channel=general"},
        {"url": f"https://slack.com/api/chat.delete?channel={CHANNEL}"},
        {"url": f"https://slack.com/api/chat.postMessage?channel={CHANNEL}&x=1"},
        {"secret": "xoxp-0123456789-abcdefghij"},
        {"secret": "xoxb-0123456789\r\nX-Evil: 1"},
        {"secret": None},
    ],
)
def test_the_api_takes_a_channel_and_a_bots_token(client, change):
    """Another URL is a 403, another secret a 409."""
    url = f"https://slack.com/api/chat.postMessage?channel={CHANNEL}"
    asked = {"url": url, "format": "slack_bot", "secret": TOKEN} | change
    assert client.post("/api/v1/webhooks", json=asked).status_code == (403 if "url" in change else 409)


@pytest.fixture
def slack_hook(receiver, add_webhook):
    """An incoming webhook."""
    return add_webhook(receiver.url, format="slack")[0]


def test_the_evidence_is_drawn_in_the_message(receiver, slack_hook, slow_job, notifier):
    """As lines of block characters in a block of code: the rank beside its peers, and the onset."""
    asyncio.run(notifier(receiver)[0].drain())
    [drawn] = [
        block["text"]["text"]
        for block in json.loads(receiver.got[0].body)["blocks"]
        if block["type"] == "section" and block.get("text", {}).get("text", "").startswith("```")
    ]
    assert drawn.endswith("```")
    heading, own, peers, onset, *_ = drawn.strip("`").split("\n")
    assert heading.startswith("compute_seconds beside its peers: ")
    assert {own[:8], peers[:8]} == {"subject ", "peers   "}
    assert "█" in own
    assert "█" not in peers
    assert onset.endswith("^ onset")
