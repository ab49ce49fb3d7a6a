"""``slowrank up``: everything in one process with an embedded database, for a laptop or a small lab."""

import logging
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slowrank.cli.remote import config_dir, fail, read_text

if TYPE_CHECKING:
    from slowrank.cli.local_stack import LocalStack
    from streams.tuning import Tuning

HOUSEKEEPING_SECONDS = 3600.0


def up(
    data: Annotated[
        Path | None, typer.Option(help="Folder for the database; ~/.local/share/slowrank without it.")
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port of the API; 0 = any free one.")
    ] = None,
    listen: Annotated[
        str | None, typer.Option(help="Where training hooks send: host:port and unix paths, comma-separated.")
    ] = None,
) -> None:
    """Run the API, the detectors, the notifier and this host's exporter until stopped."""
    from slowrank.cli.config import load_settings, load_tuning
    from slowrank.cli.embedded import EmbeddedError
    from slowrank.cli.local_stack import Wanted, host_telemetry, local_stack

    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    settings = load_settings()
    tuning = load_tuning(settings)
    wanted = Wanted(data or data_dir(), settings.api_port if port is None else port)
    addresses = [a.strip() for a in (listen or settings.exporter_listen).split(",") if a.strip()]
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        with (
            local_stack(wanted, settings, tuning) as stack,
            host_telemetry(stack, listen=addresses),
            _reachable(stack, config_dir()),
        ):
            _tell(stack, wanted.folder, addresses)
            _until(stop, stack, tuning)
    except EmbeddedError as error:
        fail(str(error))
    except OSError as error:
        next_step = "Choose other addresses with --port and --listen."
        if error.filename is not None:
            next_step = "May this user write there? --data and XDG_CONFIG_HOME choose other folders."
        fail(f"cannot start: {error}. {next_step}")
    typer.echo("stopped")


@contextmanager
def _reachable(stack: "LocalStack", folder: Path) -> Iterator[None]:
    """Write to ``folder`` where the other commands find this stack: its address, a key, its own database."""
    from slowrank.cli.local_stack import key_of
    from slowrank.cli.private_file import set_aside, write_private

    key_of(stack, folder / "key")
    url = folder / "url"
    if url.exists() and not read_text(url).startswith("http://127.0.0.1:"):
        logging.warning("%s is not the address of a `slowrank up`; it is kept as %s", url, set_aside(url))
    write_private(url, stack.url + "\n")
    database = folder / "database"
    dsn = stack.embedded_dsn
    if dsn:
        write_private(database, dsn + "\n")
    try:
        yield
    finally:
        # Another `up` may have written its own meanwhile.
        if dsn and read_text(database) == dsn:
            database.unlink()


def data_dir() -> Path:
    """Return where ``up`` keeps its data when nobody says: under the home, for root under /var/lib."""
    if os.geteuid() == 0:
        return Path("/var/lib/slowrank")
    base = os.environ.get("XDG_DATA_HOME")
    return (Path(base) if base else Path.home() / ".local/share") / "slowrank"


def _tell(stack: "LocalStack", folder: Path, addresses: list[str]) -> None:
    typer.echo(f"slowrank is up: {stack.url}")
    typer.echo(f"  key        {config_dir() / 'key'} (the slowrank commands find it by themselves)")
    typer.echo(f"  data       {folder}")
    typer.echo(f"  step times {', '.join(addresses) or 'not listening'} (`from slowrank import StepTimer`)")
    typer.echo(f"  telemetry  POST {stack.url}/api/v1/ingest/samples")
    typer.echo("Try: slowrank findings list. Ctrl-C stops it.")


def _until(stop: threading.Event, stack: "LocalStack", tuning: "Tuning") -> None:
    """Wait for the end, and meanwhile remove what is older than the settings keep."""
    from store import retention

    while True:
        with stack.pool.connection() as conn:
            now = datetime.now(UTC)
            # In a fleet the first two are the sink worker's work, the last is the notifier's.
            days, pace_days = stack.settings.retention_rollup_days, stack.settings.retention_pace_days
            retention.run(conn, now=now, days=days, pace_days=pace_days, config_of=tuning.finding)
            retention.prune_findings(conn, now=now, days=stack.settings.retention_suspicion_days)
            retention.prune_deliveries(conn, now=now)
        if stop.wait(HOUSEKEEPING_SECONDS):
            return
