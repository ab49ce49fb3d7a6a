"""The settings page: silences, webhooks and keys, shown and changed by keys with their scopes."""

import re
from datetime import UTC, datetime, timedelta

import httpx
import pytest

from api.security.auth import SCOPES


def secret_on(answer, prefix):
    found = re.search(rf"<code>({prefix}[^<]*)</code>", answer.text)
    assert found, answer.text
    return found[1]


def test_a_silence_is_listed_and_ended(signed_in, client, save_finding):
    """With its matchers, comment and end; afterwards it is listed as expired."""
    finding, browser = save_finding(), signed_in()
    browser.submit(f"/findings/{finding.id}/silence", what="node", hours="4", comment="fan <b>")
    (silence,) = client.get("/api/v1/silences").json()["items"]
    text = browser.get("/settings").text
    assert "node=gpu-0423" in text
    assert "fan &lt;b&gt;" in text
    assert browser.submit(f"/settings/silences/{silence['id']}/expire").status_code == 303
    assert client.get("/api/v1/silences").json()["items"][0]["status"]["state"] == "expired"
    assert "End now" not in browser.get("/settings").text


def test_a_webhook_is_added_switched_and_deleted(signed_in, client):
    """Its secret is shown once; its address without the path, which may be a secret."""
    browser = signed_in()
    fields = {"url": "http://127.0.0.1/hooks/T0P5ECRET", "name": "pager", "format": "standard"}
    added = browser.submit("/settings/webhooks", **fields, min_severity="error", secret="")
    assert added.status_code == 200
    assert secret_on(added, "whsec_") not in browser.get("/settings").text
    assert "T0P5" not in browser.get("/settings").text
    (hook,) = client.get("/api/v1/webhooks").json()["items"]
    assert (hook["name"], hook["min_severity"], hook["status"]) == ("pager", "error", "active")
    for form, status in (("disable", "disabled"), ("enable", "active")):
        assert browser.submit(f"/settings/webhooks/{hook['id']}/{form}").status_code == 303
        assert client.get("/api/v1/webhooks").json()["items"][0]["status"] == status
    assert browser.submit(f"/settings/webhooks/{hook['id']}/delete").status_code == 303
    assert client.get("/api/v1/webhooks").json()["items"] == []


def test_a_secret_is_replaced(signed_in, client):
    """By a new one that is shown once, or by the one that the receiver has issued, which is not shown."""
    browser = signed_in()
    first = secret_on(browser.submit("/settings/webhooks", url="http://127.0.0.1/hook"), "whsec_")
    (hook,) = client.get("/api/v1/webhooks").json()["items"]
    rotated = browser.submit(f"/settings/webhooks/{hook['id']}/rotate")
    assert secret_on(rotated, "whsec_") != first
    assert "deliveries are signed with the old one as well" in rotated.text
    routing_key = "a" * 32
    fields = {"url": "http://127.0.0.1/v2/enqueue", "format": "pagerduty", "secret": routing_key}
    assert browser.submit("/settings/webhooks", **fields).status_code == 200
    pager = next(
        one for one in client.get("/api/v1/webhooks").json()["items"] if one["format"] == "pagerduty"
    )
    assert browser.submit(f"/settings/webhooks/{pager['id']}/rotate").status_code == 409
    replaced = browser.submit(f"/settings/webhooks/{pager['id']}/rotate", secret="b" * 32)
    assert replaced.status_code == 200
    assert "b" * 32 not in replaced.text


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"url": "http://169.254.169.254/"}, 403),
        ({"url": "http://127.0.0.1/", "format": "fax"}, 422),
        ({"url": ""}, 422),
        ({"url": "javascript:alert(1)"}, 422),
        ({"url": "http://127.0.0.1/", "format": "pagerduty"}, 409),
    ],
)
def test_a_refused_webhook_says_why(signed_in, client, fields, status):
    """By the rules of the API, on a page from which one goes on, still signed in."""
    answer = signed_in().submit("/settings/webhooks", **fields)
    assert answer.status_code == status
    assert "<h1>" in answer.text
    assert 'href="/settings"' in answer.text
    assert "Sign out" in answer.text
    assert ("restart it after a change" in answer.text) is (status == 403)
    assert client.get("/api/v1/webhooks").json()["items"] == []


def test_a_test_delivery_shows_the_answer(live, receiver, new_token, add_webhook, visitor):
    """What the receiver answered and how long it took, from the real notifier."""
    hook, _ = add_webhook(receiver.url)
    with httpx.Client(base_url=live(receiver.port), trust_env=False, timeout=30) as client:
        browser = type(visitor)(client)
        browser.sign_in(new_token(*SCOPES))
        text = browser.submit(f"/settings/webhooks/{hook.id}/test").text
        assert re.search(r"Delivered after \d+\.\d\d s \(HTTP 200\)", text)
        receiver.answers = [(500, {}, b"")]
        assert "Not delivered" in browser.submit(f"/settings/webhooks/{hook.id}/test").text


def test_a_key_is_created_and_revoked(signed_in, client_with, client):
    """Its token is shown once and works; no scope beyond those of the session's key can be given."""
    browser = signed_in()
    made = browser.submit("/settings/keys", name="board", days="30", **{"scope:findings:read": "on"})
    token = secret_on(made, "srk_")
    assert token not in browser.get("/settings").text
    bearer = {"authorization": f"Bearer {token}"}
    assert client_with().get("/api/v1/findings", headers=bearer).status_code == 200
    assert client_with().get("/api/v1/keys", headers=bearer).status_code == 403
    key_id = token.split("_")[1]
    assert browser.submit(f"/settings/keys/{key_id}/revoke").status_code == 303
    assert client_with().get("/api/v1/findings", headers=bearer).status_code == 401
    assert browser.submit("/settings/keys", name="x").status_code == 422
    mine = client.get("/api/v1/audit").json()["items"][-1]["key_id"]
    assert browser.submit(f"/settings/keys/{mine}/revoke").status_code == 409
    lesser = signed_in("findings:read", "keys:admin")
    assert lesser.submit("/settings/keys", name="x", **{"scope:keys:admin": "on"}).status_code == 200
    assert lesser.submit("/settings/keys", name="x", **{"scope:metrics:read": "on"}).status_code == 403


def test_what_a_key_may_not_change_is_not_shown(signed_in, add_webhook):
    """A reader sees silences alone; a key of a cluster no webhook of others."""
    add_webhook("http://127.0.0.1/a", name="of all")
    reader = signed_in("findings:read").get("/settings").text
    assert "Webhooks" not in reader
    assert "API keys" not in reader
    limited = signed_in("findings:read", "webhooks:admin", clusters=("a",))
    assert "of all" not in limited.get("/settings").text
    assert limited.submit("/settings/webhooks", url="http://127.0.0.1/b").status_code == 200
    assert "127.0.0.1" in limited.get("/settings").text


def test_expired_keys_are_not_listed(signed_in, new_token):
    """They open nothing any more."""
    new_token("findings:read", expires_at=datetime.now(UTC) - timedelta(days=1))
    assert signed_in().get("/settings").text.count("Revoke…") == 1
