"""End-to-end check on real processes: one really slowed rank must give one finding that names it.

Real training processes -> exporter -> Kafka -> Faust workers -> TimescaleDB -> API and notifier -> webhook
receiver. Once healthy, once with one rank slowed. Ends with 0 when the healthy run delivered nothing and the
slowed run opened one finding, by a correctly signed webhook, naming that rank; later deliveries may only be
about that finding.

    python scripts/services.py run -- python examples/real_input.py

Needs Kafka and TimescaleDB (SLOWRANK_TEST_KAFKA, SLOWRANK_TEST_DSN, which ``services.py run`` sets); works in
a topic prefix and a database of its own, and removes both.
"""

import argparse
import base64
import contextlib
import hashlib
import hmac
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psycopg
from kafka.admin import KafkaAdminClient
from psycopg import sql
from psycopg.conninfo import make_conninfo

SLOWRANK = str(Path(sys.executable).with_name("slowrank"))
TRAINING = str(Path(__file__).with_name("numpy_training.py"))
# The greatest age of a signature that the Standard Webhooks reference libraries accept.
TOLERANCE_SECONDS = 300
# Chosen, not measured: long enough for a cold start of all processes on a loaded machine.
READY_SECONDS = 90.0


@dataclass(frozen=True)
class Options:
    """How many ranks, which one is slowed, how long each run is, and how long to wait for deliveries."""

    ranks: int
    slow_rank: int
    seconds: float
    slow_after: float
    settle: float
    logs: Path | None
    record: Path | None


@dataclass
class Receiver:
    """An on-call service: keeps the webhooks with a valid signature and counts the others."""

    secret: bytes = b""
    genuine: list[dict[str, Any]] = field(default_factory=list)
    forged: int = 0

    def take(self, headers: Mapping[str, str], body: bytes) -> int:
        """Return the HTTP status for one delivery (Standard Webhooks 1.0)."""
        identity, stamp = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "0")
        signed = f"{identity}.{stamp}.".encode() + body
        expected = base64.b64encode(hmac.new(self.secret, signed, hashlib.sha256).digest()).decode()
        given = [part.removeprefix("v1,") for part in headers.get("webhook-signature", "").split()]
        fresh = stamp.isdigit() and abs(time.time() - int(stamp)) < TOLERANCE_SECONDS
        if not fresh or not any(hmac.compare_digest(expected, signature) for signature in given):
            self.forged += 1
            return 401
        self.genuine.append(json.loads(body))
        return 204


