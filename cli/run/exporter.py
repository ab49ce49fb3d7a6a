"""``slowrank exporter``: collect this node's telemetry and send it to Kafka."""

import logging
import os
import platform
import signal
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from exporters.exporter import Exporter
    from exporters.spool import Spool
    from slowrank.settings import Settings

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Collect this node's telemetry.")

# Some three and a half hours of one node at one record a second (1.3 kB each).
MEMORY_BYTES = 16 * 2**20
# With the 10 s of Publisher.stop within the unit's TimeoutStopSec=20, before systemd kills.
DRAIN_SECONDS = 5.0
DRAIN_ONCE_SECONDS = 12.0

Cluster = Annotated[str | None, typer.Option(help="Cluster name [SLOWRANK_CLUSTER].")]
Node = Annotated[
    str | None, typer.Option(help="Node name [SLOWRANK_NODE, NODE_NAME, SLURMD_NODENAME, host].")
]
Listen = Annotated[
    str | None,
    typer.Option(
        help="Addresses for step times of training hooks: host:port and unix paths, comma-separated."
    ),
]
Scrape = Annotated[
    str | None,
    typer.Option(help="URLs of metrics to read too, such as dcgm-exporter's, comma-separated."),
]
Nccl = Annotated[str | None, typer.Option(help="Folders into which NCCL Inspector writes, comma-separated.")]


@app.command()
def run(
    kafka: Annotated[str | None, typer.Option(help="Bootstrap servers, host:port,…")] = None,
    once: Annotated[bool, typer.Option("--once", help="Send one tick, then exit.")] = False,
    interval: Annotated[float | None, typer.Option(min=0.05, help="Seconds between ticks.")] = None,
    listen: Listen = None,
    scrape: Scrape = None,
    nccl: Nccl = None,
    spool: Annotated[
        Path | None, typer.Option(help="Folder for records that the brokers have not acknowledged yet.")
    ] = None,
    cluster: Cluster = None,
    node: Node = None,
    metrics_port: Annotated[int, typer.Option(help="Port of /metrics on 127.0.0.1; 0 for none.")] = 0,
) -> None:
    """Collect once a second and send to Kafka until stopped."""
    from exporters.publisher import Publisher, kafka_producer

    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    logging.getLogger("exporters").setLevel(logging.INFO)
    # Several lines for each attempt to connect; the publisher says once what they mean and what to do.
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    settings = _settings(
        cluster=cluster,
        node=node,
        kafka_bootstrap=kafka,
        exporter_interval_seconds=interval,
        exporter_listen=listen,
        exporter_scrape=scrape,
        exporter_nccl=nccl,
        exporter_spool_dir=spool,
    )
    exporter = _exporter(settings)
    store = _spool(settings)
    connect = partial(
        kafka_producer,
        settings.kafka_bootstrap,
        f"slowrank-{_node(settings)}",
        linger_seconds=settings.exporter_linger_seconds,
    )
    publisher = Publisher(store, connect)
    publisher.start()
    server = _metrics_server(metrics_port, exporter, store, publisher)
    typer.echo(
        f"{_node(settings)} of cluster {settings.cluster} to Kafka at {settings.kafka_bootstrap}; "
        f"training hooks: {settings.exporter_listen or 'none'}"
    )
    try:
        if once:
            _tick_once(exporter, store, settings)
            sent = publisher.drain(DRAIN_ONCE_SECONDS)
        else:
            _tick_until_stopped(exporter, store, settings)
            sent = publisher.drain(DRAIN_SECONDS)
    finally:
        # First: it reads the spool, which is closed last.
        publisher.stop()
        exporter.close()
        if server is not None:
            server.close()
        left = store.stats()
        store.close()
    if not sent:
        fate = "those in memory are lost" if left.degraded else "they wait in the spool"
        typer.secho(
            f"{left.records} records were not acknowledged by {settings.kafka_bootstrap}; {fate}.", err=True
        )
        raise typer.Exit(1 if once else 0)


@app.command("once")
def print_once(
    listen: Listen = None,
    scrape: Scrape = None,
    cluster: Cluster = None,
    node: Node = None,
    seconds: Annotated[float, typer.Option(min=0.0, help="Time between the two readings.")] = 1.0,
) -> None:
    """Print the records of one tick as JSON lines; needs no Kafka."""
    import json

    from exporters.collector import Instant
    from exporters.spool import SpoolStats
    from slowrank.telemetry.rows import json_rows

    exporter = _exporter(
        _settings(cluster=cluster, node=node, exporter_listen=listen, exporter_scrape=scrape)
    )
    try:
        # Ratios and rates need a first reading as reference.
        exporter.tick(Instant(wall=time.time(), monotonic=time.monotonic()), SpoolStats())
        time.sleep(seconds)
        for record in exporter.tick(Instant(wall=time.time(), monotonic=time.monotonic()), SpoolStats()):
            for row in json_rows.rows(record):
                typer.echo(json.dumps(row))
    finally:
        exporter.close()


