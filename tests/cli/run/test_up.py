import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import msgspec
import psycopg
import pytest
from standardwebhooks import Webhook
from typer.testing import CliRunner

from alerts.config import FindingConfig
from alerts.finding import Finding, dedup_key, finding_id
from cli import app
from cli.embedded.database_folder import EmbeddedError
from cli.embedded.local_stack import StackConfig, enough_space, host_telemetry, key_of, local_stack
from cli.run.up import _run_retention
from simulator import Cluster, ClusterSpec, Fault
from simulator.cluster.layout import one_job
from slowrank import StepTimer
from slowrank.settings import Settings
from slowrank.telemetry import JobSteps, NodeEvent, NodeSample, Subject
from slowrank.telemetry.rows.json_rows import rows
from store.findings import findings
from streams.config.settings import Tuning
from tests.streams import traffic

SLOWRANK = [sys.executable, "-c", "from cli import main; main()"]


@pytest.fixture
def home():
    """A folder for data, settings and temporary files, which PostgreSQL's user can enter also as root."""
    with tempfile.TemporaryDirectory(prefix="slowrank-test-") as made:
        Path(made).chmod(0o711)
        yield Path(made)


@pytest.fixture
def receiver():
    """A webhook receiver on loopback: ``url`` and the ``requests`` it got, as (headers, body)."""
    requests: list[tuple[dict[str, str], bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["content-length"]))
            requests.append(({k.lower(): v for k, v in self.headers.items()}, body))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield SimpleNamespace(url=f"http://127.0.0.1:{server.server_port}/hook", requests=requests)
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def up(home, receiver):
    """A running ``slowrank up``; ``run`` runs another slowrank command against it, as a user would."""
    port = receiver.url.split(":")[2].split("/")[0]
    env = {k: v for k, v in os.environ.items() if not k.startswith("SLOWRANK_")} | {
        "TMPDIR": str(home),
        "XDG_CONFIG_HOME": str(home / "config"),
        "SLOWRANK_WEBHOOK_ALLOW_HTTP": '["127.0.0.1"]',
        "SLOWRANK_WEBHOOK_ALLOW_PRIVATE": '["127.0.0.1"]',
        "SLOWRANK_WEBHOOK_ALLOW_PORTS": f"[{port}]",
    }
    command = [
        *SLOWRANK,
        "up",
        "--data",
        str(home / "data"),
        "--port",
        "0",
        "--listen",
        f"127.0.0.1:{free_port()}",
    ]
    running = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert running.stdout is not None
    told = running.stdout.readline()
    assert "slowrank is up" in told, told + running.stdout.read()
    link = running.stdout.readline().split()[1]

    def run(*arguments):
        done = subprocess.run([*SLOWRANK, *arguments], env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def stop():
        running.send_signal(signal.SIGINT)
        assert running.wait(60) == 0

    yield SimpleNamespace(
        url=told.split()[-1], link=link, key=(home / "config/slowrank/key"), run=run, stop=stop
    )
    if running.poll() is None:
        running.send_signal(signal.SIGINT)
    output, _ = running.communicate(timeout=60)
    assert running.returncode == 0, output
    assert "Traceback" not in output


def free_port():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def recent_cluster(seconds, fault):
    """Return the telemetry of a small cluster whose last seconds are now, as NDJSON."""
    spec = ClusterSpec(
        nodes=4, gpus=8, nics=2, jobs=(one_job(4, 8),), start=float(int(time.time() - seconds))
    )
    records = Cluster(spec, seed=4, faults=[fault]).run(seconds)
    return [
        b"".join(msgspec.json.encode(row) + b"\n" for row in rows(r))
        for r in records
        if isinstance(r, JobSteps)
    ]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [([], ["127.0.0.1:9311"]), (["--listen", ""], []), (["--listen", "a:1,/b"], ["a:1", "/b"])],
)
def test_listen_takes_the_place_of_the_default(monkeypatch, arguments, expected):
    """An empty --listen takes no step times; only without the option the default holds."""
    seen = list[Any]()

    def stopped(_, settings, __):
        seen.append(settings.listen_addresses())
        raise EmbeddedError("far enough")

    monkeypatch.setattr("cli.embedded.local_stack.local_stack", stopped)
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # pytest's own stay
    CliRunner().invoke(app, ["up", *arguments])
    assert seen == [expected]


