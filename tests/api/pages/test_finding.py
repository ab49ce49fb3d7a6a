"""The page of a finding: who may see it, by which link, what it shows, and what its forms change."""

import asyncio
import html
import json
import re
import time
from datetime import UTC, datetime, timedelta
from urllib.parse import urlsplit

import msgspec
import pytest

from alerts.finding import Action, Cause
from api.app import create_app
from api.delivery.from_settings import webhook_client_of
from api.delivery.notifier import Notifier
from api.delivery.receivers.registry import names, receiver_named
from api.delivery.sample_event import sample_event
from api.metrics import NotifierMetrics, new_registry
from api.security.links import finding_link
from slowrank.telemetry.records import Baseline, Evidence, Peers, Subject, Suspect
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


# E-mail has a mail server of its own in tests/api/delivery/receivers.
POSTED = [name for name in names() if receiver_named(name).transport == "http"]


@pytest.mark.parametrize("name", POSTED)
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
        text = client_with().get(target(link)).text
        assert finding.title in html.unescape(text)
        assert "<b>GPU" not in text


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


def test_the_plots_open_to_whoever_may_open_the_page(client_with, save_finding, link):
    """The link of this finding, and keys that may read it; not the link of another finding."""
    nobody = client_with()
    first, second = save_finding(cluster="prod-a"), save_finding(node="n2", cluster="prod-b")
    token = link(first).partition("?")[2]
    found = nobody.get(f"/findings/{first.id}/evidence.json?{token}")
    assert found.status_code == 200
    assert found.json()["finding_id"] == first.id
    assert found.json() == client_with("findings:read").get(f"/api/v1/findings/{first.id}/evidence").json()
    assert f'data-evidence="/findings/{first.id}/evidence.json"' in nobody.get(link(first)).text
    assert nobody.get(f"/findings/{second.id}/evidence.json?{token}").status_code == 401
    limited = client_with("findings:read", clusters=("prod-a",))
    assert limited.get(f"/findings/{first.id}/evidence.json").status_code == 200
    assert limited.get(f"/findings/{second.id}/evidence.json").status_code == 404


def test_a_link_reads_and_nothing_else(client_with, save_finding, link):
    """The API takes no token of a link, and the page takes no other method."""
    nobody, finding = client_with(), save_finding()
    token = link(finding).partition("?")[2]
    assert nobody.get(f"/api/v1/findings/{finding.id}?{token}").status_code in (401, 422)
    assert nobody.patch(f"/api/v1/findings/{finding.id}", json={"status": "resolved"}).status_code == 401
    for method in ("POST", "PATCH", "DELETE"):
        assert nobody.request(method, link(finding)).status_code == 405
    for form in ("acknowledge", "resolve", "silence", "feedback"):
        assert nobody.post(f"/findings/{finding.id}/{form}?{token}").status_code == 401
    assert "<form" not in nobody.get(link(finding)).text


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
    """No referrer, no cache, nothing of another site; the token is neither on the page nor in an error."""
    finding = save_finding()
    good = link(finding)
    wrong = good[:-2] + "zz"
    for path in (good, wrong):
        answer = client_with().get(path, headers=BROWSER)
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert "no-store" in answer.headers["cache-control"]
        policy = answer.headers["content-security-policy"].split("; ")
        assert "default-src 'self'" in policy
        assert "script-src 'self'" in policy
        assert "style-src 'self'" in policy
        assert "form-action 'self'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in answer.headers["content-security-policy"]
        assert path.partition("t=")[2] not in answer.text
        assert all(to.startswith("/") for to in re.findall(r'(?:href|src|action)="([^"#]+)"', answer.text))


def test_the_front_page_says_how_to_go_on(client_with):
    """Where people land by the address alone."""
    answer = client_with().get("/")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/html")
    assert "slowrank findings list" in answer.text


def test_what_a_training_job_is_called_is_text(client_with, save_finding, link):
    """Markup in what strangers name is shown, not run."""
    finding = save_finding(title="<script>alert(1)</script>", node="<img src=x onerror=alert(1)>")
    text = client_with().get(link(finding), headers=BROWSER).text
    assert "<script>alert" not in text
    assert "<img" not in text
    assert "&lt;img src=x" in text


def evidence(**fields):
    return Evidence(metric="compute_seconds", unit="s", detector="peer_step", value=2.904, **fields)