@contextlib.contextmanager
def serving(receiver: Receiver) -> Iterator[int]:
    """Serve ``receiver`` on a free loopback port."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", "0")))
            self.send_response(receiver.take({k.lower(): v for k, v in self.headers.items()}, body))
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()


class Stack:
    """The processes of slowrank, started with the commands an operator would use."""

    def __init__(self, environ: Mapping[str, str], logs: Path) -> None:
        self._environ = dict(environ)
        self._logs = logs
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def call(self, *arguments: str) -> str:
        """Run one ``slowrank`` command to its end and return what it printed."""
        done = subprocess.run(
            [SLOWRANK, *arguments], env=self._environ, capture_output=True, text=True, timeout=120
        )
        if done.returncode:
            raise SystemExit(f"slowrank {' '.join(arguments)}: {done.stdout}{done.stderr}")
        return done.stdout

    def start(self, name: str, *command: str, **environ: str) -> subprocess.Popen[bytes]:
        """Start a process that stays; its output goes to a log file."""
        with (self._logs / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(command, env=self._environ | environ, stdout=log, stderr=log)
        self._processes[name] = process
        return process

    def check(self) -> None:
        """Raise ``SystemExit`` when a process has ended that should stay."""
        for name, process in self._processes.items():
            if process.poll() not in (None, 0):
                raise SystemExit(f"{name} ended with {process.returncode}; see {self._logs}/{name}.log")

    def stop(self) -> None:
        """Stop all, the last started first."""
        for process in reversed(self._processes.values()):
            process.send_signal(signal.SIGTERM)
        for process in reversed(self._processes.values()):
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def database(dsn: str) -> Iterator[str]:
    """A database of our own on the server, dropped at the end."""
    name = f"real_input_{secrets.token_hex(4)}"
    with psycopg.connect(dsn, autocommit=True) as server:
        server.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    try:
        yield make_conninfo(dsn, dbname=name)
    finally:
        with psycopg.connect(dsn, autocommit=True) as server:
            server.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@contextlib.contextmanager
def topics(bootstrap: str) -> Iterator[str]:
    """A topic prefix of our own; the topics under it are deleted at the end."""
    prefix = f"real-input-{secrets.token_hex(4)}."
    try:
        yield prefix
    finally:
        admin = KafkaAdminClient(bootstrap_servers=bootstrap)
        admin.delete_topics([name for name in admin.list_topics() if name.startswith(prefix)])
        admin.close()


def settings(folder: Path, *, kafka: str, dsn: str, prefix: str, receiver_port: int) -> dict[str, str]:
    """Return the environment of every process."""
    api_port = free_port()
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("SLOWRANK_")}
    return inherited | {
        "XDG_CONFIG_HOME": str(folder),
        "SLOWRANK_CLUSTER": "real-input",
        "SLOWRANK_NODE": "this-host",
        "SLOWRANK_KAFKA_BOOTSTRAP": kafka,
        "SLOWRANK_TOPIC_PREFIX": prefix,
        "SLOWRANK_DATABASE_URL": dsn,
        "SLOWRANK_API_PORT": str(api_port),
        "SLOWRANK_URL": f"http://127.0.0.1:{api_port}",
        "SLOWRANK_PUBLIC_URL": f"http://127.0.0.1:{api_port}",
        "SLOWRANK_NOTIFIER_METRICS_PORT": "0",
        "SLOWRANK_NOTIFIER_POLL_SECONDS": "1",
        "SLOWRANK_STREAMS_RUNTIME_DIR": str(folder / "streams"),
        "SLOWRANK_EXPORTER_LISTEN": str(folder / "steps.sock"),
        "SLOWRANK_EXPORTER_SPOOL_DIR": str(folder / "spool"),
        "SLOWRANK_EXPORTER": str(folder / "steps.sock"),
        "SLOWRANK_WEBHOOK_ALLOW_HTTP": '["127.0.0.1"]',
        "SLOWRANK_WEBHOOK_ALLOW_PRIVATE": '["127.0.0.0/8"]',
        "SLOWRANK_WEBHOOK_ALLOW_PORTS": f"[{receiver_port}]",
    }


def bring_up(stack: Stack, environ: dict[str, str], receiver: Receiver, port: int) -> str:
    """Start everything and add the webhook; return an API key."""
    stack.call("migrate")
    stack.call("topics", "create")
    key = stack.call(
        "key", "create", "--name", "real-input", "--scope", "all", "--dsn", environ["SLOWRANK_DATABASE_URL"]
    )
    for name in ("api", "streams", "notifier"):
        stack.start(name, SLOWRANK, name, "run")
    stack.start("exporter", SLOWRANK, "exporter", "run")
    wait_ready(environ["SLOWRANK_URL"], stack)
    added = stack.call("webhook", "add", f"http://127.0.0.1:{port}/hook", "--key", key.strip())
    secret = next(line.split()[1] for line in added.splitlines() if line.startswith("secret "))
    receiver.secret = base64.b64decode(secret.removeprefix("whsec_"))
    print(stack.call("webhook", "test", "--key", key.strip()).strip(), flush=True)
    return key.strip()


def wait_ready(url: str, stack: Stack) -> None:
    """Wait until ``/readyz`` reports the API, the workers and the notifier as ready."""
    deadline, answer = time.monotonic() + READY_SECONDS, "nothing"
    while time.monotonic() < deadline:
        stack.check()
        try:
            with urllib.request.urlopen(f"{url}/readyz", timeout=5) as reply:
                answer = reply.read().decode()
            if json.loads(answer)["status"] == "ok":
                return
        except urllib.error.HTTPError as error:
            answer = error.read().decode()
        except OSError as error:
            answer = str(error)
        time.sleep(0.5)
    raise SystemExit(f"not ready after {READY_SECONDS:.0f} s: {answer}")


def train(stack: Stack, options: Options, name: str, *arguments: str) -> None:
    """Run the training job to its end, then wait ``settle`` seconds for late deliveries."""
    command = [sys.executable, TRAINING, "--job", name, "--ranks", str(options.ranks), "--isolate"]
    job = stack.start(name, *command, "--seconds", str(options.seconds), *arguments)
    while job.poll() is None:
        stack.check()
        time.sleep(0.5)
    stack.check()
    time.sleep(options.settle)


def findings(url: str, key: str) -> list[dict[str, Any]]:
    """Return the first page of findings from the API."""
    request = urllib.request.Request(f"{url}/api/v1/findings", headers={"Authorization": f"Bearer {key}"})
    with urllib.request.urlopen(request, timeout=10) as reply:
        items: list[dict[str, Any]] = json.load(reply)["items"]
        return items


def brief(finding: Mapping[str, Any]) -> str:
    """Return one line about a finding."""
    return f"{finding['status']} {finding['severity']} {finding['kind']}: {finding['title']}"


def judge(
    options: Options, delivered: list[dict[str, Any]], healthy: int, stored: list[dict[str, Any]]
) -> list[str]:
    """Return the failed expectations; the first ``healthy`` of ``delivered`` came from the healthy run."""
    problems = [f"the healthy run delivered {d['type']}: {brief(d['data'])}" for d in delivered[:healthy]]
    slowed = delivered[healthy:]
    opened = [d["data"] for d in slowed if d["type"] == "finding.opened"]
    if len(opened) != 1:
        return [*problems, f"the slowed run opened {len(opened)} findings: {[brief(f) for f in opened]}"]
    [finding] = opened
    if finding["subject"].get("rank") != options.slow_rank:
        problems.append(f"not the slowed rank: {brief(finding)}")
    if finding["id"] not in {f["id"] for f in stored}:
        problems.append(f"the API does not list {finding['id']}")
    others = [d for d in slowed if d["data"]["id"] != finding["id"]]
    return problems + [f"the slowed run also delivered {d['type']}: {brief(d['data'])}" for d in others]


def run(options: Options, folder: Path) -> int:
    """Do both runs; print a JSON summary; return the exit status."""
    kafka, server = required("SLOWRANK_TEST_KAFKA"), required("SLOWRANK_TEST_DSN")
    receiver = Receiver()
    with contextlib.ExitStack() as held:
        port = held.enter_context(serving(receiver))
        dsn, prefix = held.enter_context(database(server)), held.enter_context(topics(kafka))
        environ = settings(folder, kafka=kafka, dsn=dsn, prefix=prefix, receiver_port=port)
        stack = Stack(environ, options.logs or folder)
        held.callback(stack.stop)
        key = bring_up(stack, environ, receiver, port)
        print(f"healthy run, {options.seconds:.0f} s", flush=True)
        train(stack, options, "healthy")
        healthy = len(about_findings(receiver))
        print(f"rank {options.slow_rank} slowed after {options.slow_after:.0f} healthy s", flush=True)
        slow = ("--slow-rank", str(options.slow_rank), "--slow-after", str(options.slow_after))
        train(stack, options, "slowed", *slow)
        stored = findings(environ["SLOWRANK_URL"], key)
        if options.record is not None:
            stack.call("streams", "record", "-o", str(options.record))
        delivered = about_findings(receiver)
    problems = judge(options, delivered, healthy, stored)
    if receiver.forged:
        problems.append(f"{receiver.forged} deliveries were not signed correctly")
    summary = {
        "ok": not problems,
        "problems": problems,
        "healthy_deliveries": healthy,
        "deliveries": [f"{d['type']} {brief(d['data'])}" for d in delivered],
        "findings": [brief(finding) for finding in stored],
    }
    print(json.dumps(summary, indent=2))
    return 1 if problems else 0


def about_findings(receiver: Receiver) -> list[dict[str, Any]]:
    """Return the deliveries about findings, in the order of arrival."""
    return [delivery for delivery in receiver.genuine if delivery["type"] != "delivery.test"]


def required(variable: str) -> str:
    """Return an environment variable that must be set."""
    value = os.environ.get(variable)
    if not value:
        raise SystemExit(
            f"{variable} is not set; run this as: python scripts/services.py run -- python {__file__}"
        )
    return value


def main() -> int:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--slow-rank", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=60.0, help="length of each run")
    parser.add_argument(
        "--slow-after", type=float, default=30.0, help="healthy seconds first, in the slowed run"
    )
    parser.add_argument("--settle", type=float, default=12.0, help="seconds to wait for deliveries")
    parser.add_argument("--logs", type=Path, default=None, help="folder for the logs of all processes")
    parser.add_argument("--record", type=Path, default=None, help="write the telemetry to this file")
    options = Options(**vars(parser.parse_args()))
    if options.logs is not None:
        options.logs.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="slowrank-") as folder:
        return run(options, Path(folder))


if __name__ == "__main__":
    sys.exit(main())
