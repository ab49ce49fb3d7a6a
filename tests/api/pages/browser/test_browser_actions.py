"""Everything that the pages offer, done with clicks and keys in headless Chromium against a served app."""

import json
from urllib.parse import quote

import numpy as np
import pytest
from chromium import CHROMIUM

from api.security.sessions import COOKIE
from cli.run.demo_breakage import Breakage
from cli.run.demo_scenario import draw

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: apt-get install chromium"),
]


READY = "document.readyState === 'complete'"


def send(page, action, **fields):
    """Fill the form that is sent to a path ending in ``action``, as a person does, and press its button."""
    form = f"document.querySelector({json.dumps(f'form[action$={json.dumps(action)}]')})"
    page.run(f"(() => {{ const folded = {form}.closest('details'); if (folded) folded.open = true; }})()")
    for name, value in fields.items():
        field = f"{form}.elements[{json.dumps(name)}]"
        page.run(f"{field}.type === 'checkbox' ? {field}.click() : ({field}.value = {json.dumps(value)})")
    page.run(f"window.left = true, {form}.querySelector('button').click()")
    page.wait_for(f"window.left === undefined && {READY}")


def text(page):
    """What is read on the page."""
    return page.run("document.body.innerText")


def test_a_finding_is_answered(signed_in_tab, save_finding, client):
    """Acknowledged, silenced, judged and resolved, each with what was typed; the page says what was done."""
    page, base = signed_in_tab
    finding = save_finding()
    page.open(f"{base}/findings/{finding.id}")
    send(page, "/acknowledge", note="looking at the fan")
    assert "Acknowledged." in text(page)
    send(page, "/silence", what="node", hours="4", comment="fan on order")
    assert "Silenced" in text(page)
    send(page, "/feedback", verdict="true_positive", note="it was the fan")
    assert "the verdict is stored" in text(page)
    send(page, "/resolve", note="fan replaced")
    assert "Resolved." in text(page)
    shown = text(page)
    assert all(note in shown for note in ("looking at the fan", "it was the fan", "fan replaced"))
    stored = client.get(f"/api/v1/findings/{finding.id}").json()
    assert (stored["status"], stored["feedback"]["verdict"]) == ("resolved", "true_positive")
    (silence,) = client.get("/api/v1/silences").json()["items"]
    assert {(m["name"], m["value"]) for m in silence["matchers"]} == {
        ("cluster", "prod-a"),
        ("node", "gpu-0423"),
    }
    assert page.console == []


def test_the_cost_of_an_open_finding_follows_what_is_stored(signed_in_tab, save_finding):
    """Read anew every 15 s, and when the tab is looked at again; never reckoned on the page."""
    page, base = signed_in_tab
    finding = save_finding(gpu_hours_lost=1.5)
    page.open(f"{base}/findings/{finding.id}")
    assert page.run("document.querySelector('.cost').textContent") == "1.5"
    save_finding(onset=finding.onset, last_seen_at=finding.last_seen_at + 30, gpu_hours_lost=1.75)
    page.run("document.dispatchEvent(new Event('visibilitychange'))")
    page.wait_for("document.querySelector('.cost').textContent === '1.75'")
    assert page.console == []


