"""Every answer is a clean one: problems, request ids, hosts, sizes, headers."""

import asyncio
import json
import secrets
from pathlib import Path

import httpx
import psycopg
import pytest
from psycopg import sql
from psycopg.types.json import Jsonb

import api
from api.app import create_app, openapi_document
from api.http.middleware import OuterLayer
from store.pool import open_pool

PROBLEM = "application/problem+json"


@pytest.mark.parametrize(
    ("method", "path", "options", "status"),
    [
        ("GET", "/nowhere", {}, 404),
        ("GET", "/redoc", {}, 404),
        ("GET", "/openapi.json", {}, 404),
        ("PUT", "/api/v1/findings", {}, 405),
        ("GET", "/api/v1/findings/fnd_1", {}, 422),
        ("GET", "/api/v1/findings/fnd_01JD7Q4Y6R8V2M3K5N9P0S1T2W", {}, 404),
        ("POST", "/api/v1/keys", {"content": b"{"}, 422),
        ("POST", "/api/v1/keys", {"json": []}, 422),
        ("POST", "/api/v1/webhooks", {"content": b"x" * 70_000}, 413),
        ("GET", "/api/v1/findings", {"headers": {"host": "evil.example.net"}}, 421),
        ("GET", "/api/v1/findings", {"headers": {"content-length": "-1"}}, 413),
    ],
)
def test_every_error_is_a_problem(client, method, path, options, status):
    """Whatever goes wrong is reported in one form, with the id under which the log has it."""
    answer = client.request(method, path, **options)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == PROBLEM
    problem = answer.json()
    assert problem["status"] == status
    assert problem["instance"] == path
    assert problem["request_id"] == answer.headers["x-request-id"]
    assert problem["type"].startswith("http://slowrank.example.org/problems/")


@pytest.mark.parametrize(
    ("path", "pointer", "told"),
    [
        ("/api/v1/findings?severty=critical", "#/query/severty", "(is it 'severity'?)"),
        ("/api/v1/chronic?clusters=a", "#/query/clusters", "(is it 'cluster'?)"),
        ("/api/v1/audit?limits=1", "#/query/limits", "(is it 'limit'?)"),
        ("/api/v1/silences?state=active", "#/query/state", "this path takes none"),
        ("/api/v1/keys?limit=1", "#/query/limit", "this path takes none"),
    ],
)
def test_a_query_parameter_that_is_not_there_is_refused(client, path, pointer, told):
    """A misspelt filter is an error that names the nearest known one, and not a list of everything."""
    answer = client.get(path)
    assert answer.status_code == 422, answer.text
    (error,) = answer.json()["errors"]
    assert error["pointer"] == pointer
    assert told in error["detail"]


def test_an_endless_body_is_cut_off(client):
    """A chunked body without a length is refused once it is too long."""

    async def endless():
        for _ in range(200):
            yield b"x" * 1000

    answer = client.post("/api/v1/keys", content=endless())
    assert answer.status_code == 413
    assert answer.headers["content-type"] == PROBLEM


def test_a_body_that_never_ends_is_given_up(app):
    """A client that sends half a body keeps nothing waiting for ever."""
    layer = OuterLayer(app, frozenset({"localhost"}), lambda *_: None, body_seconds=0.2)

    async def stalling():
        yield b"{"
        await asyncio.sleep(30)

    async def post():
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(layer), base_url="http://localhost"
        ) as http:
            return await asyncio.wait_for(http.post("/api/v1/keys", content=stalling()), 10)

    answer = asyncio.run(post())
    assert answer.status_code == 408
    assert answer.headers["content-type"] == PROBLEM


def test_a_mistake_of_our_own_is_a_problem_without_details(client, monkeypatch):
    """An unexpected exception is a 500 problem that gives nothing of itself away."""

    def broken(*args, **kwargs):
        raise RuntimeError("secret detail")

    monkeypatch.setattr("store.findings.search.find", broken)
    answer = client.get("/api/v1/findings")
    assert answer.status_code == 500
    assert answer.headers["content-type"] == PROBLEM
    assert "secret" not in answer.text