def test_the_page_leads_from_title_to_cost_cause_action_and_proof(signed_in, save_finding):
    """In the order in which somebody who was just woken up reads it."""
    peers = Peers(group="all ranks", n=127, p05=2.191, median=2.217, p95=2.249, rank_of_subject=128)
    finding = save_finding(
        job_slowdown_ratio=1.31,
        gpu_hours_lost=12.5,
        cause=Cause("throttle.thermal", 0.93, {"link.pcie_downgrade": 0.05}, ("network", "data_loading")),
        action=Action("DRAIN_NODE", "Drain gpu-0423.", ("scontrol update nodename=gpu-0423 state=drain",)),
        evidence=(evidence(peers=peers, baseline=Baseline(median=2.2, mad=0.01, n=90)), evidence(note="<b>")),
        suspects=(Suspect(subject=finding_subject(), probability=0.2),),
    )
    text = signed_in().get(f"/findings/{finding.id}").text
    shown = ("is 1.31x slower", "Since", "12.5", "30.3", "93 %", "Drain gpu-0423.", "state=drain", "2.904 s")
    assert [text.find(part) for part in shown] == sorted(text.find(part) for part in shown)
    assert all(part in text for part in (*shown, "2.217 s", "127", "network", "76.3 %", "&lt;b&gt;"))


def test_a_slow_machine_by_step_times_alone_claims_no_look_at_its_hardware(signed_in, save_finding):
    """No share of a cause that nothing was weighed against, in the list and on the page."""
    finding = save_finding(cause=Cause("straggler.fail_slow", 1.0))
    browser = signed_in()
    for path in ("/findings", f"/findings/{finding.id}"):
        text = browser.get(path).text
        assert "the machine itself; no telemetry of its hardware shows why" in text
        assert "100 %" not in text


def test_what_is_usual_has_one_spread_on_a_page(signed_in, save_finding):
    """As a standard deviation, 1.4826 times the median absolute deviation, in the table and in sentences."""
    power = evidence(baseline=Baseline(median=2.2, mad=0.1, n=90))
    text = signed_in().get(f"/findings/{save_finding(evidence=(power,)).id}").text
    assert text.count("± 148 ms") == 2
    assert "± 100 ms" not in text


def finding_subject():
    return Subject(type="gpu", cluster="prod-a", node="gpu-0424", gpu_index=1)


def test_a_finding_with_the_least_that_can_be_stored_has_a_page(client, save_finding, pool):
    """An old document lacks most fields."""
    finding = save_finding()
    with pool.connection() as conn:
        conn.execute(
            "UPDATE findings SET doc = jsonb_build_object('id', id, 'onset', doc->'onset', 'title', title, "
            "'subject', doc->'subject', 'last_seen_at', doc->'last_seen_at')"
        )
    assert client.get(f"/findings/{finding.id}", headers=BROWSER).status_code == 200


@pytest.mark.parametrize(
    ("subject", "links"),
    [
        (Subject(type="gpu", cluster="c", node="n1", gpu_index=1), ["/node?"]),
        (Subject(type="rank", cluster="c", node="n1", job_id="j", rank=5), ["/node?", "/job?"]),
        (Subject(type="job", cluster="c", job_id="j"), ["/job?"]),
        (Subject(type="switch", cluster="c", switch="sw-1"), []),
        (Subject(type="rack", cluster="c", rack="r1"), []),
        (Subject(type="site", cluster="c"), []),
    ],
    ids=lambda value: value.type if isinstance(value, Subject) else "",
)
def test_a_finding_about_anything_has_a_page(client, save_finding, pool, subject, links):
    """Its subject has the fields that it needs, and the page leads to the node and the job that it has."""
    finding = save_finding()
    with pool.connection() as conn:
        conn.execute(
            "UPDATE findings SET doc = jsonb_set(doc, '{subject}', %s)",
            (msgspec.json.encode(subject).decode(),),
        )
    answer = client.get(f"/findings/{finding.id}", headers=BROWSER)
    assert answer.status_code == 200
    assert re.findall(r'href="(/(?:node|job)\?)', answer.text) == links