def test_a_command_is_copied(signed_in_tab, save_finding):
    """The button puts the text beside it on the clipboard, and says so."""
    page, base = signed_in_tab
    page.call("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
    page.open(f"{base}/findings/{save_finding().id}")
    page.call("Page.bringToFront")
    page.run("document.querySelector('[data-copy]').click()")
    page.wait_for("document.querySelector('[data-copy]').textContent === 'Copied'")
    shown = page.run("document.querySelector('.copied code').textContent")
    assert shown
    assert page.run("navigator.clipboard.readText()") == shown
    page.wait_for("document.querySelector('[data-copy]').textContent === 'Copy'")
    assert page.console == []


def test_a_webhook_is_handled(signed_in_tab, client):
    """Added, given a new secret, disabled, enabled and deleted; secrets are on one page only."""
    page, base = signed_in_tab
    page.open(f"{base}/settings")
    send(page, "/settings/webhooks", url="http://127.0.0.1/hook", name="pager", min_severity="error")
    first = page.run("document.querySelector('.copied code').textContent")
    assert first.startswith("whsec_")
    (hook,) = client.get("/api/v1/webhooks").json()["items"]
    send(page, f"{hook['id']}/rotate")
    second = page.run("document.querySelector('.copied code').textContent")
    assert second.startswith("whsec_")
    assert second != first
    for action, status in (("disable", "disabled"), ("enable", "active")):
        send(page, f"{hook['id']}/{action}")
        assert client.get(f"/api/v1/webhooks/{hook['id']}").json()["status"] == status
        assert "whsec_" not in text(page)
    send(page, f"{hook['id']}/delete")
    assert "The webhook is deleted." in text(page)
    assert client.get("/api/v1/webhooks").json()["items"] == []
    assert page.console == []


def test_a_silence_is_ended(signed_in_tab, save_finding, client):
    """On the settings page, where it then is among those that have expired."""
    page, base = signed_in_tab
    page.open(f"{base}/findings/{save_finding().id}")
    send(page, "/silence", what="kind", hours="24", comment="known")
    page.open(f"{base}/settings")
    (silence,) = client.get("/api/v1/silences").json()["items"]
    send(page, f"{silence['id']}/expire")
    assert "The silence has ended." in text(page)
    (silence,) = client.get("/api/v1/silences").json()["items"]
    assert silence["status"]["state"] == "expired"
    assert page.console == []


def test_keys_and_sessions(signed_in_tab, client_with):
    """A key is created, signs in after a sign-out, and once revoked opens nothing more."""
    page, base = signed_in_tab
    page.open(f"{base}/settings")
    send(page, "/settings/keys", name="board", days="30", **{"scope:findings:read": True})
    token = page.run("document.querySelector('.copied code').textContent")
    bearer = {"authorization": f"Bearer {token}"}
    assert client_with().get("/api/v1/findings", headers=bearer).status_code == 200
    send(page, f"{token.split('_')[1]}/revoke")
    assert client_with().get("/api/v1/findings", headers=bearer).status_code == 401
    send(page, "/settings/keys", name="second", days="1", **{"scope:findings:read": True})
    token = page.run("document.querySelector('.copied code').textContent")
    send(page, "/sign-out")
    page.open(f"{base}/findings")
    assert page.run("document.querySelector('form[action=\"/sign-in\"]') !== null")
    # The refused page is an error of the network to the browser; it is no error of a script.
    assert all("401" in line for line in page.console)
    page.console.clear()
    page.open(f"{base}/sign-in?next=/findings")
    send(page, "/sign-in", key=token)
    assert page.run("location.pathname") == "/findings"
    assert COOKIE not in page.run("document.cookie")
    assert page.console == []


def test_the_demo_is_broken_by_keys(live, tab_at, add_nodes):
    """Each choice that is offered, by the key beside it, once; the page lists what has begun."""
    breakage = Breakage(draw(7, start=1_795_160_400.0), np.random.default_rng(7))
    add_nodes("n1")
    base = live(breakable=breakage)
    page = tab_at(base)
    assert [choice.key for choice in breakage.choices] == ["1", "2", "3", "4", "5"]
    for at, choice in enumerate(breakage.choices):
        page.open(f"{base}/")
        page.run("window.left = true")
        page.press(choice.key)
        page.wait_for(f"window.left === undefined && location.hash === '#break' && {READY}")
        breakage.apply(50.0 + 300 * at)
        page.open(f"{base}/")
        assert breakage.begun()[0].title in text(page)
    assert len(breakage.begun()) == 5
    assert page.console == []


HOSTILE = (
    "<script>window.hacked=1</script>",
    '"><img src=x onerror="window.hacked=1">',
    "'; DROP TABLE nodes; --",
    "{{ 7*7 }}${7*7}",
    "javascript:window.hacked=1",
    "\u202eepyt-\u2066n\u05d0\u05d1",
    "n" * 128,
    "\U0001f525\U0001f469\u200d\U0001f680 node",
)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_do_nothing(signed_in_tab, save_finding, add_nodes, add_job, name):
    """As node, job, key, silence and title: shown as text, nothing runs, nothing is wider than the screen."""
    page, base = signed_in_tab
    add_nodes(name, f"{name}2", rack=name)
    add_job(name)
    finding = save_finding(node=name, title=f"{name} GPU 5 is slower")
    page.open(f"{base}/findings/{finding.id}")
    send(page, "/silence", what="node", hours="1", comment=name)
    send(page, "/acknowledge", note=name)
    page.open(f"{base}/settings")
    send(page, "/settings/keys", name=name, **{"scope:findings:read": True})
    quoted = quote(name, safe="")
    for path in (
        "/",
        "/findings",
        f"/findings?node={quoted}",
        f"/findings/{finding.id}",
        "/jobs",
        f"/job?cluster=prod-a&job_id={quoted}",
        f"/node?cluster=prod-a&node={quoted}",
        "/timeline",
        "/settings",
    ):
        for width, dark in ((1280, False), (390, True)):
            page.show(width, 800, dark=dark)
            page.open(base + path)
            page.wait_for("!document.body.innerText.includes('Loading…')")
            assert page.run("window.hacked") is None, path
            assert page.run("document.documentElement.scrollWidth") <= width, (path, width)
            assert page.console == [], (path, width)
    # Direction marks and other characters that are not seen are replaced.
    shown = "".join(c if c.isprintable() else "\ufffd" for c in name)
    assert shown in page.run("document.body.textContent").replace("\u200d", "\ufffd")