@pytest.mark.parametrize(
    ("error", "next_step"),
    [
        (OSError(98, "Address already in use"), "Is another `slowrank up` running? Stop it, or choose other"),
        (PermissionError(13, "Permission denied", "/x"), "Check the permissions, or choose other folders"),
    ],
)
def test_what_keeps_it_from_starting_comes_with_the_next_step(monkeypatch, error, next_step):
    """A port that is taken, and a folder that it may not write to."""

    def refused(*_):
        raise error

    monkeypatch.setattr("cli.embedded.local_stack.local_stack", refused)
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # pytest's own stay
    result = CliRunner().invoke(app, ["up"])
    assert result.exit_code == 2
    assert f"cannot start: {error}. {next_step}" in " ".join(result.stderr.split())


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_up_answers_like_the_real_stack(up, receiver):
    """Rows over HTTP become one finding, listed by the CLI and delivered as a signed webhook."""
    added = up.run("webhook", "add", receiver.url).split()
    webhook, secret = added[1], added[3]
    page = httpx.get(up.link, headers={"accept": "text/html"}, trust_env=False, follow_redirects=True)
    assert "<h1>Fleet</h1>" in page.text
    assert "204" in up.run("webhook", "test", webhook)
    headers = {"authorization": f"Bearer {up.key.read_text().strip()}"}
    lines = recent_cluster(140, Fault(kind="silent_slow", node=2, gpu=3, onset=60, magnitude=1.4))
    for start in range(0, len(lines), 40):
        body = b"".join(lines[start : start + 40])
        answer = httpx.post(f"{up.url}/api/v1/ingest/samples", content=body, headers=headers, timeout=60)
        assert answer.json()["rejected"] == 0
    listed: list[dict[str, Any]] = json.loads(up.run("findings", "list", "-o", "json"))
    assert [(f["kind"], f["subject"]["rank"]) for f in listed] == [("straggler.fail_slow", 19)]
    until = time.monotonic() + 30
    while len(receiver.requests) < 2 and time.monotonic() < until:
        time.sleep(0.1)
    test, opened = [Webhook(secret).verify(body, headers) for headers, body in receiver.requests]
    assert test["type"] != opened["type"] == "finding.opened"
    assert opened["data"]["id"] == listed[0]["id"]


@pytest.mark.slow
def test_a_request_takes_at_most_five_milliseconds(home):
    """No answer waits for a delayed acknowledgement (40 ms), one after the other on a connection."""
    wanted = StackConfig(home / "data", 0, throwaway=True)
    with (
        local_stack(wanted, Settings(database_url=None), Tuning()) as stack,
        httpx.Client(base_url=stack.url, trust_env=False) as api,
    ):
        seconds = [api.get("/version").elapsed.total_seconds() for _ in range(40)]
    # The quickest: what else runs on this machine may hold up any of them, that delay holds up every one.
    assert min(seconds) <= 0.005


@pytest.mark.slow
def test_metrics_of_up_show_a_webhook_that_fails(home):
    """Its only page has what the notifier in it counts: three findings, each refused once."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        settings = Settings(
            database_url=None,
            webhook_allow_http=("127.0.0.1",),
            webhook_allow_private=("127.0.0.0/8",),
            webhook_allow_ports=(port,),
        )
        with local_stack(StackConfig(home / "data", 0, throwaway=True), settings, Tuning()) as stack:
            headers = {"authorization": f"Bearer {stack.new_key('test')}"}
            with httpx.Client(base_url=stack.url, headers=headers, trust_env=False) as api:
                body = {"url": f"http://127.0.0.1:{port}/hook", "kinds": ["straggler"]}
                webhook = api.post("/api/v1/webhooks", json=body).json()["id"]
                with stack.pool.connection() as conn:
                    for node in ("a", "b", "c"):
                        findings.save(conn, slow(node), FindingConfig())
                until, failing = (
                    time.monotonic() + 20,
                    f'slowrank_webhook_failing{{endpoint="{webhook}"}} 1.0',
                )
                while failing not in (page := api.get("/metrics").text) and time.monotonic() < until:
                    time.sleep(0.1)
                assert failing in page
                assert f'endpoint="{webhook}",result="retry"' in page
                assert api.get(f"/api/v1/webhooks/{webhook}").json()["status"] == "failing"
                own_findings = api.get("/api/v1/findings", params={"kind": "self"}).json()["items"]
    assert [f["kind"] for f in own_findings] == ["self.webhook_failing"]


def slow(node):
    """Return an open finding about a GPU of a node."""
    subject, onset = Subject(type="gpu", cluster="c", node=node, gpu_index=0), round(time.time() - 60, 3)
    key = dedup_key(subject, "straggler.fail_slow")
    return Finding(
        id=finding_id(key, onset),
        dedup_key=key,
        kind="straggler.fail_slow",
        title=f"{node} is slow",
        severity="error",
        status="open",
        subject=subject,
        onset=onset,
        onset_lo=onset,
        onset_hi=onset,
        detected_at=onset + 1,
        last_seen_at=onset + 2,
        detector="peer_step",
    )


@pytest.mark.slow
def test_the_audit_log_of_a_running_up_is_found(up, home):
    """`slowrank audit` needs no setting while `up` runs; no address of a database is left behind."""
    up.run("key", "create", "--name", "somebody")
    assert "is intact" in up.run("audit")
    left = home / "config/slowrank/database"
    assert left.stat().st_mode & 0o777 == 0o600
    up.stop()
    assert not left.exists()


@pytest.mark.slow
def test_the_key_is_private_and_kept(home):
    """The key file is its owner's alone; a second start with the same data keeps the key, new data do not."""
    key_file = home / "config/key"
    found = []
    for data in ("one", "one", "two"):
        wanted = StackConfig(home / data, 0, throwaway=True)
        with local_stack(wanted, Settings(database_url=None), Tuning()) as stack:
            found.append(key_of(stack, key_file))
    assert found[0] == found[1] != found[2]
    assert key_file.stat().st_mode & 0o777 == 0o600
    # It may be of another installation, and the API never shows it again.
    assert (home / "config/key.1").read_text().strip() == found[0]


