"""``slowrank.client`` against a served API."""

import asyncio
import threading
from datetime import UTC, datetime, timedelta

import httpx
import pytest

from api.security.auth import SCOPES
from slowrank.client import ApiError, AsyncClient, Client, access, delivery, findings


@pytest.fixture
def reach(live, receiver, new_token):
    """Address and key of a served API with a notifier."""
    return live(receiver.port), new_token(*SCOPES)


def test_both_clients_give_the_same(reach, save_finding):
    """Pages are followed; a finding read is the one listed."""
    saved = {save_finding(node=f"n{i}").id for i in range(3)}

    async def read():
        async with AsyncClient(*reach) as api:
            return [finding async for finding in api.each(findings.listed(limit=2))]

    with Client(*reach) as api:
        listed = list(api.each(findings.listed(limit=2, node="n[0-2]")))
        assert {finding["id"] for finding in listed} == saved
        assert api.send(findings.read(listed[0]["id"]))["title"] == listed[0]["title"]
    assert asyncio.run(read()) == listed


def test_a_change_is_conditional_on_what_was_read(reach, save_finding):
    """The second acknowledgement with the same tag fails: the finding has changed."""
    saved = save_finding()
    with Client(*reach) as api:
        _, tag = api.send_for_tag(findings.read(saved.id))
        done = api.send(findings.acknowledge(saved.id, note="mine", tag=tag))
        assert done["acknowledged"]["note"] == "mine"
        with pytest.raises(ApiError, match="HTTP 412") as refused:
            api.send(findings.resolve(saved.id, tag=tag))
        assert refused.value.collection == "findings"


def test_resources_from_creation_to_removal(reach, receiver):
    """A webhook, a silence and a key; what happened is in the audit log."""
    soon = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    with Client(*reach) as api:
        webhook = api.send(delivery.add_webhook(receiver.url, min_severity="error"))
        assert api.send(delivery.send_test(webhook["id"]))["delivered"]
        (sent,) = api.each(delivery.deliveries(webhook["id"]))
        assert api.send(delivery.delivery(sent["id"]))["tries"]
        silence = api.send(delivery.add_silence([{"name": "node", "value": "n1"}], soon, "why"))
        api.send(delivery.expire_silence(silence["id"]))
        key = api.send(access.create_key("small", ["findings:read"]))
        api.send(access.revoke_key(key["id"]))
        api.send(delivery.remove_webhook(webhook["id"]))
        done = {entry["action"] for entry in api.each(access.audit())}
    assert {"webhook.create", "silence.create", "silence.expire", "key.revoke", "webhook.delete"} <= done


@pytest.mark.slow
def test_events_follow_from_the_last_one(reach, save_finding):
    """An event after the stream was opened comes; with its id the next stream begins after it."""
    with Client(*reach) as api:
        save_finding(node="before")
        later = threading.Timer(1.5, save_finding, kwargs={"node": "after"})
        later.start()
        event = next(api.events())
        later.join()
        assert (event.type, event.finding["subject"]["node"]) == ("finding.opened", "after")
        save_finding(node="missed")
        assert next(api.events(event.id)).finding["subject"]["node"] == "missed"


def test_where_nothing_answers_the_stream_raises(reach):
    """A stream that was never open is no lost one."""
    with Client("http://127.0.0.1:1", "k") as api, pytest.raises(httpx.ConnectError):
        next(api.events())
    with Client(reach[0], "no key") as api, pytest.raises(ApiError, match="HTTP 401"):
        next(api.events())
