"""Webhooks, keys, silences, audit and ingest over HTTP, on a real database."""

import asyncio
import gzip
import json
import threading
from datetime import UTC, datetime, timedelta

import pytest
from standardwebhooks.webhooks import Webhook as Verifier

from api.app import create_app
from api.delivery.from_settings import webhook_client_of
from api.delivery.notifier import Notifier
from api.metrics import NotifierMetrics, new_registry
from api.routes.webhooks import masked
from slowrank.telemetry.rows.json_rows import rows as json_rows
from store.access import audit
from store.findings import silences

HOOKS = "/api/v1/webhooks"


@pytest.fixture
def open_to(settings, pool, client, sink):
    """A client of an app whose policy allows the receivers' ports, with a notifier running beside it."""
    stops = []

    def start(*receivers):
        allowed = settings.model_copy(update={"webhook_allow_ports": tuple(r.port for r in receivers)})
        made = Notifier(
            pool=pool,
            client=webhook_client_of(allowed),
            metrics=NotifierMetrics(new_registry()),
            public_url="http://slowrank.example.org",
            instance="test",
        )
        loop, stop = asyncio.new_event_loop(), asyncio.Event()

        def serve():
            loop.run_until_complete(made.run(stop))
            loop.run_until_complete(loop.shutdown_default_executor())
            loop.close()

        thread = threading.Thread(target=serve)
        thread.start()
        stops.append((loop, stop, thread))
        reached = type(client)(create_app(allowed, pool, sink=sink))
        reached.headers = client.headers
        return reached

    yield start
    for loop, stop, thread in stops:
        loop.call_soon_threadsafe(stop.set)
        thread.join(20)
        assert not thread.is_alive()


def test_a_webhook_from_first_to_last(open_to, receiver):
    """Create, test, look at the log, retry, change, remove; the secret is shown once."""
    api = open_to(receiver)
    made = api.post(HOOKS, json={"url": receiver.url, "name": "on-call"})
    assert made.status_code == 201, made.text
    assert made.headers["cache-control"] == "no-store"
    webhook = made.json()
    assert webhook["min_severity"] == "warning"

    tested = api.post(f"{HOOKS}/{webhook['id']}/test").json()
    assert (tested["delivered"], tested["status"]) == (True, 200)
    body = Verifier(webhook["secret"]).verify(receiver.got[0].body, receiver.got[0].headers)
    assert body["type"] == "delivery.test"

    log = api.get(f"{HOOKS}/{webhook['id']}/deliveries").json()["items"]
    assert [(d["event_type"], d["status"], d["attempts"]) for d in log] == [("delivery.test", "delivered", 1)]
    assert api.post(f"/api/v1/deliveries/{log[0]['id']}/retry").status_code == 202
    _, again = receiver.wait_for(2)
    assert again.headers["webhook-id"] == receiver.got[0].headers["webhook-id"]
    assert len(api.get(f"/api/v1/deliveries/{log[0]['id']}").json()["tries"]) >= 1

    changed = api.patch(f"{HOOKS}/{webhook['id']}", json={"min_severity": "critical", "kinds": ["straggler"]})
    assert (changed.json()["min_severity"], changed.json()["kinds"]) == ("critical", ["straggler"])
    assert changed.json()["name"] == "on-call"
    for shown in (api.get(HOOKS).text, api.get(f"{HOOKS}/{webhook['id']}").text, changed.text):
        assert webhook["secret"] not in shown
        assert "secret" not in shown
    assert api.delete(f"{HOOKS}/{webhook['id']}").status_code == 204
    assert api.get(HOOKS).json()["items"] == []
    assert api.get(f"{HOOKS}/{webhook['id']}").status_code == 404


def test_a_test_says_what_went_wrong(open_to, start_receiver):
    """A receiver that refuses is reported as such, once, and the test is not tried again."""
    receiver = start_receiver(answers=[(500, {}, b"")])
    api = open_to(receiver)
    webhook = api.post(HOOKS, json={"url": receiver.url}).json()
    tested = api.post(f"{HOOKS}/{webhook['id']}/test").json()
    assert (tested["delivered"], tested["status"], tested["error"]) == (False, 500, "HTTP 500")
    (line,) = api.get(f"{HOOKS}/{webhook['id']}/deliveries").json()["items"]
    assert line["status"] == "failed"
    assert api.get(f"{HOOKS}/{webhook['id']}").json()["status"] == "active"
    api.patch(f"{HOOKS}/{webhook['id']}", json={"enabled": False})
    assert api.post(f"{HOOKS}/{webhook['id']}/test").status_code == 409


