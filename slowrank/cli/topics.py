"""``slowrank topics``: the Kafka topics, made once by the operator."""

from typing import TYPE_CHECKING, Any

import typer

from slowrank.cli.remote import fail

if TYPE_CHECKING:
    from slowrank.settings import Settings

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Create and describe the Kafka topics.")


@app.command()
def create() -> None:
    """Create the topics that are missing; those that exist stay as they are."""
    from kafka.admin import NewTopic
    from kafka.errors import KafkaError, TopicAlreadyExistsError

    from slowrank.cli.config import load_settings
    from slowrank.telemetry.topics import TOPICS, topic_name

    settings = load_settings()
    admin = _admin(settings)
    try:
        existing = set(admin.list_topics())
        for spec in TOPICS:
            name = topic_name(spec.name, settings.topic_prefix)
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
    except KafkaError as error:
        fail(f"Kafka refused: {error}")
    finally:
        admin.close()


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
