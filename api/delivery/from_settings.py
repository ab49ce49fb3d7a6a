"""Builds the notifier and its parts from the settings."""

import ssl
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from prometheus_client import CollectorRegistry
from psycopg import OperationalError, ProgrammingError
from psycopg.conninfo import conninfo_to_dict
from psycopg_pool import ConnectionPool

from api.delivery import webhook_health
from api.delivery.mail_client import MailClient, MailServer
from api.delivery.notifier import Limits, Notifier
from api.delivery.recipients import Recipients
from api.delivery.webhook_client import WebhookClient, tls_context
from api.metrics import NotifierMetrics, WebhookGauges
from api.security.ssrf import Policy
from slowrank.settings import Settings
from store.findings import webhooks


def notifier_of(
    settings: Settings, pool: ConnectionPool[Any], registry: CollectorRegistry, *, instance: str
) -> Notifier:
    """Return a notifier that registers its metrics and the health of the endpoints in ``registry``."""
    registry.register(WebhookGauges(lambda: _failing(pool), OperationalError))
    return Notifier(
        pool=pool,
        client=webhook_client_of(settings),
        mail=mail_client_of(settings),
        metrics=NotifierMetrics(registry),
        public_url=settings.public_url,
        instance=instance,
        limits=limits_of(settings),
        finding_config=replace(webhook_health.CONFIG, runbooks=settings.runbooks()),
    )


def policy_of(settings: Settings) -> Policy:
    """Return the destinations webhooks may have; never slowrank's own Kafka and database."""
    return Policy.of(
        allow_http=settings.webhook_allow_http,
        allow_private=settings.webhook_allow_private,
        extra_ports=settings.webhook_allow_ports,
        own_servers=_own_servers(settings),
    )


def webhook_client_of(settings: Settings) -> WebhookClient:
    """Return a client that trusts the system's certificate authorities and those of ``webhook_ca_file``."""
    return WebhookClient(policy_of(settings), _tls(settings))


def mail_client_of(settings: Settings) -> MailClient | None:
    """Return a client of the mail server, which trusts the same authorities; None without one."""
    recipients = recipients_of(settings)
    if recipients is None or settings.smtp_host is None or settings.smtp_from is None:
        return None
    server = MailServer(
        host=settings.smtp_host,
        port=settings.smtp_port,
        sender=settings.smtp_from,
        security=settings.smtp_security,
        user=settings.smtp_user,
        password=settings.smtp_login_password(),
    )
    return MailClient(server, recipients, _tls(settings))


def recipients_of(settings: Settings) -> Recipients | None:
    """Return who may get mail; None where there is no mail server."""
    if settings.smtp_host is None or settings.smtp_from is None:
        return None
    return Recipients.of(settings.smtp_recipients, settings.smtp_from)


def _tls(settings: Settings) -> ssl.SSLContext:
    tls = tls_context()
    if settings.webhook_ca_file is not None:
        tls.load_verify_locations(settings.webhook_ca_file)
    return tls


def limits_of(settings: Settings) -> Limits:
    """Return the notifier's concurrency, lease and poll interval."""
    return Limits(
        concurrency=settings.notifier_concurrency,
        lease_seconds=settings.notifier_lease_seconds,
        poll_seconds=settings.notifier_poll_seconds,
    )


def _failing(pool: ConnectionPool[Any]) -> Mapping[str, bool]:
    # 2 s: a scrape must not wait for an absent database.
    with pool.connection(timeout=2) as conn:
        return webhooks.failing_by_id(conn)


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