def test_without_a_notifier_the_test_reports_it(client, settings, pool, receiver, monkeypatch):
    """Nobody delivers: 504 names the process that is missing."""
    monkeypatch.setattr("api.routes.webhooks.TEST_SECONDS", 0.3)
    allowed = settings.model_copy(update={"webhook_allow_ports": (receiver.port,)})
    api = type(client)(create_app(allowed, pool))
    api.headers = client.headers
    webhook = api.post(HOOKS, json={"url": receiver.url}).json()
    answer = api.post(f"{HOOKS}/{webhook['id']}/test")
    assert answer.status_code == 504
    assert "slowrank notifier run" in answer.json()["detail"]


@pytest.mark.parametrize(
    "url",
    [
        "http://hooks.example.org/x",
        "https://169.254.169.254/latest/meta-data",
        "https://[::ffff:169.254.169.254]/",
        "https://localhost:22/",
        "https://localhost:0/",
        "http://127.0.0.1:1/",
        "https://does-not-exist.invalid/",
        "https://0.0.0.0/",
        "https://[::1]/",
    ],
)
def test_a_webhook_goes_where_the_operator_allows(client, url):
    """Forbidden destinations are refused when the webhook is made."""
    answer = client.post(HOOKS, json={"url": url})
    assert answer.status_code == 403, answer.text
    assert answer.json()["errors"][0]["pointer"] == "#/body/url"
    assert client.get(HOOKS).json()["items"] == []


@pytest.mark.parametrize(
    "body",
    [
        {"url": "https://user:pw@127.0.0.1/"},
        {"url": "ftp://127.0.0.1/"},
        {"url": "http://127.0.0.1/", "format": "xml"},
        {"url": "http://127.0.0.1/", "min_severity": "loud"},
        {"url": "http://127.0.0.1/", "events": ["finding.*"]},
        {"url": "http://127.0.0.1/", "kinds": ["'; drop table"]},
        {"url": "http://127.0.0.1/", "surprise": 1},
        {},
    ],
)
def test_a_webhook_that_may_not_be(client, body):
    """What is no URL, and unknown fields, are refused when the webhook is made."""
    answer = client.post(HOOKS, json=body)
    assert answer.status_code == 422, answer.text
    assert client.get(HOOKS).json()["items"] == []


def test_a_refused_url_does_not_tell_what_its_host_resolves_to(client):
    """A name that is unknown, private or metadata is refused in the same words, without an address."""
    told = set()
    for host in ("does-not-exist.invalid", "169.254.169.254", "10.0.0.1", "[::1]"):
        answer = client.post(HOOKS, json={"url": f"https://{host}/"})
        assert answer.status_code == 403
        told.add(answer.json()["detail"].replace(host.strip("[]"), "HOST"))
    assert len(told) == 1, told


def test_urls_are_masked():
    """A URL can be recognised in a list, but not used."""
    assert (
        masked("https://hooks.slack.example/services/T0/B0/abcdef123") == "https://hooks.slack.example/…f123"
    )
    assert masked("https://x.example") == "https://x.example"
    assert masked("https://x.example?token=1") == "https://x.example"


def test_deliveries_are_paged(client, pool, open_to, receiver):
    """The log of an endpoint comes in pages that join."""
    api = open_to(receiver)
    webhook = api.post(HOOKS, json={"url": receiver.url}).json()
    for _ in range(3):
        api.post(f"{HOOKS}/{webhook['id']}/test")
    url, seen, cursor = f"{HOOKS}/{webhook['id']}/deliveries", [], ""
    while True:
        page = api.get(url, params={"limit": 2} | ({"cursor": cursor} if cursor else {})).json()
        seen += [d["id"] for d in page["items"]]
        cursor = page["next_cursor"]
        if not cursor:
            break
    assert len(seen) == len(set(seen)) == 3
    assert api.get(url, params={"cursor": "AAAA"}).status_code == 409


def test_a_limited_key_handles_endpoints_of_its_clusters_only(client, client_with, settings):
    """A key of one cluster cannot see, make or test an endpoint that tells of others."""
    everywhere = client.post(HOOKS, json={"url": "http://127.0.0.1/"}).json()
    limited = client_with("webhooks:admin", clusters=("a",))
    assert limited.get(HOOKS).json()["items"] == []
    assert limited.get(f"{HOOKS}/{everywhere['id']}").status_code == 404
    assert limited.post(f"{HOOKS}/{everywhere['id']}/test").status_code == 404
    assert limited.post(HOOKS, json={"url": "http://127.0.0.1/"}).status_code == 403
    own = limited.post(HOOKS, json={"url": "http://127.0.0.1/", "clusters": ["a"]})
    assert own.status_code == 201
    assert limited.patch(f"{HOOKS}/{own.json()['id']}", json={"clusters": []}).status_code == 403