@pytest.mark.slow
def test_no_database_is_a_problem_too(settings, client):
    """Without a database requests get 503 and /readyz says which part is missing."""
    with open_pool("postgresql://127.0.0.1:1/none?connect_timeout=1", name="away") as pool:
        pool.timeout = 0.2
        away = type(client)(create_app(settings, pool), "srk_abcdef_0123456789012345678901234567890")
        assert away.get("/api/v1/findings").status_code == 503
        ready = away.get("/readyz")
        assert ready.status_code == 503
        assert ready.json()["checks"][0]["name"] == "database"
        assert not ready.json()["checks"][0]["ok"]
        assert ready.json()["detail"] == (
            "database: it does not answer (PoolTimeout), so nothing can be read: start the database, or "
            "correct SLOWRANK_DATABASE_URL"
        )
        assert away.get("/healthz").json() == {"status": "ok"}


def test_an_empty_database_says_what_to_run(settings, client, api_server):
    """Before `slowrank migrate` every request answers with that reason, and /readyz is 503."""
    name = f"api_{secrets.token_hex(6)}"
    with psycopg.connect(api_server, autocommit=True) as server:
        server.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        with open_pool(psycopg.conninfo.make_conninfo(api_server, dbname=name), name="empty") as pool:
            empty = type(client)(create_app(settings, pool), "srk_abcdef_0123456789012345678901234567890")
            answer = empty.get("/api/v1/findings")
            assert answer.status_code == 503
            assert "slowrank migrate" in answer.json()["detail"]
            ready = empty.get("/readyz")
            assert (ready.status_code, ready.json()["status"]) == (503, "unready")
            assert ready.json()["detail"].endswith("run `slowrank migrate`")
        server.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def test_request_ids(client):
    """A sane id of the caller is kept, another is replaced."""
    kept = client.get("/version", headers={"x-request-id": "abc-12345"})
    assert kept.headers["x-request-id"] == "abc-12345"
    for bad in ("a b", "x" * 100, "<script>"):
        assert client.get("/version", headers={"x-request-id": bad}).headers["x-request-id"] != bad


def test_security_headers_are_on_every_answer(client):
    """Good or bad, an answer carries the same protections."""
    for path in ("/healthz", "/nowhere", "/api/v1/findings"):
        headers = client.get(path).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["content-security-policy"] == "default-src 'none'; frame-ancestors 'none'"
        assert headers["referrer-policy"] == "no-referrer"


def test_hosts(client, settings, pool):
    """The public name and loopback pass, with or without port; probes pass under any name."""
    for host in ("127.0.0.1", "127.0.0.1:8080", "LOCALHOST:1", "[::1]:8080", "slowrank.example.org"):
        assert client.get("/version", headers={"host": host}).status_code == 200, host
    for host in ("evil.example.net", "127.0.0.1.evil.net", "", "localhost@evil.net"):
        assert client.get("/version", headers={"host": host}).status_code == 421, host
    assert client.get("/healthz", headers={"host": "10.1.2.3:8080"}).status_code == 200


def test_ready_tells_each_part_apart(client, pool):
    """Streams and notifier are ok while they leave signs of life; the API is ready without them."""
    silent = client.get("/readyz")
    assert (silent.status_code, silent.json()["status"]) == (200, "degraded")
    assert "no webhook gets anything: start `slowrank notifier run`" in silent.json()["detail"]
    with pool.connection() as conn:
        conn.execute("INSERT INTO heartbeats VALUES ('streams', 'a', now()), ('notifier', 'b', now())")
    ready = client.get("/readyz").json()
    assert ready["status"] == "ok"
    assert "detail" not in ready
    assert {c["name"]: c["ok"] for c in ready["checks"]} == {
        "database": True,
        "streams": True,
        "notifier": True,
    }


def test_what_stands_still_in_one_process_is_no_other_to_start(client, settings, pool):
    """`slowrank up` detects and notifies itself."""
    ready = type(client)(create_app(settings, pool, one_process=True)).get("/readyz").json()
    assert "no telemetry is judged: this process does it and stands still" in ready["detail"]
    assert "slowrank streams run" not in ready["detail"]


