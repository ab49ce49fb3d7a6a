"""Every process of an installation, and a receiver that checks the webhooks that arrive."""

from __future__ import annotations

import base64
import hmac
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from psycopg import connect
from servers import kafka, timescale
from servers.process import Process, free_ports

from api.security.signing import new_secret
from benchmarks.capacity.load import XID
from benchmarks.loopback import serving
from store.findings import webhooks
from store.findings.webhooks import Webhook

SLOWRANK = (sys.executable, "-c", "from cli import main; main()")
_HOST = "streams"
_READY_SECONDS = 60.0
_STOP_SECONDS = 60.0
# More than a broker of the tests: its peak is part of what is measured.
_JVM = ("-Xms512m", "-Xmx1g", "-XX:+UseG1GC", "-Djava.awt.headless=true")


@dataclass(slots=True)
class Receiver:
    """Takes webhooks whose signature holds (Standard Webhooks 1.0.0).

    ``arrived``: node -> Unix time of its first one.
    """

    secret: str = field(default_factory=new_secret)
    port: int = 0
    refused: int = 0
    arrived: dict[str, float] = field(default_factory=dict)

    def take(self, body: bytes, headers: Mapping[str, str]) -> int:
        """Verify and keep a webhook; return the status of the answer."""
        signed = b".".join((headers["webhook-id"].encode(), headers["webhook-timestamp"].encode(), body))
        key = base64.b64decode(self.secret.removeprefix("whsec_"))
        expected = base64.b64encode(hmac.digest(key, signed, "sha256")).decode()
        if f"v1,{expected}" not in headers["webhook-signature"].split():
            self.refused += 1
            return 401
        subject = json.loads(body)["data"]["subject"]
        self.arrived.setdefault(subject.get("node") or "", time.time())
        return 204


@dataclass(frozen=True, slots=True)
class Installation:
    """The processes by role, Kafka and the database, and the settings of all (``environment``)."""

    brokers: kafka.KafkaCluster
    database: timescale.Timescale
    dsn: str
    home: Path
    environment: dict[str, str]
    receiver: Receiver
    processes: dict[str, Process] = field(default_factory=dict)

    @property
    def bootstrap(self) -> str:
        """Comma-separated host:port of every broker."""
        return self.brokers.bootstrap

    def start(self, name: str, *command: str, **settings: str) -> None:
        """Start a process of slowrank under a name, with settings of its own."""
        self.processes[name] = Process.spawn(
            [*SLOWRANK, *command], log=self.home / f"{name}.log", env=self.environment | settings
        )

    def wait_ready(self, workers: int) -> None:
        """Wait until so many workers of each role write their health. Raises ``TimeoutError``."""
        deadline = time.monotonic() + _READY_SECONDS
        while any(len(self.alive(role)) < workers for role in ("detect", "sink")):
            if time.monotonic() > deadline:
                log = (self.home / "streams.log").read_text()[-2000:]
                raise TimeoutError(f"the stream workers did not start: {log}")
            time.sleep(0.2)

    def alive(self, role: str) -> list[int]:
        """Return the pids of the stream workers of a role that have written their health."""
        pids = (int(file.stem.rpartition("-")[2]) for file in self.home.glob(f"**/streams-{role}-*.json"))
        return [pid for pid in pids if Process.of(pid).alive()]

    @property
    def hosts(self) -> list[str]:
        """Names of the processes that supervise stream workers, as one on each host does."""
        return [name for name in self.processes if name.startswith(_HOST)]

    def add_host(self) -> None:
        """Start stream workers as on another host, with folders of their own, and wait for them."""
        self.restart_host(f"{_HOST}-{len(self.hosts) + 1}" if self.hosts else _HOST)

    def restart_host(self, name: str) -> None:
        """Stop the stream workers of a host, if there are any, and start them."""
        others = len(self.hosts) - (name in self.processes)
        if name in self.processes:
            self.processes[name].stop(seconds=_STOP_SECONDS)
        folder = self.home if name == _HOST else self.home / name
        folder.mkdir(exist_ok=True)
        self.start(name, "streams", "run", SLOWRANK_STREAMS_RUNTIME_DIR=str(folder))
        self.wait_ready(others + 1)

    def pids(self) -> dict[str, int]:
        """Return the pids by role: stream workers of the first host apart, all else with its descendants."""
        found = {name: process.pid for name, process in self.processes.items() if name not in self.hosts}
        workers = [child.pid for child in self.processes[_HOST].children()]
        found |= {_role(pid): pid for pid in workers if _role(pid)}
        return found | {"kafka": self.brokers.process(1).pid, "database": self.database.process.pid}


def _role(pid: int) -> str:
    words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    return words[words.index("--role") + 1] if "--role" in words else ""


@contextmanager
def installed(home: Path, partitions: int, brokers: int = 1, **settings: str) -> Iterator[Installation]:
    """Start Kafka of 1 or 3 brokers, TimescaleDB, the stream workers, API, notifier and a receiver.

    ``settings`` are variables of the environment of every process of slowrank.
    """
    receiver = Receiver()
    with (
        kafka.KafkaCluster(brokers=brokers, jvm=_JVM) as cluster,
        timescale.Timescale() as database,
        _served(receiver),
    ):
        dsn = database.create_database("capacity")
        environment = _environment(home, cluster.bootstrap, dsn, partitions, receiver.port)
        environment |= {"SLOWRANK_TOPIC_REPLICATION": str(brokers)} | settings
        for command in (["topics", "create"], ["migrate"]):
            subprocess.run([*SLOWRANK, *command], env=environment, check=True, capture_output=True)
        _register(dsn, receiver)
        made = Installation(cluster, database, dsn, home, environment, receiver)
        try:
            made.add_host()
            made.start("api", "api", "run", "--port", str(free_ports(1)[0]))
            made.start("notifier", "notifier", "run")
            yield made
        finally:
            for process in made.processes.values():
                process.stop(seconds=30)


def _environment(home: Path, bootstrap: str, dsn: str, partitions: int, port: int) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("SLOWRANK_")}
    return inherited | {
        "SLOWRANK_KAFKA_BOOTSTRAP": bootstrap,
        "SLOWRANK_DATABASE_URL": dsn,
        "SLOWRANK_TOPIC_PARTITIONS": str(partitions),
        "SLOWRANK_STREAMS_RUNTIME_DIR": str(home),
        "SLOWRANK_WEBHOOK_ALLOW_HTTP": '["127.0.0.1"]',
        "SLOWRANK_WEBHOOK_ALLOW_PRIVATE": '["127.0.0.0/8"]',
        "SLOWRANK_WEBHOOK_ALLOW_PORTS": f"[{port}]",
        "SLOWRANK_NOTIFIER_METRICS_PORT": "0",
        # One core for each worker and one thread for what numpy computes in it.
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }


def _register(dsn: str, receiver: Receiver) -> None:
    now = datetime.now(UTC)
    webhook = Webhook(
        id="whk_capacity",
        name="capacity",
        url=f"http://127.0.0.1:{receiver.port}/hook",
        kinds=(XID, "xid"),
        created_by="benchmark",
        created_at=now,
        updated_at=now,
    )
    with connect(dsn) as conn:
        webhooks.create(conn, webhook, receiver.secret)


@contextmanager
def _served(receiver: Receiver) -> Iterator[None]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(receiver.take(body, {k.lower(): v for k, v in self.headers.items()}))
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing."""

    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as receiver.port:
        yield
