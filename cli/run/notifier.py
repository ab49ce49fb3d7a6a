"""``slowrank notifier``: run the process that delivers webhooks."""

from typing import TYPE_CHECKING

import typer

from cli.remote.client import fail

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from slowrank.settings import Settings

app = typer.Typer(
    help="Run the notifier, which delivers webhooks.", no_args_is_help=True, add_completion=False
)


@app.callback()
def _group() -> None:
    """Run the notifier, which delivers webhooks."""


@app.command()
def run() -> None:
    """Deliver findings to webhooks until stopped."""
    import asyncio
    import logging

    from cli.admin.config import load_settings

    settings = load_settings()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    # At INFO httpx logs complete URLs, whose path often is the receiver's secret.
    logging.getLogger("httpx").setLevel(logging.WARNING)
    try:
        dsn = settings.dsn()
    except (ValueError, OSError) as error:
        fail(str(error))
    asyncio.run(_serve(settings, dsn))


async def _serve(settings: "Settings", dsn: str) -> None:
    import asyncio
    import os
    import signal
    import socket

    from api.delivery.from_settings import notifier_of
    from api.metrics import new_registry
    from store.pool import open_pool

    registry = new_registry()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    _serve_metrics(settings, registry)
    with open_pool(dsn, name="slowrank notifier") as pool:
        instance = f"{socket.gethostname()}:{os.getpid()}"
        notifier = notifier_of(settings, pool, registry, instance=instance)
        typer.echo("delivering; stop with Ctrl-C", err=True)
        await notifier.run(stop)


def _serve_metrics(settings: "Settings", registry: "CollectorRegistry") -> None:
    from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

    from slowrank.page_server import PageServer

    host, port = settings.metrics_host, settings.notifier_metrics_port
    if not port:
        return
    try:
        PageServer(host, port, lambda _: generate_latest(registry), media_type=CONTENT_TYPE_LATEST)
    except OSError as error:
        fail(
            f"no /metrics on {host}:{port}: {error}. Is another notifier running here? Set "
            "SLOWRANK_NOTIFIER_METRICS_PORT to a free port, or to 0 for none."
        )
