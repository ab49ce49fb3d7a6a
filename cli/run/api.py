"""``slowrank api``: run the HTTP API; print its OpenAPI document."""

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from slowrank.cli.remote import fail

if TYPE_CHECKING:
    from api.ingest import Sink
    from slowrank.settings import Settings
    from slowrank.telemetry import BadRecord, Record
    from streams.sender import Sender

app = typer.Typer(help="Run the HTTP API.", no_args_is_help=True, add_completion=False)


@app.command()
def run(
    host: Annotated[str | None, typer.Option(help="Address to listen on; else SLOWRANK_API_HOST.")] = None,
    port: Annotated[int | None, typer.Option(help="Port; else SLOWRANK_API_PORT.")] = None,
) -> None:
    """Serve the API until stopped."""
    from api.app import create_app
    from api.connections import server
    from slowrank.cli.config import load_settings
    from store.pool import open_pool

    settings = load_settings()
    try:
        dsn = settings.dsn()
    except (ValueError, OSError) as error:
        fail(str(error))
    with open_pool(dsn, name="slowrank api") as pool, _sink(settings) as sink:
        serving = server(
            create_app(settings, pool, sink=sink, probes={"kafka": lambda: _kafka(settings)}),
            host=host or settings.api_host,
            port=settings.api_port if port is None else port,
            # Seconds: event streams never end by themselves, and a stop would wait for them for ever.
            timeout_graceful_shutdown=5,
        )
        with contextlib.suppress(KeyboardInterrupt):
            serving.run()
    if not serving.started:
        raise typer.Exit(3)


@app.command()
def openapi() -> None:
    """Print the OpenAPI document, as frozen in api/openapi.json."""
    from api.app import openapi_document

    typer.echo(json.dumps(openapi_document(), indent=1, sort_keys=True))


class KafkaSink:
    """Sends ingested records to their topics; has them acknowledged when it returns."""

    def __init__(self, sender: "Sender") -> None:
        self._sender = sender

    def accept(self, records: "Sequence[Record]") -> "Mapping[int, BadRecord]":
        """Send ``records``, refusing none. Raises ``SinkUnavailable`` while the brokers do not take them."""
        from api.ingest import SinkUnavailable
        from streams.sender import SendProblem

        try:
            self._sender.send(records)
        except SendProblem as error:
            raise SinkUnavailable(str(error)) from error
        return {}


@contextmanager
def _sink(settings: "Settings") -> "Iterator[Sink | None]":
    import importlib.util

    if importlib.util.find_spec("aiokafka") is None:
        typer.secho("no ingest over HTTP: it needs `pip install 'slowrank[streams]'`", err=True)
        yield None
        return
    from streams.sender import Sender

    with closing(Sender(settings.kafka_bootstrap, settings.topic_prefix)) as sender:
        yield KafkaSink(sender)


def _kafka(settings: "Settings") -> str:
    """Return which broker accepts connections. Raises ``OSError`` when none does."""
    import socket

    problem = OSError("no bootstrap server is set: SLOWRANK_KAFKA_BOOTSTRAP")
    for broker in settings.kafka_bootstrap.split(","):
        host, _, port = broker.strip().rpartition(":")
        try:
            with socket.create_connection((host, int(port)), timeout=1):
                return f"{broker.strip()} accepts connections"
        except ValueError:
            problem = OSError(f"{broker!r} is not host:port")
        except OSError as error:
            problem = OSError(f"{broker.strip()} does not answer: {error}")
    raise problem
