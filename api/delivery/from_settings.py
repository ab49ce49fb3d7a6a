"""Webhook delivery as the operator's settings make it: where it may go, by what, how much at once."""

from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry
from psycopg import OperationalError, ProgrammingError
from psycopg.conninfo import conninfo_to_dict
from psycopg_pool import ConnectionPool

from api.metrics import NotifierMetrics, WebhookGauges
from api.notifier import Limits, Notifier
from api.sender import Sender, tls_context
from api.ssrf import Policy
from slowrank.settings import Settings
from store import webhooks


def notifier_of(
    settings: Settings, pool: ConnectionPool[Any], registry: CollectorRegistry, *, instance: str
) -> Notifier:
    """Return a notifier whose metrics are in ``registry``, with what each endpoint's health is by now."""
    registry.register(WebhookGauges(lambda: _failing(pool), OperationalError))
    return Notifier(
        pool=pool,
        sender=sender_of(settings),
        metrics=NotifierMetrics(registry),
        public_url=settings.public_url,
        instance=instance,
        limits=limits_of(settings),
    )


def policy_of(settings: Settings) -> Policy:
    """Return where webhooks may go; our own Kafka and database are never among it."""
    return Policy.of(
        allow_http=settings.webhook_allow_http,
        allow_private=settings.webhook_allow_private,
        extra_ports=settings.webhook_allow_ports,
        own_servers=_own_servers(settings),
    )


def sender_of(settings: Settings) -> Sender:
    """Return a sender that trusts the system's authorities and those of ``webhook_ca_file``."""
    tls = tls_context()
    if settings.webhook_ca_file is not None:
        tls.load_verify_locations(settings.webhook_ca_file)
    return Sender(policy_of(settings), tls)


def limits_of(settings: Settings) -> Limits:
    """Return how much the notifier does at once, for how long, and how often it looks."""
    return Limits(
        concurrency=settings.notifier_concurrency,
        lease_seconds=settings.notifier_lease_seconds,
        poll_seconds=settings.notifier_poll_seconds,
    )


def _failing(pool: ConnectionPool[Any]) -> Mapping[str, bool]:
    # Seconds: a scrape must not wait for an absent database.
    with pool.connection(timeout=2) as conn:
        return webhooks.failing(conn)


def _own_servers(settings: Settings) -> Iterator[tuple[str, int]]:
    for broker in settings.kafka_bootstrap.split(","):
        host, _, port = broker.strip().rpartition(":")
        if host and port.isdigit():
            yield host, int(port)
    try:
        database = conninfo_to_dict(settings.dsn())
    except (ValueError, ProgrammingError):
        return
    for host in str(database.get("host") or "").split(","):
        yield host, int(str(database.get("port") or 5432).split(",")[0])