@pytest.mark.parametrize(
    ("form", "fields", "status"),
    [("acknowledge", {"note": "on it"}, "acknowledged"), ("resolve", {"note": "replaced"}, "resolved")],
)
def test_a_person_answers_on_the_page(signed_in, client, save_finding, form, fields, status):
    """Who, when and why are stored, in the history of the page and in the audit log."""
    finding, browser = save_finding(), signed_in()
    answer = browser.submit(f"/findings/{finding.id}/{form}", **fields)
    assert answer.status_code == 303
    page = browser.get(answer.headers["location"]).text
    assert fields["note"] in page
    assert client.get(f"/api/v1/findings/{finding.id}").json()["status"] == status
    entry = client.get("/api/v1/audit").json()["items"][0]
    assert (entry["action"], entry["target"]) == (f"finding.{status}", finding.id)
    again = browser.submit(f"/findings/{finding.id}/{form}", **fields)
    assert again.status_code == 409
    assert "cannot be" in again.text


@pytest.mark.parametrize(
    ("what", "names"),
    [
        ("finding", {"cluster", "finding_id"}),
        ("kind", {"cluster", "node", "kind"}),
        ("node", {"cluster", "node"}),
    ],
)
def test_a_silence_from_the_page_mutes_what_it_names(signed_in, client, save_finding, what, names):
    """With end and comment; the page then shows until when."""
    finding, browser = save_finding(), signed_in()
    answer = browser.submit(f"/findings/{finding.id}/silence", what=what, hours="4", comment="fan on order")
    assert answer.status_code == 303
    (silence,) = client.get("/api/v1/silences").json()["items"]
    assert {matcher["name"] for matcher in silence["matchers"]} == names
    assert silence["comment"] == "fan on order"
    assert "silenced until" in browser.get(f"/findings/{finding.id}").text


def test_a_key_limited_to_a_cluster_silences_there(signed_in, save_finding):
    """And a finding of another cluster is not there for it."""
    browser = signed_in("findings:read", "findings:write", clusters=("prod-a",))
    fields = {"what": "node", "hours": "1", "comment": "x"}
    mine, other = save_finding(cluster="prod-a"), save_finding(cluster="prod-b")
    assert browser.submit(f"/findings/{mine.id}/silence", **fields).status_code == 303
    for form in ("silence", "acknowledge", "resolve", "feedback"):
        path = f"/findings/{other.id}/{form}"
        assert browser.submit(path, **fields, verdict="benign").status_code == 404


@pytest.mark.parametrize(
    ("form", "fields"),
    [
        ("silence", {"what": "node", "hours": "1", "comment": ""}),
        ("silence", {"what": "node", "hours": "10000", "comment": "x"}),
        ("silence", {"what": "everything", "hours": "1", "comment": "x"}),
        ("feedback", {"verdict": "maybe"}),
        ("acknowledge", {"note": "x" * 2001}),
        ("acknowledge", {f"f{i}": "" for i in range(50)}),
    ],
)
def test_a_form_with_wrong_fields_changes_nothing(signed_in, client, save_finding, form, fields):
    """422 with what is wrong."""
    finding, browser = save_finding(), signed_in()
    assert browser.submit(f"/findings/{finding.id}/{form}", **fields).status_code == 422
    assert client.get(f"/api/v1/findings/{finding.id}").json()["status"] == "open"
    assert client.get("/api/v1/silences").json()["items"] == []


def test_a_false_alarm_offers_to_silence_its_kind_there(signed_in, client, save_finding):
    """For a week, as it is likely to come back."""
    finding, browser = save_finding(), signed_in()
    answer = browser.submit(f"/findings/{finding.id}/feedback", verdict="false_positive", note="")
    text = browser.get(answer.headers["location"]).text
    assert 'value="kind" selected' in text
    assert 'value="168" selected' in text
    assert client.get(f"/api/v1/findings/{finding.id}").json()["feedback"]["verdict"] == "false_positive"


def test_a_form_without_the_token_of_its_session_changes_nothing(signed_in, client, save_finding):
    """None, a guessed one, or that of another session."""
    finding, browser, other = save_finding(), signed_in(), signed_in()
    for csrf in ("", "0" * 64, other.field("/", "csrf"), "é"):
        answer = browser.post(f"/findings/{finding.id}/resolve", {"csrf": csrf})
        assert answer.status_code == 403, csrf
    assert client.get(f"/api/v1/findings/{finding.id}").json()["status"] == "open"


