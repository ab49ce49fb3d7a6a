"""``slowrank topics``: the Kafka topics, made once by the operator."""

import time
from typing import TYPE_CHECKING, Any

import typer

from slowrank.cli.remote import fail

if TYPE_CHECKING:
    from slowrank.settings import Settings

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Create and describe the Kafka topics.")

_KNOWN_SECONDS = 15.0
"""How long a broker may take to hear of a topic from the controller."""


@app.command()
def create() -> None:
    """Create the topics that are missing; those that exist stay as they are. Ends when all can be used."""
    from kafka.admin import NewTopic
    from kafka.errors import KafkaError, TopicAlreadyExistsError

    from slowrank.cli.config import load_settings
    from slowrank.telemetry.topics import TOPICS, topic_name

    settings = load_settings()
    admin = _admin(settings)
    specs = {topic_name(spec.name, settings.topic_prefix): spec for spec in TOPICS}
    try:
        existing = set(admin.list_topics())
        for name, spec in specs.items():
            if name in existing:
                typer.echo(f"exists   {name}")
                continue
            topic = NewTopic(
                name,
                num_partitions=settings.topic_partitions,
                replication_factor=settings.topic_replication,
                topic_configs=spec.configs,
            )
            try:
                # One by one: a topic that somebody makes meanwhile must not take the others with it.
                admin.create_topics([topic])
                typer.echo(f"created  {name}  ({settings.topic_partitions} partitions)")
            except TopicAlreadyExistsError:
                typer.echo(f"exists   {name}")
        unknown = _unknown(admin, set(specs))
    except KafkaError as error:
        fail(f"Kafka refused: {error}")
    finally:
        admin.close()
    if unknown:
        fail(
            f"{settings.kafka_bootstrap} does not know {', '.join(sorted(unknown))} {_KNOWN_SECONDS:.0f} s "
            "after the controller. See the broker's log, and `slowrank topics describe`."
        )


@app.command()
def describe() -> None:
    """Show the topics: partitions, replicas, and what is missing."""
    from kafka.errors import KafkaError

    from slowrank.cli.config import load_settings
    from slowrank.telemetry.topics import TOPICS, topic_name

    settings = load_settings()
    admin = _admin(settings)
    try:
        existing = set(admin.list_topics())
        names = {topic_name(spec.name, settings.topic_prefix): spec for spec in TOPICS}
        found = {t["name"]: t for t in admin.describe_topics([n for n in names if n in existing])}
    except KafkaError as error:
        fail(f"Kafka refused: {error}")
    finally:
        admin.close()
    for name, spec in names.items():
        typer.echo(_line(name, spec.key, found.get(name)))
    if len(found) < len(names):
        typer.secho("missing topics: `slowrank topics create`", err=True)
        raise typer.Exit(1)


def _unknown(admin: Any, names: set[str]) -> set[str]:
    """Wait until the broker tells of ``names``, and return those that it does not tell of in time.

    The controller answers a creation before the brokers have heard of it.
    """
    deadline = time.monotonic() + _KNOWN_SECONDS
    while (unknown := names - set(admin.list_topics())) and time.monotonic() < deadline:
        time.sleep(0.1)
    return unknown


def _line(name: str, key: str, topic: dict[str, Any] | None) -> str:
    if topic is None:
        return f"{name:<24} missing"
    partitions = topic["partitions"]
    replicas = min((len(p.get("replica_nodes") or p.get("replicas") or ()) for p in partitions), default=0)
    return f"{name:<24} {len(partitions)} partitions  {replicas} replicas  key {key or '-'}"


def _admin(settings: "Settings") -> Any:
    from kafka.admin import KafkaAdminClient
    from kafka.errors import KafkaError

    try:
        return KafkaAdminClient(
            bootstrap_servers=settings.kafka_bootstrap, bootstrap_timeout_ms=5_000, request_timeout_ms=15_000
        )
    except KafkaError as error:
        fail(
            f"no Kafka at {settings.kafka_bootstrap} ({error}). "
            "Set SLOWRANK_KAFKA_BOOTSTRAP, or run `make services` or `docker compose up`."
        )
