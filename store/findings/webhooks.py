"""Stores webhook endpoints, and their signing secrets in a table that only the notifier may read."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, LiteralString

from psycopg import Connection
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from alerts.route import Route
from slowrank.telemetry.records import Severity
from store.findings.silences import matchers
from store.text import storable, storable_json

# Failed attempts in a row. Chosen: with the first pauses of the retry schedule (2 and 10 s) a dead receiver
# is reported some 12 s after its first failure, and a restart that takes less is not.
FAILING_AFTER = 3

# What an operator sets, in the order of ``_set_values``.
_SET: LiteralString = (
    "name, url, format, events, min_severity, kinds, clusters, matchers, wait_seconds, unless_acknowledged, "
    "interval_seconds, repeat_seconds, template, enabled"
)
_SET_VALUES: LiteralString = ", ".join(["%s"] * 14)
_SELECT: LiteralString = (
    f"SELECT id, {_SET}, failures, failing_since, disabled_reason, created_by, created_at, updated_at "
    "FROM webhooks "
)
# Columns of the route beside its matchers, in the order of the table's columns.
_TIMES = ("wait_seconds", "unless_acknowledged", "interval_seconds", "repeat_seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    """An endpoint; no ``clusters`` means every cluster, no ``kinds`` every kind.

    ``failures`` counts failed attempts, of any delivery, since the last success; ``failing_since`` is the
    time of the first. No ``events`` means ``alerts.notify.DEFAULT_EVENTS``; ``kinds`` takes kinds and
    families (``straggler``). ``template`` is the body of the format of that name, a JSON value.
    """

    id: str
    name: str
    url: str
    format: str = "standard"
    events: tuple[str, ...] = ()
    min_severity: Severity = "info"
    kinds: tuple[str, ...] = ()
    clusters: tuple[str, ...] = ()
    route: Route = field(default_factory=Route)
    template: Any = None
    enabled: bool = True
    failures: int = 0
    failing_since: datetime | None = None
    disabled_reason: str = ""
    created_by: str
    created_at: datetime
    updated_at: datetime

    @property
    def failing(self) -> bool:
        """Whether deliveries fail; true as well where the receiver disabled the endpoint (410)."""
        return self.failures >= FAILING_AFTER and (self.enabled or self.disabled_reason != "")


def create(conn: Connection[Any], webhook: Webhook, secret: str) -> None:
    """Store a new endpoint with its signing secret."""
    with conn.transaction():
        conn.execute(
            f"INSERT INTO webhooks (id, {_SET}, created_by, created_at, updated_at) "
            f"VALUES (%s, {_SET_VALUES}, %s, %s, %s)",
            (
                webhook.id,
                *_set_values(webhook),
                storable(webhook.created_by),
                webhook.created_at,
                webhook.updated_at,
            ),
        )
        _add_secret(conn, webhook.id, secret, webhook.created_at)


def get(conn: Connection[Any], webhook_id: str) -> Webhook | None:
    """Return one endpoint."""
    found = _select(conn, "WHERE id = %s", (storable(webhook_id),))
    return found[0] if found else None


def by_id(conn: Connection[Any], ids: Iterable[str]) -> dict[str, Webhook]:
    """Return the endpoints with these ids."""
    return {webhook.id: webhook for webhook in _select(conn, "WHERE id = ANY(%s)", (_texts(ids),))}


def listed(conn: Connection[Any]) -> list[Webhook]:
    """Return all endpoints, oldest first."""
    return _select(conn, "ORDER BY created_at, id", ())


def update(conn: Connection[Any], webhook: Webhook, *, afresh: bool = False) -> bool:
    """Update the settings of an endpoint; ``afresh`` resets its failure count."""
    cursor = conn.execute(
        f"UPDATE webhooks SET ({_SET}, updated_at) = ({_SET_VALUES}, %s), "
        "failures = CASE WHEN %s THEN 0 ELSE failures END, "
        "failing_since = CASE WHEN %s THEN NULL ELSE failing_since END, disabled_reason = %s WHERE id = %s",
        (
            *_set_values(webhook),
            webhook.updated_at,
            afresh,
            afresh,
            "" if webhook.enabled else storable(webhook.disabled_reason),
            storable(webhook.id),
        ),
    )
    return cursor.rowcount == 1


def delete(conn: Connection[Any], webhook_id: str) -> bool:
    """Remove an endpoint with its secrets and deliveries."""
    return conn.execute("DELETE FROM webhooks WHERE id = %s", (storable(webhook_id),)).rowcount == 1


def rotate(
    conn: Connection[Any], webhook_id: str, secret: str, *, now: datetime, old_until: datetime
) -> None:
    """Add a new secret; the old ones sign as well until ``old_until``."""
    with conn.transaction():
        conn.execute(
            # Secrets of an earlier rotation keep their own, earlier expiry.
            "UPDATE webhook_secrets SET expires_at = %s WHERE webhook_id = %s AND expires_at IS NULL",
            (old_until, storable(webhook_id)),
        )
        _add_secret(conn, webhook_id, secret, now)


def secrets(conn: Connection[Any], webhook_id: str, now: datetime) -> list[str]:
    """Return the secrets that sign now, newest first. Only the notifier's role may call this."""
    rows = conn.execute(
        "SELECT secret FROM webhook_secrets WHERE webhook_id = %s "
        "AND (expires_at IS NULL OR expires_at > %s) ORDER BY created_at DESC",
        (storable(webhook_id), now),
    ).fetchall()
    return [row[0] for row in rows]


