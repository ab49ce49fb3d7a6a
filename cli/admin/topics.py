"""``slowrank topics``: create and describe the Kafka topics."""

import time
from typing import TYPE_CHECKING, Any

import typer

from cli.remote.client import fail

if TYPE_CHECKING:
    from slowrank.settings import Settings

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Create and describe the Kafka topics.")

# Time for a new topic's metadata to reach the brokers from the controller. Chosen: usually under 1 s.
_PROPAGATION_SECONDS = 15.0


@app.command()
def create() -> None:
    """Create the missing topics and wait until all can be used; existing ones are not changed."""
    from kafka.admin import NewTopic
    from kafka.errors import KafkaError, TopicAlreadyExistsError

    from cli.admin.config import load_settings
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
                # One by one: a topic that was created meanwhile must not fail the others.
                admin.create_topics([topic])
                typer.echo(f"created  {name}  ({settings.topic_partitions} partitions)")
            except TopicAlreadyExistsError:
                typer.echo(f"exists   {name}")
        missing = _missing_after_wait(admin, set(specs))
    except KafkaError as error:
        fail(f"Kafka refused: {error}")
    finally:
        admin.close()
    if missing:
        fail(
            f"{settings.kafka_bootstrap} has no metadata of {', '.join(sorted(missing))} "
            f"{_PROPAGATION_SECONDS:.0f} s after the controller. "
            "See the broker's log, and `slowrank topics describe`."
        )


@app.command()
def describe() -> None:
    """Show the topics: partitions, replicas, and missing topics."""
    from kafka.errors import KafkaError

    from cli.admin.config import load_settings
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
        typer.secho("topics are missing: run `slowrank topics create`", err=True)
        raise typer.Exit(1)


def _missing_after_wait(admin: Any, names: set[str]) -> set[str]:
    """Wait until the broker lists ``names``; return those that it does not list in time.

    The controller acknowledges a creation before the brokers have its metadata.
    """
    deadline = time.monotonic() + _PROPAGATION_SECONDS
    while (missing := names - set(admin.list_topics())) and time.monotonic() < deadline:
        time.sleep(0.1)
    return missing


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
