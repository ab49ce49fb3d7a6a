"""Real things around the API: receivers of webhooks, a migrated database, the app on it."""

import asyncio
import os
import secrets
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import psycopg
import pytest
import services
from psycopg import sql
from pydantic import SecretStr

from alerts.config import FindingConfig
from alerts.finding import Finding, dedup_key, finding_id
from api.app import create_app
from api.delivery.from_settings import webhook_client_of
from api.delivery.notifier import Notifier
from api.http.connections import server as serving
from api.ingest import SinkUnavailable
from api.metrics import NotifierMetrics, new_registry
from api.security.auth import SCOPES
from api.security.signing import new_secret
from slowrank.settings import Settings
from slowrank.telemetry import BadRecord
from slowrank.telemetry.records import Subject
from store.access import keys
from store.findings import findings, webhooks
from store.findings.webhooks import Webhook
from store.migrate import migrate
from store.pool import open_pool
from tests.store.evidence.telemetry import slow_finding, write_job


@dataclass
class Got:
    """One request as it arrived."""

    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Receiver:
    """Answers with ``answers`` in turn (the last one for ever), or what ``reply`` returns; remembers all."""

    answers: list[tuple[int, dict[str, str], bytes]] = field(default_factory=lambda: [(200, {}, b"ok")])
    got: list[Got] = field(default_factory=list)
    before_answer: Callable[[Got], None] = lambda got: None
    reply: Callable[[Got], tuple[int, dict[str, str], bytes]] | None = None
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    def wait_for(self, count: int, seconds: float = 20.0) -> list[Got]:
        """Return the first ``count`` requests, or fail saying how many came."""
        deadline = time.monotonic() + seconds
        while len(self.got) < count:
            if time.monotonic() > deadline:
                raise AssertionError(f"{len(self.got)} of {count} requests after {seconds} s")
            time.sleep(0.02)
        return self.got[:count]