def test_a_key_from_first_to_last(client, app):
    """Create, use, list, revoke; the token is shown once and dead after."""
    made = client.post("/api/v1/keys", json={"name": "dash", "scopes": ["findings:read"], "days": 1})
    assert made.status_code == 201
    assert made.headers["cache-control"] == "no-store"
    token, key_id = made.json()["token"], made.json()["id"]
    assert token.startswith(f"srk_{key_id}_")
    user = type(client)(app, token)
    assert user.get("/api/v1/findings").status_code == 200

    listed = client.get("/api/v1/keys")
    assert token not in listed.text
    assert "sha256" not in listed.text
    (mine,) = [k for k in listed.json()["items"] if k["id"] == key_id]
    assert mine["last_used_at"]
    assert client.delete(f"/api/v1/keys/{key_id}").status_code == 204
    assert client.delete(f"/api/v1/keys/{key_id}").status_code == 404
    assert user.get("/api/v1/findings").status_code == 401


@pytest.mark.parametrize(
    "body",
    [
        {"name": "x", "scopes": []},
        {"name": "x", "scopes": ["root"]},
        {"name": "", "scopes": ["findings:read"]},
        {"name": "x", "scopes": ["findings:read"], "days": 0},
        {"name": "x", "scopes": ["findings:read"], "clusters": ["a b"]},
    ],
)
def test_a_key_that_may_not_be(client, body):
    """Unknown scopes and odd names are refused."""
    assert client.post("/api/v1/keys", json=body).status_code == 422


def test_no_key_makes_a_stronger_one(client_with):
    """A key gives away no scope it lacks and no cluster it does not reach."""
    admin = client_with("keys:admin", "findings:read", clusters=("a",))
    for scopes, clusters, status in (
        (["findings:read"], ["a"], 201),
        (["findings:write"], ["a"], 403),
        (["all"], ["a"], 403),
        (["findings:read"], [], 403),
        (["findings:read"], ["a", "b"], 403),
    ):
        answer = admin.post("/api/v1/keys", json={"name": "x", "scopes": scopes, "clusters": clusters})
        assert answer.status_code == status, (scopes, clusters)


@pytest.mark.parametrize(("days", "ends_in"), [(None, 2), (1, 1), (3650, 2)])
def test_no_key_makes_one_that_outlives_it(client_with, days, ends_in):
    """A key of two days cannot be made to last by another one."""
    now = datetime.now(UTC)
    admin = client_with("keys:admin", "findings:read", expires_at=now + timedelta(days=2))
    made = admin.post("/api/v1/keys", json={"name": "x", "scopes": ["findings:read"], "days": days})
    ends = datetime.fromisoformat(made.json()["expires_at"])
    assert abs(ends - now - timedelta(days=ends_in)) < timedelta(minutes=1)


def test_a_limited_admin_governs_keys_of_its_clusters_only(client, client_with):
    """It neither sees nor ends a key that reaches further, and reads no audit log of all clusters."""
    wide, narrow = (
        client.post(
            "/api/v1/keys", json={"name": "x", "scopes": ["findings:read"], "clusters": clusters}
        ).json()
        for clusters in ([], ["a"])
    )
    admin = client_with("keys:admin", clusters=("a",))
    seen = {key["id"] for key in admin.get("/api/v1/keys").json()["items"]}
    assert narrow["id"] in seen
    assert wide["id"] not in seen
    assert admin.delete(f"/api/v1/keys/{wide['id']}").status_code == 404
    assert admin.delete(f"/api/v1/keys/{narrow['id']}").status_code == 204
    assert admin.get("/api/v1/audit").status_code == 403


def silence(**changes):
    ends = datetime.now(UTC) + timedelta(hours=1)
    return {
        "matchers": [{"name": "node", "value": "n1"}],
        "endsAt": ends.isoformat(),
        "comment": "c",
    } | changes


