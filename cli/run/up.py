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

from cli.remote.client import config_dir, fail, read_text

if TYPE_CHECKING:
    from cli.embedded.local_stack import LocalStack
    from streams.config.settings import Tuning

# Period at which expired rows are removed. Chosen: short against retention times of days.
HOUSEKEEPING_SECONDS = 3600.0


def up(
    data: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the database; by default ~/.local/share/slowrank, as root /var/lib/slowrank."
        ),
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port of the API; 0 = any free one.")
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            help="Addresses for step times: host:port and unix paths, comma-separated; '' for none."
        ),
    ] = None,
) -> None:
    """Run the API, the detectors, the notifier and this host's exporter until stopped."""
    from cli.admin.config import load_settings, load_tuning
    from cli.embedded.database_folder import EmbeddedError
    from cli.embedded.local_stack import StackConfig, host_telemetry, local_stack

    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    settings = load_settings(**({} if listen is None else {"exporter_listen": listen}))
    tuning = load_tuning(settings)
    config = StackConfig(data or data_dir(), settings.api_port if port is None else port)
    addresses = settings.listen_addresses()
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        with (
            local_stack(config, settings, tuning) as stack,
            host_telemetry(stack, listen=addresses),
            _reachable(stack, config_dir()) as key,
        ):
            _print_addresses(stack, config.folder, addresses, stack.sign_in_link(key))
            _run_retention(stop, stack, tuning)
    except EmbeddedError as error:
        fail(str(error))
    except OSError as error:
        next_step = (
            "Is another `slowrank up` running? Stop it, or choose other addresses with --port and --listen."
        )
        if error.filename is not None:
            next_step = "Check the permissions, or choose other folders with --data and XDG_CONFIG_HOME."
        fail(f"cannot start: {error}. {next_step}")
    typer.echo("stopped")


@contextmanager
def _reachable(stack: "LocalStack", folder: Path) -> Iterator[str]:
    """Write address, key and database of this stack to ``folder``, where other commands read them.

    Yields the key.
    """
    from cli.admin.private_file import set_aside, write_private
    from cli.embedded.local_stack import key_of

    key = key_of(stack, folder / "key")
    url = folder / "url"
    if url.exists() and not read_text(url).startswith("http://127.0.0.1:"):
        logging.warning("%s is not the address of a `slowrank up`; renamed to %s", url, set_aside(url))
    write_private(url, stack.url + "\n")
    database = folder / "database"
    dsn = stack.embedded_dsn
    if dsn:
        write_private(database, dsn + "\n")
    try:
        yield key
    finally:
        # Another `up` may have written its address meanwhile.
        if dsn and read_text(database) == dsn:
            database.unlink()


def data_dir() -> Path:
    """Return the default data folder of ``up``: in the home directory, for root in /var/lib."""
    if os.geteuid() == 0:
        return Path("/var/lib/slowrank")
    base = os.environ.get("XDG_DATA_HOME")
    return (Path(base) if base else Path.home() / ".local/share") / "slowrank"


def _print_addresses(stack: "LocalStack", folder: Path, addresses: list[str], link: str) -> None:
    typer.echo(f"slowrank is up: {stack.url}")
    typer.echo(f"  pages      {link} (signs in once, within ten minutes)")
    typer.echo(f"  key        {config_dir() / 'key'} (slowrank commands read it)")
    typer.echo(f"  data       {folder}")
    typer.echo(f"  step times {', '.join(addresses) or 'not listening'} (`from slowrank import StepTimer`)")
    typer.echo(f"  telemetry  POST {stack.url}/api/v1/ingest/samples")
    typer.echo("Try: slowrank findings list. Ctrl-C stops it.")


def _run_retention(stop: threading.Event, stack: "LocalStack", tuning: "Tuning") -> None:
    """Remove expired rows every hour until stopped; an absent database waits for the next time."""
    import psycopg

    from store import retention

    while True:
        try:
            with stack.pool.connection() as conn:
                now = datetime.now(UTC)
                retention.prune_as_sink(conn, stack.settings, now=now, config_of=tuning.finding)
                retention.prune_as_notifier(conn, now=now)
        except psycopg.OperationalError as error:
            logging.warning("expired rows are removed later: %s", error)
        if stop.wait(HOUSEKEEPING_SECONDS):
            return