def serve(receiver: Receiver, tls=None) -> ThreadingHTTPServer:
    """Start ``receiver`` on a free loopback port; the caller shuts the server down."""
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers.get("content-length", "0")))
            got = Got(self.path, {k.lower(): v for k, v in self.headers.items()}, body)
            with lock:
                receiver.got.append(got)
                answer = receiver.answers[min(len(receiver.got), len(receiver.answers)) - 1]
            receiver.before_answer(got)
            status, headers, payload = answer if receiver.reply is None else receiver.reply(got)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(payload)))
            self.end_headers()
            self.wfile.write(payload)

        def log_message(self, format, *args):
            pass

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request, client_address):
            pass

    server = Quiet(("127.0.0.1", 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    receiver.port = server.server_address[1]
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    return server


@pytest.fixture
def start_receiver():
    """Start receivers: ``start_receiver()`` or ``start_receiver(tls_context)``."""
    servers = []

    def start(tls=None, **fields):
        receiver = Receiver(**fields)
        servers.append(serve(receiver, tls))
        return receiver

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def receiver(start_receiver):
    """One receiver that answers 200."""
    return start_receiver()


@pytest.fixture(scope="session")
def certificate(tmp_path_factory):
    """Path of a PEM with key and certificate for hooks.example.test and localhost, made for this run."""
    pem = tmp_path_factory.mktemp("tls") / "both.pem"
    command = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 "
        "-subj /CN=hooks.example.test -addext subjectAltName=DNS:hooks.example.test,DNS:localhost "
        f"-keyout {pem} -out {pem}.crt"
    )
    subprocess.run(command.split(), check=True, capture_output=True)
    with pem.open("a") as both:
        both.write(pem.with_suffix(".pem.crt").read_text())
    return pem


@pytest.fixture
def tls_server_context(certificate):
    """The receiver's side of TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


TABLES = (
    "findings, finding_history, silences, events, webhooks, webhook_secrets, deliveries, delivery_attempts, "
    "api_keys, audit, heartbeats, paces, requests, nodes, ranks, jobs, inhibitions, backtests, "
    "finding_evidence, sessions, job_events"
)
# TRUNCATE takes 25 ms, as it makes every file anew; a test leaves a handful of rows.
EMPTY = f"""
SET session_replication_role = replica;
{"".join(f"DELETE FROM {table};" for table in TABLES.split(", "))}
SELECT setval(oid, 1, false) FROM pg_class WHERE relkind = 'S' AND relnamespace = 'public'::regnamespace;
SET session_replication_role = origin;
"""


@pytest.fixture(scope="session")
def api_server(request):
    """Superuser DSN of a real PostgreSQL: the shared TimescaleDB, else the one from the wheel."""
    dsn = os.environ.get("SLOWRANK_TEST_DSN") or services.exports().get("SLOWRANK_TEST_DSN")
    return dsn or request.getfixturevalue("plain_server")


@pytest.fixture(scope="session")
def api_dsn(api_server):
    """DSN of a migrated database of this run."""
    name = f"api_{secrets.token_hex(6)}"
    with psycopg.connect(api_server, autocommit=True) as conn:
        conn.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    dsn = psycopg.conninfo.make_conninfo(api_server, dbname=name)
    migrate(dsn)
    yield dsn
    with psycopg.connect(api_server, autocommit=True) as conn:
        conn.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.fixture(scope="session")
def session_pool(api_dsn):
    """A pool for the whole run."""
    with open_pool(api_dsn, name="tests") as pool:
        yield pool


@pytest.fixture
def pool(session_pool):
    """The pool, on empty tables."""
    with session_pool.connection() as conn:
        conn.execute(EMPTY)
    return session_pool


class Collected:
    """A sink that keeps what it is given but for one cluster, or refuses all with a message."""

    def __init__(self):
        self.records = []
        self.refusal = ""

    def accept(self, records):
        if self.refusal:
            raise SinkUnavailable(self.refusal)
        taken = [record for record in records if record.cluster != "full"]
        self.records.extend(taken)
        return {
            index: BadRecord("too_many_instances", "64 clusters are open already")
            for index, record in enumerate(records)
            if record.cluster == "full"
        }


@pytest.fixture
def sink():
    """The in-process sink of the app under test."""
    return Collected()


@pytest.fixture
def settings(api_dsn, monkeypatch, tmp_path):
    """Settings that let webhooks go to loopback over http; nothing else comes from this machine."""
    monkeypatch.chdir(tmp_path)
    for name in [n for n in os.environ if n.startswith("SLOWRANK_") and not n.startswith("SLOWRANK_TEST")]:
        monkeypatch.delenv(name)
    return Settings(
        database_url=SecretStr(api_dsn),
        public_url="http://slowrank.example.org",
        webhook_allow_http=("127.0.0.1",),
        webhook_allow_private=("127.0.0.0/8",),
        api_secret=SecretStr("for cursors"),
    )


@pytest.fixture
def app(settings, pool, sink):
    """The app under test on a real database."""
    return create_app(settings, pool, sink=sink)


@pytest.fixture
def new_token(pool):
    """Make keys straight in the database: ``new_token(*scopes, clusters=…)``."""

    def make(*scopes, clusters=(), **fields):
        key_id, token, digest = keys.generate()
        now = datetime.now(UTC)
        key = keys.ApiKey(
            id=key_id,
            name="test",
            sha256=digest,
            scopes=scopes,
            clusters=clusters,
            created_by="test",
            created_at=now,
            **fields,
        )
        with pool.connection() as conn:
            keys.create(conn, key)
        return token

    return make


class Client:
    """Synchronous requests to an ASGI app, each on the same event loop."""

    def __init__(self, app, token=None):
        self._app = app
        self.headers = {"authorization": f"Bearer {token}"} if token else {}

    def request(self, method, path, *, headers=None, **options):
        async def ask():
            transport = httpx.ASGITransport(self._app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
                return await client.request(method, path, headers=self.headers | (headers or {}), **options)

        return asyncio.run(ask())

    def get(self, path, **options):
        return self.request("GET", path, **options)

    def post(self, path, **options):
        return self.request("POST", path, **options)

    def patch(self, path, **options):
        return self.request("PATCH", path, **options)

    def delete(self, path, **options):
        return self.request("DELETE", path, **options)


@pytest.fixture
def client(app, new_token):
    """A client whose key may do everything."""
    return Client(app, new_token(*SCOPES))


@pytest.fixture
def client_with(app, new_token):
    """Clients with keys of some scopes: ``client_with("findings:read", clusters=("a",))``; none: no key."""

    def make(*scopes, **fields):
        return Client(app, new_token(*scopes, **fields) if scopes else None)

    return make


@pytest.fixture
def save_finding(pool):
    """Store a finding the way the stream workers do: ``save_finding(node="n1", status="open", …)``.

    With ``resolved_at`` it was open before.
    """

    def make(*, node="gpu-0423", gpu=5, cluster="prod-a", kind="straggler.fail_slow", onset=None, **fields):
        subject = Subject(type="gpu", cluster=cluster, node=node, gpu_index=gpu, job_id="812345")
        key = dedup_key(subject, kind)
        onset = round(time.time() - 600, 3) if onset is None else onset
        defaults = {
            "title": f"{node} GPU {gpu} is 1.31x slower than 127 peers",
            "severity": "critical",
            "status": "open",
            "detected_at": onset + 20,
            "last_seen_at": onset + 30,
            "slowdown_ratio": 1.31,
            "gpu_hours_lost_per_hour": 30.3,
            "confidence": 0.97,
        }
        finding = Finding(
            id=finding_id(key, onset),
            dedup_key=key,
            kind=kind,
            subject=subject,
            onset=onset,
            onset_lo=onset - 1,
            onset_hi=onset + 1,
            detector="peer_step",
            **(defaults | fields),
        )
        with pool.connection() as conn:
            if finding.resolved_at is not None:
                opened = replace(finding, status="open", resolved_at=None, as_of=finding.detected_at)
                findings.save(conn, opened, FindingConfig())
            findings.save(conn, finding, FindingConfig())
        return finding

    return make


@pytest.fixture
def slow_job(pool):
    """The finding about a small job with telemetry (tests/store/evidence/telemetry.py)."""
    finding = slow_finding()
    with pool.connection() as conn:
        write_job(conn)
        findings.save(conn, finding, FindingConfig())
    yield finding
    with pool.connection() as conn:
        # No TRUNCATE, which deadlocks with a page of the test before that still reads both.
        conn.execute("DELETE FROM samples_10s; DELETE FROM steps_10s")


@pytest.fixture
def add_webhook(pool):
    """Store endpoints: ``add_webhook(url, format=…)`` returns (webhook, secret)."""

    def add(url, **fields):
        now, secret = datetime.now(UTC), new_secret()
        webhook = Webhook(
            id=f"whk_{len(secret)}{time.monotonic_ns()}",
            url=url,
            created_by="test",
            created_at=now,
            updated_at=now,
            **({"name": "test", "min_severity": "warning"} | fields),
        )
        with pool.connection() as conn:
            webhooks.create(conn, webhook, secret)
        return webhook, secret

    return add


class Clock:
    """The time of day, which a test may move."""

    def __init__(self):
        self.ahead = timedelta()

    def __call__(self):
        return datetime.now(UTC) + self.ahead


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def notifier(pool, settings, clock):
    """Build notifiers that may reach the given receivers."""

    def build(*receivers, **fields):
        allowed = settings.model_copy(update={"webhook_allow_ports": tuple(r.port for r in receivers)})
        registry = new_registry()
        made = Notifier(
            pool=pool,
            client=webhook_client_of(allowed),
            metrics=NotifierMetrics(registry),
            public_url="http://slowrank.example.org",
            instance="test",
            now=clock,
            chance=lambda: 0.5,
            **fields,
        )
        return made, registry

    return build


@pytest.fixture
def live(settings, pool, sink):
    """A served app with a notifier beside it: ``live(port, …)`` allows those ports and returns its URL.

    ``options`` are those of ``create_app``.
    """
    stops = []

    def start(*ports, **options):
        allowed = settings.model_copy(update={"webhook_allow_ports": ports})
        server = serving(
            create_app(allowed, pool, sink=sink, **options), port=0, log_level="error", lifespan="off"
        )
        listening = socket.create_server(("127.0.0.1", 0))
        notifier = Notifier(
            pool=pool,
            client=webhook_client_of(allowed),
            metrics=NotifierMetrics(new_registry()),
            public_url="http://slowrank.example.org",
            instance="test",
        )
        stop = threading.Event()
        threads = [
            threading.Thread(target=server.run, kwargs={"sockets": [listening]}),
            threading.Thread(target=lambda: asyncio.run(_until(notifier, stop))),
        ]
        for thread in threads:
            thread.start()
        stops.append((server, stop, threads, listening))
        return f"http://127.0.0.1:{listening.getsockname()[1]}"

    yield start
    for server, stop, threads, listening in stops:
        server.should_exit = True
        server.force_exit = True
        stop.set()
        for thread in threads:
            thread.join(20)
            assert not thread.is_alive()
        listening.close()


async def _until(notifier, stop):
    ended = asyncio.Event()
    running = asyncio.create_task(notifier.run(ended))
    await asyncio.to_thread(stop.wait)
    ended.set()
    await running
