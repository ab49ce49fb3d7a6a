"""``slowrank api``: run the HTTP API; print its OpenAPI document."""

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from cli.remote.client import fail

if TYPE_CHECKING:
    from api.ingest import Sink
    from slowrank.settings import Settings
    from slowrank.telemetry import BadRecord, Record
    from streams.runtime.kafka.record_producer import RecordProducer

app = typer.Typer(help="Run the HTTP API.", no_args_is_help=True, add_completion=False)


@app.command()
def run(
    host: Annotated[str | None, typer.Option(help="Address to listen on; else SLOWRANK_API_HOST.")] = None,
    port: Annotated[int | None, typer.Option(help="Port; else SLOWRANK_API_PORT.")] = None,
) -> None:
    """Serve the API until stopped."""
    from api.app import create_app
    from api.foreign.settling import settling
    from api.http.connections import server
    from cli.admin.config import load_settings
    from cli.run import backtests
    from store.pool import open_pool

    settings = load_settings()
    try:
        dsn = settings.dsn()
    except (ValueError, OSError) as error:
        fail(str(error))
    with open_pool(dsn, name="slowrank api") as pool, _sink(settings) as sink, backtests.running(pool):
        app = create_app(
            settings,
            pool,
            sink=sink,
            probes={"kafka": lambda: _kafka(settings)},
            runs_backtests=True,
        )
        serving = server(
            app,
            host=host or settings.api_host,
            port=settings.api_port if port is None else port,
            # Seconds: event streams have no end, and a stop would wait for them for ever.
            timeout_graceful_shutdown=5,
        )
        with contextlib.suppress(KeyboardInterrupt), settling(app.state.services):
            serving.run()
    if not serving.started:
        raise typer.Exit(3)


@app.command()
def openapi() -> None:
    """Print the OpenAPI document, as frozen in api/openapi.json."""
    from api.app import openapi_document

    typer.echo(json.dumps(openapi_document(), indent=1, sort_keys=True))


class KafkaSink:
    """Sends ingested records to their topics."""

    def __init__(self, sender: "RecordProducer") -> None:
        self._sender = sender

    def accept(self, records: "Sequence[Record]") -> "Mapping[int, BadRecord]":
        """Send ``records`` and wait for the acknowledgements; refuses none. Raises ``SinkUnavailable``."""
        from api.ingest import SinkUnavailable
        from streams.runtime.kafka.record_producer import SendProblem

        try:
            self._sender.send(records)
        except SendProblem as error:
            raise SinkUnavailable(str(error)) from error
        return {}


@contextmanager
def _sink(settings: "Settings") -> "Iterator[Sink | None]":
    import importlib.util

    if importlib.util.find_spec("aiokafka") is None:
        typer.secho(
            "no ingest over HTTP: aiokafka is missing. Run: pip install 'slowrank-server[streams]'", err=True
        )
        yield None
        return
    from streams.runtime.kafka.record_producer import RecordProducer

    with closing(RecordProducer(settings.kafka_bootstrap, settings.topic_prefix)) as sender:
        yield KafkaSink(sender)


def _kafka(settings: "Settings") -> str:
    """Return the broker that accepts connections. Raises ``OSError`` when none does."""
    import socket

    problem = OSError("no bootstrap server: set SLOWRANK_KAFKA_BOOTSTRAP")
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