def test_a_silence_from_first_to_last(client):
    """Create, list, end; it stays on record as expired."""
    made = client.post("/api/v1/silences", json=silence()).json()
    assert made["status"]["state"] == "active"
    assert client.delete(f"/api/v1/silences/{made['id']}").status_code == 204
    (listed,) = client.get("/api/v1/silences").json()["items"]
    assert listed["status"]["state"] == "expired"
    assert client.delete("/api/v1/silences/sil_none").status_code == 404


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"matchers": []}, 422),
        ({"comment": ""}, 422),
        ({"endsAt": "2020-01-01T00:00:00Z"}, 409),
        ({"endsAt": "2026-01-01T00:00:00"}, 422),
        ({"endsAt": "2999-01-01T00:00:00Z"}, 409),
        ({"startsAt": "9999-12-31T00:00:00Z", "endsAt": "9999-12-30T00:00:00Z"}, 409),
        ({"matchers": [{"name": "node", "value": "(", "isRegex": True}]}, 409),
        ({"matchers": [{"name": "node", "value": "(a+)+$", "isRegex": True}]}, 409),
        ({"matchers": [{"name": "node", "value": "a*a*a*a*a*b", "isRegex": True}]}, 409),
        ({"matchers": [{"name": "node", "value": "(?=a)", "isRegex": True}]}, 409),
        ({"matchers": [{"name": "node", "value": "(a|a)" * 50 + "x", "isRegex": True}]}, 409),
        ({"matchers": [{"name": "node", "value": ".?" * 40 + "x", "isRegex": True}]}, 409),
        ({"matchers": [{"name": "node", "value": "a{99999999999}", "isRegex": True}]}, 409),
        ({"matchers": [{"name": "no de", "value": "x"}]}, 422),
        ({"matchers": [{"name": "nodes", "value": "x"}]}, 422),
        ({"matchers": [{"name": "alertgroup", "value": "x", "isEqual": False}]}, 422),
        ({"matchers": [{"name": "alertname", "value": "x", "isEqual": False}]}, 409),
        ({"matchers": [{"name": "source", "value": "slowrank"}]}, 409),
    ],
)
def test_a_silence_that_may_not_be(client, changes, status):
    """A silence needs matchers of labels that findings have, an end, a reason, and regexes that end."""
    assert client.post("/api/v1/silences", json=silence(**changes)).status_code == status


def test_no_more_silences_than_every_event_can_be_matched_with(client, monkeypatch):
    """Over both ways in."""
    monkeypatch.setattr(silences, "MAX_CURRENT", 1)
    assert client.post("/api/v1/silences", json=silence()).status_code == 201
    refused = client.post("/api/v1/silences", json=silence())
    assert (refused.status_code, "expire some first" in refused.json()["detail"]) == (409, True)
    assert client.post("/api/v2/silences", json=silence() | {"createdBy": "x"}).status_code == 409


def test_a_limited_key_silences_its_clusters_only(client_with):
    """Without naming one of its clusters exactly, a limited key mutes nothing."""
    limited = client_with("findings:write", "findings:read", clusters=("a",))
    assert limited.post("/api/v1/silences", json=silence()).status_code == 403
    named = [{"name": "cluster", "value": "a"}, {"name": "node", "value": "n1"}]
    assert limited.post("/api/v1/silences", json=silence(matchers=named)).status_code == 201


def test_every_deed_is_in_the_audit_log(client, pool):
    """Who, what, from where and under which request; the chain holds and pages join."""
    client.post("/api/v1/silences", json=silence(), headers={"x-request-id": "request-0001"})
    client.post("/api/v1/keys", json={"name": "x", "scopes": ["findings:read"]})
    page = client.get("/api/v1/audit", params={"limit": 1}).json()
    assert page["items"][0]["action"] == "key.create"
    rest = client.get("/api/v1/audit", params={"limit": 1, "cursor": page["next_cursor"]}).json()
    assert rest["items"][0]["action"] == "silence.create"
    assert rest["items"][0]["detail"]["request_id"] == "request-0001"
    assert rest["next_cursor"] == ""
    with pool.connection() as conn:
        assert audit.first_broken(conn) is None


def rows(count=3, **changes):
    now = datetime.now(UTC).timestamp()
    row = {
        "kind": "step",
        "ts": now,
        "cluster": "c",
        "job_id": "j",
        "node": "n",
        "rank": 0,
        "step_seconds": 1.0,
    }
    return "\n".join(json.dumps(row | {"step": i} | changes) for i in range(count)).encode()