def test_a_process_that_waits_for_a_server_is_not_ok(client, pool):
    """It is alive and does nothing, as with a full disk; the API can still read and is degraded."""
    beats = [
        ("streams", "a", {"waiting_for": []}),
        ("streams", "b", {"waiting_for": ["database"], "error": "could not extend file: No space left"}),
        ("streams", "c", {"waiting_for": ["kafka", "partition counts"]}),
        ("notifier", "d", {"running": 3}),
    ]
    with pool.connection() as conn:
        for process, instance, detail in beats:
            conn.execute(
                "INSERT INTO heartbeats VALUES (%s, %s, now(), %s)", (process, instance, Jsonb(detail))
            )
    ready = client.get("/readyz")
    assert (ready.status_code, ready.json()["status"]) == (200, "degraded")
    checks = {check["name"]: check for check in ready.json()["checks"]}
    assert checks["streams"] == {
        "name": "streams",
        "ok": False,
        "detail": "3 alive, last heartbeat 0 s ago; 2 wait for database and kafka "
        "(could not extend file: No space left) and do nothing meanwhile: see whether these servers run and "
        "their disks have room",
    }
    assert checks["notifier"]["ok"]
    with pool.connection() as conn:
        conn.execute("DELETE FROM heartbeats WHERE instance IN ('b', 'c')")
    assert client.get("/readyz").json()["status"] == "ok"


def test_a_probe_is_a_line_of_its_own(client, settings, pool):
    """What the composer adds is asked each time and may fail without harm."""

    def down() -> str:
        raise OSError("no broker")

    app = create_app(settings, pool, probes={"kafka": down, "bus": lambda: "fine"})
    checks = {c["name"]: c for c in type(client)(app).get("/readyz").json()["checks"]}
    assert (checks["kafka"]["ok"], checks["kafka"]["detail"]) == (False, "no broker")
    assert checks["bus"] == {"name": "bus", "ok": True, "detail": "fine"}


def test_metrics_count_by_route_and_not_by_path(client, save_finding):
    """Ids in paths and made-up methods never become label values; open findings are gauges."""
    save_finding(status="open")
    client.get("/api/v1/findings/fnd_01JD7Q4Y6R8V2M3K5N9P0S1T2W")
    client.request("BREW", "/nowhere")
    text = client.get("/metrics").text
    assert 'route="/api/v1/findings/{finding_id}",status="4xx"' in text
    assert 'method="OTHER",route="unmatched"' in text
    assert "01JD7Q4Y" not in text
    assert "BREW" not in text
    assert 'slowrank_findings_open{kind="straggler.fail_slow",severity="critical"} 1.0' in text
    assert "slowrank_database_up 1.0" in text


def test_config_shows_no_secret(client, api_dsn):
    """The settings are served with every secret starred."""
    text = client.get("/api/v1/config").text
    assert json.loads(text)["database_url"] == "**********"
    password = psycopg.conninfo.conninfo_to_dict(api_dsn).get("password")
    assert "for cursors" not in text
    assert not password or str(password) not in text


def test_the_stored_openapi_document_is_current():
    """`slowrank api openapi > api/openapi.json` was run after the last change of the interface."""
    frozen = json.loads(Path(api.__file__).with_name("openapi.json").read_text())
    assert openapi_document() == frozen


def test_openapi_is_served(client):
    """The app serves the same document it was frozen from."""
    assert client.get("/api/v1/openapi.json").json() == openapi_document()


def test_the_finding_schema_is_served(client):
    """/schemas/finding.v1.json names itself by the public address."""
    schema = client.get("/api/v1/schemas/finding.v1.json").json()
    assert schema["$id"] == "http://slowrank.example.org/api/v1/schemas/finding.v1.json"


@pytest.mark.parametrize("path", ["/api/v1/findings", "/healthz", "/nowhere", "/metrics"])
def test_head_is_get_without_a_body(client, path):
    """Status and headers are those of GET, its length too; there is nothing behind them."""
    whole, head = client.get(path), client.request("HEAD", path)
    assert head.status_code == whole.status_code
    assert head.content == b""
    for name in ("content-type", "etag"):
        assert head.headers.get(name) == whole.headers.get(name)


def test_a_stream_has_no_head(client):
    """Its answer does not end, so that nothing can be said of it as a whole."""
    assert client.request("HEAD", "/api/v1/events/stream").status_code == 405