def test_a_reader_sees_no_forms(signed_in, save_finding):
    """Without findings:write they would only be refused."""
    text = signed_in("findings:read").get(f"/findings/{save_finding().id}").text
    assert "/acknowledge" not in text
    assert "Answer" not in text


def test_a_finding_says_since_when_its_job_makes_no_steps(signed_in, client, pool, add_job, save_finding):
    """Two minutes after the last one, on its page, in lists and in the API; then how fast it ran is past."""
    add_job("812345", age=60)
    open_ = save_finding(job_slowdown_ratio=2.0)
    ended = save_finding(gpu=6, status="resolved", resolved_at=1.8e9, job_slowdown_ratio=2.0)
    browser, url = signed_in(), f"/api/v1/findings/{open_.id}"
    running = client.get(url)
    assert "no_steps_since" not in running.json()
    assert "the job runs at 50.0 % of its speed" in browser.get(f"/findings/{open_.id}").text

    with pool.connection() as conn:
        conn.execute("UPDATE jobs SET last_seen_at = last_seen_at - interval '2 min'")
    silent = client.get(url, headers={"if-none-match": running.headers["etag"]})
    since = silent.json()["no_steps_since"]
    listed = client.get("/api/v1/findings").json()["items"]
    assert {item["id"]: item.get("no_steps_since") for item in listed} == {open_.id: since, ended.id: None}
    text = browser.get(f"/findings/{open_.id}").text
    assert "the job ran at 50.0 % of its speed" in text
    assert f'has made no steps since <time datetime="{since}"' in text
    assert f'no steps of its job since <time datetime="{since}"' in browser.get("/findings").text
    assert "no steps" not in browser.get(f"/findings/{ended.id}").text


def test_what_a_job_that_makes_no_steps_costs_is_its_stop(client, add_job, save_finding):
    """Its slow steps cost nothing any more, a stop that is reported on does; in lists and for the fleet."""
    add_job("812345", age=200)
    slow = save_finding(gpu_hours_lost_per_hour=2.0, cost_per_hour=5.0)
    stop = save_finding(kind="hang.job", last_seen_at=time.time(), gpu_hours_lost_per_hour=8.0)
    elsewhere = save_finding(cluster="prod-b", gpu_hours_lost_per_hour=16.0)
    costs = ("gpu_hours_lost_per_hour", "cost_per_hour")
    listed = {f["id"]: tuple(map(f.get, costs)) for f in client.get("/api/v1/findings").json()["items"]}
    assert listed == {slow.id: (0.0, 0.0), stop.id: (8.0, None), elsewhere.id: (16.0, None)}
    assert client.get(f"/api/v1/findings/{slow.id}").json()["gpu_hours_lost_per_hour"] == 0.0
    assert client.get("/api/v1/fleet").json()["numbers"]["gpu_hours_lost_per_hour"] == 24.0


def test_all_pages_show_the_cost_that_is_stored(signed_in, add_job, save_finding):
    """However long ago its last evidence was: nothing is added to it."""
    add_job("812345")
    finding = save_finding(gpu_hours_lost=0.0375, gpu_hours_lost_per_hour=2.0)
    browser = signed_in()
    assert (
        '<strong class="cost">0.0375</strong> GPU-hours lost' in browser.get(f"/findings/{finding.id}").text
    )
    job = browser.get("/job?cluster=prod-a&job_id=812345").text
    assert "<dd>0.0375</dd><dt>GPU-hours lost</dt>" in job
    assert "<dd>0.0375</dd><dt>lost in 24 h</dt>" in browser.get("/").text


def test_an_open_finding_says_when_its_cluster_is_silent(signed_in, add_nodes, save_finding):
    """Its cost is then counted on by the last rate; one that has ended is as it was."""
    add_nodes("gpu-0423", age=7200)
    open_, ended = save_finding(), save_finding(gpu=6, status="resolved", resolved_at=1.8e9)
    elsewhere = save_finding(cluster="prod-b")
    browser = signed_in()
    pages = {one.id: browser.get(f"/findings/{one.id}").text for one in (open_, ended, elsewhere)}
    shown = {name: "2 h 00 min old" in text for name, text in pages.items()}
    assert shown == {open_.id: True, ended.id: False, elsewhere.id: False}
