"""API and notifier do all their work under their least-privilege roles, and no more."""

import asyncio
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from standardwebhooks.webhooks import Webhook as Verifier

from api.app import create_app
from api.delivery.from_settings import webhook_client_of
from api.delivery.notifier import Notifier
from api.delivery.webhook_health import KIND, end_recovered, report_failing
from api.metrics import NotifierMetrics, new_registry
from api.security.auth import SCOPES
from api.security.sessions import csrf_token
from cli.run.backtests import Runner
from store.findings import deliveries, findings, leases, search, webhooks
from store.pool import open_pool


@pytest.fixture
def pool_as(api_dsn, pool):
    """Pools whose connections act as a role: ``pool_as("slowrank_api")``."""
    opened = []

    def make(role):
        opened.append(
            open_pool(psycopg.conninfo.make_conninfo(api_dsn, options=f"-c role={role}"), name=role)
        )
        return opened[-1]

    yield make
    for one in opened:
        one.close()


def test_the_whole_way_of_a_finding_under_both_roles(client, settings, pool_as, receiver, save_finding):
    """Webhook made by slowrank_api, finding delivered by slowrank_notifier, handled by slowrank_api."""
    allowed = settings.model_copy(update={"webhook_allow_ports": (receiver.port,)})
    api = type(client)(create_app(allowed, pool_as("slowrank_api")))
    api.headers = client.headers
    webhook = api.post("/api/v1/webhooks", json={"url": receiver.url}).json()
    finding = save_finding()
    notifier = Notifier(
        pool=pool_as("slowrank_notifier"),
        client=webhook_client_of(allowed),
        metrics=NotifierMetrics(new_registry()),
        public_url="http://x",
        instance="test",
    )
    assert asyncio.run(notifier.drain()) == 1
    Verifier(webhook["secret"]).verify(receiver.got[0].body, receiver.got[0].headers)

    url = f"/api/v1/findings/{finding.id}"
    assert api.patch(url, json={"status": "resolved"}, headers={"if-match": "*"}).status_code == 200
    assert api.post(f"{url}/feedback", json={"verdict": "benign"}).status_code == 201
    assert asyncio.run(notifier.drain()) == 1
    log = api.get(f"/api/v1/webhooks/{webhook['id']}/deliveries").json()["items"]
    assert {d["event_type"] for d in log} == {"finding.opened", "finding.resolved"}
    assert api.post(f"/api/v1/deliveries/{log[0]['id']}/retry").status_code == 202
    assert api.post(f"/api/v1/webhooks/{webhook['id']}/secret").status_code == 201
    assert api.patch(f"/api/v1/webhooks/{webhook['id']}", json={"enabled": False}).status_code == 200
    assert api.get("/api/v1/audit").json()["items"][0]["action"] == "webhook.update"
    assert api.get("/readyz").json()["checks"][0]["ok"]
    assert api.delete(f"/api/v1/webhooks/{webhook['id']}").status_code == 204


def test_the_api_cannot_read_signing_secrets(client, settings, pool_as):
    """Who takes over the API has no webhook secret yet."""
    as_api = pool_as("slowrank_api")
    api = type(client)(create_app(settings, as_api))
    api.headers = client.headers
    webhook = api.post("/api/v1/webhooks", json={"url": "http://127.0.0.1/"}).json()
    with as_api.connection() as conn, pytest.raises(psycopg.errors.InsufficientPrivilege):
        conn.execute("SELECT secret FROM webhook_secrets WHERE webhook_id = %s", (webhook["id"],))


