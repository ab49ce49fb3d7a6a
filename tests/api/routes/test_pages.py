"""What people are sent opens: links in alerts, the pages behind them, and who may see those."""

import asyncio
import html
import json
import re
from datetime import UTC, datetime, timedelta
from urllib.parse import urlsplit

import pytest

from api.app import create_app
from api.delivery.from_settings import webhook_client_of
from api.delivery.notifier import Notifier
from api.delivery.receivers.registry import names, receiver_named
from api.delivery.sample_event import sample_event
from api.metrics import NotifierMetrics, new_registry
from api.security.links import finding_link
from store.access.link_key import link_key
from store.findings import deliveries

PUBLIC = "http://slowrank.example.org"
# Addresses of documents for programs, which open with a key only.
FOR_PROGRAMS = ("/api/v1/", "/problems/")


@pytest.fixture
def allowed(settings, receiver):
    """Settings that let webhooks go to the receiver."""
    return settings.model_copy(update={"webhook_allow_ports": (receiver.port,)})


@pytest.fixture
def add_hook(client, allowed, pool, receiver):
    """Add a webhook in a format; return its id."""

    def add(format_name):
        api = type(client)(create_app(allowed, pool))
        api.headers = client.headers
        issued = {"secret": "0" * 32} if receiver_named(format_name).credential else {}
        made = api.post("/api/v1/webhooks", json={"url": receiver.url, "format": format_name} | issued)
        assert made.status_code == 201, made.text
        return made.json()["id"]

    return add


@pytest.fixture
def links_sent(allowed, pool, receiver):
    """Deliver what is due and return the links in it, without what is for programs."""

    def deliver():
        notifier = Notifier(
            pool=pool,
            client=webhook_client_of(allowed),
            metrics=NotifierMetrics(new_registry()),
            public_url=PUBLIC,
            instance="test",
        )
        assert asyncio.run(notifier.drain()) > 0
        text = "\n".join(json.dumps(json.loads(got.body)) for got in receiver.got)
        found = {urlsplit(url) for url in re.findall(re.escape(PUBLIC) + r'[^"\s<>]*', text)}
        return {url for url in found if not url.path.startswith(FOR_PROGRAMS)}

    return deliver


BROWSER = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


def target(url):
    return url.path + (f"?{url.query}" if url.query else "")


@pytest.mark.parametrize("name", names())
def test_every_link_that_people_are_sent_opens(client_with, add_hook, links_sent, save_finding, name):
    """Asked for as a browser does, without a key: 200, with the finding's title on the page."""
    add_hook(name)
    finding = save_finding(title="n1 <b>GPU 5</b> & 'more'")
    sent = links_sent()
    for link in sent:
        answer = client_with().get(target(link) or "/")
        assert answer.status_code == 200, (link, answer.text)
    if name in ("slack", "alertmanager", "pagerduty"):
        (link,) = (link for link in sent if link.path == f"/findings/{finding.id}")
        assert html.escape(finding.title) in client_with().get(target(link)).text


def test_the_link_of_a_test_delivery_opens(client_with, add_hook, links_sent, pool):
    """Its finding is invented: the button leads to the front page."""
    hook = add_hook("slack")
    with pool.connection() as conn:
        deliveries.test(conn, hook, sample_event(datetime.now(UTC)))
    (link,) = links_sent()
    assert client_with().get(target(link)).status_code == 200


@pytest.fixture
def link(pool):
    """Make links: ``link(finding)``, for what happened some days ago."""
    with pool.connection() as conn:
        key = link_key(conn)

    def make(finding, days=0.0, key=key):
        made = finding_link(PUBLIC, finding.id, key=key, at=datetime.now(UTC) - timedelta(days=days))
        return made.removeprefix(PUBLIC)

    return make


def test_a_link_opens_its_finding_alone_for_seven_days(client_with, save_finding, link):
    """Another finding, a later day, another key or a changed token: 401, and nothing of the finding."""
    nobody = client_with()
    first, second = save_finding(node="n1"), save_finding(node="n2")
    assert nobody.get(link(first, days=6.9)).status_code == 200
    token = link(first).partition("?")[2]
    refused = {
        "another finding": f"/findings/{second.id}?{token}",
        "too old": link(first, days=7.1),
        "another key": link(first, key=b"x" * 32),
        "lengthened": link(first).replace("?t=", "?t=f"),
        "cut": link(first)[:-1],
        "none": f"/findings/{first.id}",
        "long": f"/findings/{first.id}?t={'a' * 5000}",
        "not ascii": f"/findings/{first.id}?t=%E2%80%AE.%00",
    }
    for name, path in refused.items():
        answer = nobody.get(path, headers=BROWSER)
        assert answer.status_code == 401, name
        assert "is 1.31x slower" not in answer.text, name
        assert "slowrank findings show" in answer.text, name
    assert "expired" in nobody.get(refused["too old"], headers=BROWSER).text


def test_a_link_reads_and_nothing_else(client_with, save_finding, link):
    """The API takes no token of a link, and the page takes no other method."""
    nobody, finding = client_with(), save_finding()
    token = link(finding).partition("?")[2]
    assert nobody.get(f"/api/v1/findings/{finding.id}?{token}").status_code in (401, 422)
    assert nobody.patch(f"/api/v1/findings/{finding.id}", json={"status": "resolved"}).status_code == 401
    for method in ("POST", "PATCH", "DELETE"):
        assert nobody.request(method, link(finding)).status_code == 405


def test_who_guesses_tokens_is_slowed_down(client_with, save_finding):
    """As who guesses keys is: 20 at once, then one a second."""
    nobody, finding = client_with(), save_finding()
    path = f"/findings/{finding.id}?t=6a000000.{'a' * 22}"
    assert [nobody.get(path).status_code for _ in range(22)][-1] == 429


def test_a_key_opens_the_page_where_it_may_read(client, client_with, save_finding):
    """With findings:read and the finding's cluster; else as the API answers."""
    finding = save_finding(cluster="prod-a")
    path = f"/findings/{finding.id}"
    assert client_with("findings:read").get(path).status_code == 200
    assert client_with("findings:read", clusters=("prod-a",)).get(path).status_code == 200
    assert client_with("findings:read", clusters=("prod-b",)).get(path).status_code == 404
    assert client_with("telemetry:write").get(path).status_code == 403
    assert client.get("/findings/fnd_01JD7Q4Y6R8V2M3K5N9P0S1T2W").status_code == 404


def test_the_address_of_a_page_is_not_passed_on(client_with, save_finding, link):
    """No referrer, no cache, no script, nothing loaded; the token is neither on the page nor in an error."""
    finding = save_finding()
    good = link(finding)
    wrong = good[:-2] + "zz"
    for path in (good, wrong):
        answer = client_with().get(path, headers=BROWSER)
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert "no-store" in answer.headers["cache-control"]
        assert answer.headers["content-security-policy"].startswith("default-src 'none'; style-src 'sha256-")
        assert path.partition("t=")[2] not in answer.text
        assert "<script" not in answer.text
        assert "href" not in answer.text


def test_the_front_page_says_how_to_go_on(client_with):
    """Where people land by the address alone."""
    answer = client_with().get("/")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/html")
    assert "slowrank findings list" in answer.text


def test_what_a_training_job_is_called_is_text(client_with, save_finding, link):
    """Markup in what strangers name is shown, not run."""
    finding = save_finding(title="<script>alert(1)</script>", node="<img src=x onerror=alert(1)>")
    text = client_with().get(link(finding)).text
    assert "<script>alert" not in text
    assert "<img" not in text
    assert "&lt;img src=x" in text