@pytest.mark.parametrize("encoding", ["identity", "gzip"])
def test_telemetry_goes_to_the_sink(client, sink, encoding):
    """Good rows reach the pipeline, bad ones are counted with a reason."""
    body = rows() + b"\n{broken\n" + rows(1, rank="x")
    if encoding == "gzip":
        body = gzip.compress(body)
    answer = client.post("/api/v1/ingest/samples", content=body, headers={"content-encoding": encoding})
    assert answer.status_code == 202, answer.text
    assert answer.json()["accepted"] == 3
    assert answer.json()["reasons"] == {"undecodable": 1, "bad_number": 1}
    assert [(row["job_id"], row["step"]) for r in sink.records for row in json_rows(r)] == [
        ("j", step) for step in range(3)
    ]
    text = client.get("/metrics").text
    assert 'slowrank_samples_ingested_total{source="http"} 3.0' in text
    assert 'slowrank_samples_rejected_total{reason="undecodable"} 1.0' in text


@pytest.mark.slow
def test_ingest_refuses_what_is_too_much_or_odd(client):
    """5 MiB is the most, gzip is the only encoding."""
    url = "/api/v1/ingest/samples"
    assert client.post(url, content=rows().ljust(5 * 2**20, b"\n")).status_code == 202
    assert client.post(url, content=b"\n" * (5 * 2**20 + 1)).status_code == 413
    assert client.post(url, content=b"{}\n" * 400_001).status_code == 413
    assert client.post(url, content=b"x", headers={"content-encoding": "br"}).status_code == 415


@pytest.mark.parametrize("path", ["api/v1/ingest/samples", "v1/metrics"])
def test_a_body_that_inflates_to_too_much_is_as_large(client, path):
    """Refused as a large plain one is, with the same advice; one that is no gzip is another error."""
    headers = {"content-encoding": "gzip", "content-type": "application/json"}
    bomb = client.post(f"/{path}", content=gzip.compress(b"\0" * 3_000_000), headers=headers)
    assert (bomb.status_code, bomb.json()["type"].rpartition("/")[2]) == (413, "too-large")
    assert bomb.json()["detail"].endswith("send less at once")
    assert client.post(f"/{path}", content=b"{}", headers=headers).status_code == 400


def test_a_body_of_which_nothing_is_taken_is_refused(client, sink):
    """409 with the place of each bad line, an unknown metric beside the nearest known; without a line 422."""
    url = "/api/v1/ingest/samples"
    sample = {
        "ts": datetime.now(UTC).timestamp(),
        "node": "n",
        "metric": "gpu.temp_celcius",
        "instance": "0",
        "value": 91.0,
    }
    answer = client.post(url, content=json.dumps(sample).encode())
    assert (answer.status_code, answer.headers["content-type"]) == (409, "application/problem+json")
    assert answer.json()["errors"] == [
        {
            "pointer": "#/body/0/metric",
            "reason": "unknown_name",
            "detail": "there is no metric 'gpu.temp_celcius' (is it 'gpu.temp_celsius'?)",
        }
    ]
    for empty in (b"", b"\n \n"):
        answer = client.post(url, content=empty)
        assert (answer.status_code, answer.json()["title"]) == (422, "No rows")
    assert sink.records == []


def test_ingest_without_a_pipeline_or_with_one_that_is_away(client, settings, pool, sink):
    """503 with Retry-After: the sender keeps its rows."""
    sink.refusal = "Kafka is away"
    answer = client.post("/api/v1/ingest/samples", content=rows())
    assert (answer.status_code, answer.json()["detail"]) == (503, "Kafka is away")
    assert answer.headers["retry-after"] == "5"
    alone = type(client)(create_app(settings, pool))
    alone.headers = client.headers
    assert alone.post("/api/v1/ingest/samples", content=rows()).status_code == 503


def test_a_limited_key_writes_for_its_clusters_only(client_with, sink):
    """Rows of another cluster are rejected by reason, the others taken."""
    limited = client_with("telemetry:write", clusters=("c",))
    body = rows(2) + b"\n" + rows(1, cluster="d")
    answer = limited.post("/api/v1/ingest/samples", content=body).json()
    assert (answer["accepted"], answer["reasons"]) == (2, {"forbidden_cluster": 1})
    assert {r.cluster for r in sink.records} == {"c"}


def test_rows_the_pipeline_refuses_are_counted_with_the_others(client, sink):
    """A cluster too many is reported in the answer, not swallowed."""
    body = rows(2) + b"\n" + rows(3, cluster="full")
    answer = client.post("/api/v1/ingest/samples", content=body).json()
    assert (answer["accepted"], answer["rejected"]) == (2, 3)
    assert answer["reasons"] == {"too_many_instances": 3}
    assert "64 clusters" in answer["errors"][0]["detail"]
    assert {r.cluster for r in sink.records} == {"c"}
