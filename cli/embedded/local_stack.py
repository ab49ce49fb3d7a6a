"""Everything in one process: embedded database, detection, HTTP API, notifier and this host's own telemetry.

``slowrank up`` and ``slowrank demo`` run it.
"""

import asyncio
import logging
import os
import platform
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import psycopg
from psycopg_pool import ConnectionPool
from pydantic import SecretStr

from api.app import create_app
from api.delivery.from_settings import notifier_of
from api.delivery.notifier import Notifier
from api.foreign.settling import settling
from api.http.connections import server
from api.pages.breakable import Breakable
from api.security.auth import SCOPES
from api.security.links import finding_link
from cli.admin.private_file import set_aside, write_private
from cli.embedded.local_sink import LocalSink
from cli.embedded.postgres import database
from cli.remote.client import read_text
from cli.run import backtests
from exporters.collector import Instant
from exporters.exporter import Exporter
from exporters.registry import collectors
from exporters.service import Schedule, identity
from exporters.spool import SpoolStats
from slowrank.settings import Settings
from store.access import keys, sessions
from store.access.link_key import link_key
from store.migrate import migrate
from store.pool import open_pool
from streams.config.settings import Tuning
from streams.runtime.monitoring.job_metrics import JobMetrics
from streams.runtime.monitoring.snapshot_counts import SnapshotCounts
from streams.runtime.private_folder import Unprepared, make_private
from streams.runtime.snapshots.identity import identity as identity_of
from streams.runtime.snapshots.snapshot_folder import SnapshotFolder

log = logging.getLogger(__name__)

# Limit on the start of the HTTP server. Chosen: it takes under a second on an idle machine.
START_SECONDS = 20.0
# Free space below which a full disk is near. Chosen: half of what the write-ahead log may grow by.
MIN_FREE_BYTES = 512 << 20
# Period at which the sink advances time. Chosen: the interval of the exporters.
TICK_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class StackConfig:
    """Data ``folder``, API ``port`` (0 = any free one), and whether the data is ``throwaway``.

    ``breakable`` is the simulated cluster of a demo; log lines and the database name its connections after
    ``command``.
    """

    folder: Path
    port: int
    throwaway: bool = False
    breakable: Breakable | None = None
    command: str = "slowrank up"


@dataclass(frozen=True, slots=True)
class LocalStack:
    """A running stack: the address of its API, its database, and the sink that takes records.

    ``embedded_dsn`` is empty where the operator's own database is used.
    """

    url: str
    settings: Settings
    pool: ConnectionPool[psycopg.Connection]
    sink: LocalSink
    embedded_dsn: str

    def link(self, finding_id: str) -> str:
        """Return an address that opens one finding in a browser, read-only, until the link expires."""
        with self.pool.connection() as conn:
            key = link_key(conn)
        return finding_link(self.url, finding_id, key=key, at=datetime.now(UTC))

    def sign_in_link(self, token: str, path: str = "/") -> str:
        """Return an address that signs one browser in with an API key, once, and leads to ``path``."""
        key_id = token.split("_")[1]
        with self.pool.connection() as conn:
            once = sessions.create(conn, key_id, "sign_in", datetime.now(UTC))
        return f"{self.url}/sign-in/{once}?{urlencode({'next': path})}"

    def new_key(self, name: str) -> str:
        """Create an API key with all scopes; return its token."""
        key_id, token, digest = keys.generate()
        key = keys.ApiKey(
            id=key_id,
            name=name,
            sha256=digest,
            scopes=tuple(SCOPES),
            created_by="local",
            created_at=datetime.now(UTC),
        )
        with self.pool.connection() as conn:
            keys.create(conn, key)
        return token


def enough_space(folder: Path) -> str:
    """Return how much space is left for ``folder``. Raises ``OSError`` below ``MIN_FREE_BYTES``."""
    free = shutil.disk_usage(folder).free
    shown = f"{free / 2**20:,.0f} MiB are free in {folder}"
    if free < MIN_FREE_BYTES:
        raise OSError(f"{shown}: the database stops when none are left; make room for at least 512 MiB")
    return shown


@contextmanager
def local_stack(config: StackConfig, settings: Settings, tuning: Tuning) -> Iterator[LocalStack]:
    """Start all parts in order and stop them in reverse order.

    Raises ``EmbeddedError`` (database) and ``OSError`` (port).
    """
    with ExitStack() as parts:
        # First: other parts need the address, and a port in use should fail before a database is started.
        listening = parts.enter_context(_bound(config.port))
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        external = _external_dsn(settings)
        dsn = external or parts.enter_context(database(config.folder, throwaway=config.throwaway))
        migrate(dsn)
        # Behind a proxy or a tunnel browsers use another address, which only the operator can give.
        public = settings.public_url if "public_url" in settings.model_fields_set else url
        settings = settings.model_copy(update={"database_url": SecretStr(dsn), "public_url": public})
        pool = parts.enter_context(open_pool(dsn, name=config.command))
        memory = settings.streams_job_memory_mib << 20
        tuning = tuning.with_runbooks(settings.runbooks())
        snapshots = _snapshots(config, settings, tuning)
        sink = LocalSink(pool, now=time.time, tuning=tuning, job_memory_bytes=memory, snapshots=snapshots)
        parts.enter_context(_ticking(sink))
        app = create_app(
            settings,
            pool,
            sink=sink,
            probes={"disk": lambda: enough_space(config.folder)},
            breakable=config.breakable,
            runs_backtests=True,
            one_process=True,
        )
        parts.enter_context(backtests.running(pool))
        parts.enter_context(settling(app.state.services))
        # On the API's /metrics: this process serves no other.
        registry, instance = app.state.services.registry, f"local-{os.getpid()}"
        registry.register(JobMetrics(lambda: sink.jobs))
        parts.enter_context(_serving(app, listening))
        parts.enter_context(_notifying(notifier_of(settings, pool, registry, instance=instance)))
        yield LocalStack(url, settings, pool, sink, embedded_dsn="" if external else dsn)