@app.command()
def release(
    minutes: Annotated[float, typer.Option(min=0.1, max=1440.0, help="Duration.")] = 10.0,
    end: Annotated[bool, typer.Option("--end", help="Read the GPUs again at once.")] = False,
) -> None:
    """Make this host's exporter close the GPUs, so that they can be reset or the driver unloaded."""
    file = _settings().exporter_release_file
    try:
        if end:
            file.unlink(missing_ok=True)
        else:
            file.parent.mkdir(parents=True, exist_ok=True)
            # Not through a link: the folder belongs to the exporter's user, and root writes here.
            opened = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o644)
            with os.fdopen(opened, "w") as text:
                text.write(f"{minutes * 60:.0f}\n")
    except OSError as error:
        raise _refused(
            f"cannot write {file}: {error}. Run this as root, or as the exporter's user with the same "
            "SLOWRANK_EXPORTER_RELEASE_FILE."
        ) from error
    if end:
        typer.echo("The exporter reads the GPUs again from its next tick on.")
        return
    typer.echo(
        f"The exporter lets go of the GPUs at its next tick, for {minutes:g} min or until "
        "`slowrank exporter release --end`. `fuser -v /dev/nvidia*` shows who still holds them."
    )


def _settings(**given: Any) -> "Settings":
    from cli.admin.config import load_settings

    # A flag that was not given must not come before the environment.
    return load_settings(**{name: value for name, value in given.items() if value is not None})


def _node(settings: "Settings") -> str:
    launcher = (os.environ.get(name) for name in ("NODE_NAME", "SLURMD_NODENAME"))
    return settings.node or next((name for name in launcher if name), platform.node())


def _exporter(settings: "Settings") -> "Exporter":
    from exporters.exporter import Exporter
    from exporters.registry import collectors
    from exporters.service import identity

    try:
        found = collectors(
            settings.listen_addresses(),
            settings.exporter_release_file,
            scrape=settings.scrape_urls(),
            nccl=settings.nccl_folders(),
            node=_node(settings),
        )
    except OSError as error:
        raise _refused(
            f"cannot listen for training hooks on {settings.exporter_listen}: {error}. Is another exporter "
            "running? Choose another address with --listen, and set SLOWRANK_EXPORTER in the jobs."
        ) from error
    who = identity(settings.cluster, _node(settings), time.time_ns())
    return Exporter(replace(who, labels=settings.location_labels()), found)


def _spool(settings: "Settings") -> "Spool":
    from exporters.disk_store import DiskStore
    from exporters.spool import MemoryStore, Spool, StoreFailed

    memory = MemoryStore(MEMORY_BYTES)
    try:
        return Spool(DiskStore(settings.exporter_spool_dir, settings.exporter_spool_max_bytes), memory)
    except StoreFailed as error:
        typer.secho(
            f"{error}. Records wait in memory only, at most {MEMORY_BYTES >> 20} MB of them; "
            "give a writable folder with --spool.",
            err=True,
        )
        return Spool(None, memory, degraded=str(error))


def _metrics_server(port: int, exporter: "Exporter", spool: "Spool", publisher: Any) -> Any:
    if not port:
        return None
    from exporters.metrics_page import serve

    def read() -> dict[str, float]:
        stats = spool.stats()
        return {
            **exporter.metrics(),
            **publisher.metrics(),
            "spool_bytes": stats.bytes,
            "spool_records": stats.records,
            "spool_dropped_total": stats.dropped_total,
            "spool_degraded": float(bool(stats.degraded)),
            **({} if stats.free_bytes is None else {"spool_free_bytes": stats.free_bytes}),
        }

    try:
        return serve(port, read)
    except OSError as error:
        raise _refused(
            f"cannot serve /metrics on port {port}: {error}. Choose another --metrics-port."
        ) from error


def _tick_once(exporter: "Exporter", spool: "Spool", settings: "Settings") -> None:
    from exporters import service

    service.once(exporter, spool, prefix=settings.topic_prefix)


def _tick_until_stopped(exporter: "Exporter", spool: "Spool", settings: "Settings") -> None:
    from exporters import service
    from exporters.systemd import notify_alive

    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    schedule = service.Schedule(_node(settings), settings.exporter_interval_seconds)
    ticked = partial(notify_alive, os.environ.get("NOTIFY_SOCKET"))
    service.run(exporter, spool, schedule, stop=stop, prefix=settings.topic_prefix, ticked=ticked)


def _refused(message: str) -> typer.Exit:
    typer.secho(message, err=True, fg="red")
    return typer.Exit(2)