def test_the_notifier_may_report_and_switch_off_endpoints(client, settings, pool_as, pool, save_finding):
    """Marking failing, disabling, the self finding and its end all work as slowrank_notifier."""
    api = type(client)(create_app(settings, pool))
    api.headers = client.headers
    webhook = api.post("/api/v1/webhooks", json={"url": "http://127.0.0.1/"}).json()
    finding = save_finding()
    with pool_as("slowrank_notifier").connection() as conn:
        (due,) = leases.lease_due(conn, now=datetime.now(UTC))
        attempt = deliveries.Attempt(at=datetime.now(UTC), error="away")
        deliveries.mark_failed(conn, due, attempt, again_at=None)
        assert webhooks.record_failure(conn, webhook["id"], datetime.now(UTC)) is not None
        gone = webhooks.disable_gone(conn, webhook["id"], "410", datetime.now(UTC))
        assert gone is not None
        report_failing(conn, gone, due, attempt)
        assert webhooks.record_success(conn, webhook["id"])
        deliveries.make_due(conn, webhook["id"], datetime.now(UTC))
        end_recovered(conn, datetime.now(UTC))
        (told,) = search.find(conn, search.FindingFilter(kinds=(KIND,))).items
        assert told.status == "resolved"
    assert due.event.finding_id == finding.id


@pytest.mark.slow
def test_the_notifier_removes_old_events(pool, pool_as, settings, save_finding):
    """Under its role, while it runs; what is younger than a week or about an open finding stays."""
    over = save_finding(node="over")
    save_finding(node="open")
    with pool.connection() as conn:
        findings.resolve(conn, over.id, findings.Edit("ann", datetime.now(UTC)))

    def events_after_run(days):
        async def for_a_moment():
            stop = asyncio.Event()
            notifier = Notifier(
                pool=pool_as("slowrank_notifier"),
                client=webhook_client_of(settings),
                metrics=NotifierMetrics(new_registry()),
                public_url="http://x",
                instance="test",
                now=lambda: datetime.now(UTC) + timedelta(days=days),
            )
            running = asyncio.create_task(notifier.run(stop))
            await asyncio.sleep(1)
            stop.set()
            await running

        asyncio.run(for_a_moment())
        with pool.connection() as conn:
            return conn.execute("SELECT count(*) FROM events").fetchone()[0]

    assert events_after_run(days=6) == 3
    assert events_after_run(days=8) == 1


def test_the_pages_work_as_slowrank_api(client, settings, pool_as, save_finding, new_token):
    """Signing in and out, every page and every form that changes a finding, with the rights of the role."""
    api = type(client)(create_app(settings, pool_as("slowrank_api")))
    finding = save_finding()
    html = {"accept": "text/html"}
    form = api.get("/sign-in", headers=html)
    value = form.headers["set-cookie"].partition("=")[2].partition(";")[0]
    sent = {"content-type": "application/x-www-form-urlencoded", "cookie": f"slowrank_form={value}"} | html
    token = new_token(*SCOPES)
    answer = api.post("/sign-in", content=f"form={value}&key={token}&next=/", headers=sent)
    assert answer.status_code == 303, answer.text
    cookie = answer.headers["set-cookie"].partition(";")[0]
    seen = html | {"cookie": cookie}
    for path in ("/", "/fleet-now", "/findings", "/jobs", "/timeline", "/settings", "/gpu?id=n:1"):
        assert api.get(path, headers=seen).status_code == 200, path
    assert api.get(f"/findings/{finding.id}", headers=seen).status_code == 200
    assert api.get(f"/findings/{finding.id}/evidence.json", headers=seen).status_code == 200
    csrf = csrf_token(cookie.partition("=")[2])
    silence = "what=node&hours=1&comment=x"
    forms = {"acknowledge": "", "silence": silence, "feedback": "verdict=benign", "resolve": ""}
    for name, fields in forms.items():
        path, body = f"/findings/{finding.id}/{name}", f"csrf={csrf}&{fields}"
        assert api.post(path, content=body, headers=sent | {"cookie": cookie}).status_code == 303, name
    assert api.post("/sign-out", content=f"csrf={csrf}", headers=sent | {"cookie": cookie}).status_code == 303
    assert api.get("/findings", headers=seen).status_code == 401


def test_a_backtest_is_posted_run_and_read_as_the_api(client, settings, pool_as):
    """The runner beside the API has no other role."""
    pool = pool_as("slowrank_api")
    api = type(client)(create_app(settings, pool, runs_backtests=True))
    api.headers = client.headers
    made = api.post("/api/v1/backtests", content=b'{"kind":"step","ts":1.0}')
    assert made.status_code == 202, made.text
    assert Runner(pool).run_one()
    assert api.get(made.headers["location"]).json()["state"] == "failed"