def _snapshots(config: StackConfig, settings: Settings, tuning: Tuning) -> SnapshotFolder | None:
    """Return the folder of the detectors' snapshots; None where data is thrown away or it cannot be used."""
    if config.throwaway or not settings.streams_snapshot_seconds:
        return None
    folder = config.folder / "snapshots"
    try:
        make_private(folder)
    except (OSError, Unprepared) as error:
        log.error("no snapshots in %s, a restart will begin anew: %s", folder, error)
        return None
    return SnapshotFolder(
        folder,
        identity=identity_of(tuning, settings.streams_job_memory_mib),
        counts=SnapshotCounts(),
        now=time.time,
    )


def _external_dsn(settings: Settings) -> str | None:
    """Return the URL of the operator's database, which takes precedence over the embedded one."""
    if settings.database_url is None and settings.database_url_file is None:
        return None
    return settings.dsn()


@contextmanager
def _bound(port: int) -> Iterator[socket.socket]:
    # The protocol is named because asyncio sets TCP_NODELAY only on sockets of IPPROTO_TCP. Without it the
    # last part of an answer waits for the client's delayed acknowledgement, 40 ms on Linux.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind(("127.0.0.1", port))
        except OSError as error:
            raise OSError(error.errno, f"{error.strerror}: 127.0.0.1:{port}") from error
        yield listening


@contextmanager
def _serving(app: Any, listening: socket.socket) -> Iterator[None]:
    serving = server(app, log_level="warning", timeout_graceful_shutdown=2)
    thread = threading.Thread(target=serving.run, kwargs={"sockets": [listening]}, name="api", daemon=True)
    thread.start()
    try:
        until = time.monotonic() + START_SECONDS
        while not serving.started and thread.is_alive() and time.monotonic() < until:
            time.sleep(0.02)
        yield
    finally:
        serving.should_exit = True
        thread.join(10)


def key_of(stack: LocalStack, key_file: Path) -> str:
    """Return the key in ``key_file`` if it is valid for this stack, else a new one, which is written there.

    An invalid key may belong to another installation: its file is renamed and kept.
    """
    held = read_text(key_file)
    with stack.pool.connection() as conn:
        if held and keys.verify(conn, held, datetime.now(UTC)) is not None:
            return held
    token = stack.new_key("slowrank up")
    if key_file.exists():
        log.warning("the key in %s is not valid for this API; renamed to %s", key_file, set_aside(key_file))
    write_private(key_file, token + "\n")
    return token


@contextmanager
def host_telemetry(stack: LocalStack, *, listen: Sequence[str], rack: str | None = None) -> Iterator[None]:
    """Send this host's telemetry to the sink once a second; ``listen``: addresses for step datagrams.

    ``rack`` is where the host stands unless the settings say so.

    Raises ``OSError`` when an address is in use.
    """
    settings = stack.settings
    node = settings.node or platform.node() or "localhost"
    who = identity(settings.cluster, node, time.time_ns())
    exporter = Exporter(
        replace(who, labels=({"rack": rack} if rack else {}) | settings.location_labels()),
        collectors(
            listen,
            settings.exporter_release_file,
            scrape=settings.scrape_urls(),
            nccl=settings.nccl_folders(),
            node=node,
        ),
    )
    schedule = Schedule(node, settings.exporter_interval_seconds)

    def tick(stop: threading.Event) -> None:
        while not stop.wait(max(0.0, schedule.next_after(time.monotonic()) - time.monotonic())):
            now = Instant(wall=time.time(), monotonic=time.monotonic())
            records = exporter.tick(now, SpoolStats())
            exporter.took(time.monotonic() - now.monotonic)
            stack.sink.accept(records)

    with closing(exporter), _running(tick, "exporter"):
        yield


@contextmanager
def _ticking(sink: LocalSink) -> Iterator[None]:
    """Call the sink's ``tick`` once a second, so that a cluster that stops sending is detected."""

    def tick(stop: threading.Event) -> None:
        while not stop.wait(TICK_SECONDS):
            sink.tick()

    with closing(sink), _running(tick, "sink"):
        yield


@contextmanager
def _running(loop: Callable[[threading.Event], None], name: str) -> Iterator[None]:
    """Run ``loop`` in a thread; its event is set at the end."""
    stop = threading.Event()
    thread = threading.Thread(target=loop, args=(stop,), name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(10)


@contextmanager
def _notifying(notifier: Notifier) -> Iterator[None]:
    loop, stop = asyncio.new_event_loop(), asyncio.Event()
    thread = threading.Thread(target=_deliver, args=(loop, notifier, stop), name="notifier", daemon=True)
    thread.start()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(stop.set)
        # Seconds: a delivery under way ends within 15 (slowrank.settings.WEBHOOK_ATTEMPT_SECONDS).
        thread.join(20)


def _deliver(loop: asyncio.AbstractEventLoop, notifier: Notifier, stop: asyncio.Event) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_until_complete(notifier.run(stop))
    finally:
        loop.close()