def test_a_disk_that_fills_is_reported_before_the_database_stops(monkeypatch, tmp_path):
    """With its folder and how much is left; a file system with space is ok."""
    assert f"free in {tmp_path}" in enough_space(tmp_path)
    monkeypatch.setattr("cli.embedded.local_stack.MIN_FREE_BYTES", 2**60)
    with pytest.raises(OSError, match=r"MiB are free in .* the database stops when none are left"):
        enough_space(tmp_path)


def test_housekeeping_waits_for_an_absent_database(caplog, monkeypatch):
    """It ended the process an hour after the database had gone."""
    monkeypatch.setattr("cli.run.up.HOUSEKEEPING_SECONDS", 0.1)
    stop, asked = threading.Event(), []

    def connection():
        asked.append(1)
        if len(asked) == 3:
            stop.set()
        raise psycopg.OperationalError("the database system is shutting down")

    stack: Any = SimpleNamespace(pool=SimpleNamespace(connection=connection), settings=None)
    _run_retention(stop, stack, Tuning())
    assert len(asked) == 3
    assert "expired rows are removed later" in caplog.text


@pytest.mark.slow
def test_a_restart_goes_on_with_the_same_settings(home, caplog, monkeypatch):
    """The detectors' state is in the data folder, for its owner alone; other settings do not take it."""
    # A busy machine may take longer to start a database.
    monkeypatch.setattr("cli.embedded.local_sink.LONGEST_STOP_SECONDS", 300.0)
    event = NodeEvent(cluster="c", node="n", ts=time.time(), source="kmsg", code="xid.79", seq=1)
    found = []
    for memory in (1024, 1024, 2048):
        # Links to runbooks are part of the settings, and otherwise contain the port.
        address = "http://slowrank.example"
        settings = Settings(database_url=None, streams_job_memory_mib=memory, public_url=address)
        with local_stack(StackConfig(home / "data", 0), settings, Tuning()) as stack:
            found.append(list(stack.sink._clusters))
            if not found[-1]:
                stack.sink.accept([event])
    assert found == [[], ["c"], []]
    assert "the snapshot is ignored" in caplog.text
    assert (home / "data/snapshots").stat().st_mode & 0o777 == 0o700


@pytest.mark.slow
def test_step_times_and_this_hosts_own_telemetry_arrive(home, monkeypatch):
    """Datagrams of the training hook and samples of this very host reach the sink."""
    address, taken = f"127.0.0.1:{free_port()}", list[Any]()
    wanted = StackConfig(home / "data", 0, throwaway=True)
    with local_stack(wanted, Settings(database_url=None), Tuning()) as stack:
        accept = stack.sink.accept

        def watched(records):
            taken.extend(records)
            accept(records)

        monkeypatch.setattr(stack.sink, "accept", watched)
        with host_telemetry(stack, listen=[address]):
            timer = StepTimer(job_id="laptop", rank=0, exporter=address)
            until = time.monotonic() + 20
            # Until they arrive: a datagram sent before the collector listens is lost, as in production.
            while time.monotonic() < until and not {NodeSample, JobSteps} <= {type(r) for r in taken}:
                with timer.step(), timer.phase("compute"):
                    time.sleep(0.1)
                timer.flush()
            timer.close()
    assert {r.job_id for r in taken if isinstance(r, JobSteps)} == {"laptop"}
    assert any(r.host for r in taken if isinstance(r, NodeSample))
    assert not stack.sink.refused


@pytest.mark.slow
def test_clusters_that_fall_wholly_silent_are_reported_in_tens_of_seconds(home):
    """Three clusters stop at once: no record is left that could move their time, the clock does (40 s)."""
    clusters = {"east", "north", "west"}
    with local_stack(
        StackConfig(home / "data", 0, throwaway=True), Settings(database_url=None), Tuning()
    ) as stack:
        ends = time.time()
        sent = [list(traffic.nodes(count=4, seconds=60, cluster=name, ends=ends)) for name in clusters]
        for part in (slice(0, 120), slice(120, None)):
            for records in sent:
                stack.sink.accept(records[part])
            time.sleep(2.0)
        found, until = set[str](), time.monotonic() + 60
        while time.monotonic() < until and found != clusters:
            time.sleep(0.5)
            with stack.pool.connection() as conn:
                query = (
                    "SELECT doc->'subject'->>'cluster' FROM findings "
                    "WHERE doc->'subject'->>'type' = %s AND doc->>'status' = 'open'"
                )
                found = {cluster for (cluster,) in conn.execute(query, ["site"]).fetchall()}
    assert found == clusters