def record_success(conn: Connection[Any], webhook_id: str) -> bool:
    """Record a successful delivery; return whether attempts had failed before."""
    cursor = conn.execute(
        "UPDATE webhooks SET failures = 0, failing_since = NULL WHERE id = %s AND failures > 0",
        (storable(webhook_id),),
    )
    return cursor.rowcount == 1


def record_failure(conn: Connection[Any], webhook_id: str, at: datetime) -> Webhook | None:
    """Record a failed attempt; return the endpoint, None when it has been removed."""
    conn.execute(
        "UPDATE webhooks SET failures = failures + 1, failing_since = coalesce(failing_since, %s) "
        "WHERE id = %s",
        (at, storable(webhook_id)),
    )
    return get(conn, webhook_id)


def disable_gone(conn: Connection[Any], webhook_id: str, reason: str, at: datetime) -> Webhook | None:
    """Disable an endpoint whose receiver answered 410; return it, None when it has been removed."""
    conn.execute(
        "UPDATE webhooks SET enabled = false, disabled_reason = %s, updated_at = %s, "
        "failures = greatest(failures + 1, %s), failing_since = coalesce(failing_since, %s) WHERE id = %s",
        (storable(reason), at, FAILING_AFTER, at, storable(webhook_id)),
    )
    return get(conn, webhook_id)


def failing_by_id(conn: Connection[Any]) -> dict[str, bool]:
    """Return whether each endpoint is failing, by id."""
    return {webhook.id: webhook.failing for webhook in listed(conn)}


def _add_secret(conn: Connection[Any], webhook_id: str, secret: str, now: datetime) -> None:
    conn.execute(
        "INSERT INTO webhook_secrets (webhook_id, secret, created_at) VALUES (%s, %s, %s)",
        (storable(webhook_id), storable(secret), now),
    )


def _select(conn: Connection[Any], where: LiteralString, parameters: tuple[Any, ...]) -> list[Webhook]:
    with conn.cursor(row_factory=dict_row) as cursor:
        rows = cursor.execute(_SELECT + where, parameters).fetchall()
    return [_webhook(row) for row in rows]


def _webhook(row: dict[str, Any]) -> Webhook:
    times = {name: row.pop(name) for name in _TIMES}
    route = Route(matchers=matchers(row.pop("matchers")), **times)
    lists = {name: tuple(row[name]) for name in ("events", "kinds", "clusters")}
    return Webhook(**(row | lists), route=route)


def _set_values(webhook: Webhook) -> tuple[Any, ...]:
    """Return the values of the columns ``_SET``."""
    matching = Jsonb(storable_json([asdict(matcher) for matcher in webhook.route.matchers]))
    return (
        storable(webhook.name),
        storable(webhook.url),
        webhook.format,
        _texts(webhook.events),
        webhook.min_severity,
        _texts(webhook.kinds),
        _texts(webhook.clusters),
        matching,
        *(getattr(webhook.route, name) for name in _TIMES),
        None if webhook.template is None else Jsonb(storable_json(webhook.template)),
        webhook.enabled,
    )


def _texts(values: Iterable[str]) -> list[str]:
    return [storable(value) for value in values]
