"""Webhook endpoints: add, change, test, read the delivery log. A secret is returned once."""

import asyncio
import logging
import re
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from fastapi import APIRouter, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from psycopg import Connection
from pydantic import AfterValidator, BaseModel, Field, SecretStr

from alerts.notify import DEFAULT_EVENTS, EventType
from alerts.route import Route
from api.audit import record
from api.delivery.receivers import registry, template
from api.delivery.recipients import MAILTO_PATTERN
from api.delivery.sample_event import sample_event
from api.delivery.webhook_client import resolve
from api.deps import Services, ServicesDep
from api.http import conditional
from api.http.idempotency import IdempotentRoute
from api.http.ids import new_id
from api.http.problems import Problem, contradiction, not_found
from api.http.text_forms import in_form
from api.http.times import rfc3339
from api.routes.deliveries import shown as shown_delivery
from api.routes.finding_kinds import check_kinds
from api.routes.silences import MatcherBody, shown_matcher
from api.routes.webhook_answers import (
    AddedWebhook,
    DeliveryPage,
    NewSecret,
    ShownWebhook,
    TriedWebhook,
    WebhookPage,
)
from api.security.auth import Cluster, Principal, WebhooksAdmin
from api.security.signing import new_secret
from api.security.ssrf import MAX_URL, URL_PATTERN, Refused, Target, check_addresses, checked_url, unreachable
from slowrank.telemetry.records import Severity
from store.findings import deliveries, webhooks
from store.findings.outbox import wake
from store.findings.webhooks import Webhook

log = logging.getLogger(__name__)

router = APIRouter(prefix="/api/v1/webhooks", tags=["webhooks"], route_class=IdempotentRoute)

_ROUTE = {"matchers", "wait_seconds", "unless_acknowledged", "interval_seconds", "repeat_seconds"}
FormatName = Annotated[
    str,
    AfterValidator(lambda name: registry.receiver_named(name).name),
    Field(json_schema_extra=lambda schema: schema.update(enum=list(registry.names()))),
]
_KIND_PATTERN = r"^[a-z0-9_]+(\.[a-z0-9_]+)*$"
_KIND_FORM = "name a kind such as straggler.fail_slow, or a family such as straggler"
Kind = Annotated[str, Field(pattern=_KIND_PATTERN, max_length=64), in_form(_KIND_PATTERN, _KIND_FORM)]
# How long deliveries are signed with the old secret too. Chosen: a working day to change the receiver.
ROTATION = timedelta(hours=24)
# Longer than an attempt may take (webhook_client.TOTAL_SECONDS).
TEST_SECONDS = 20.0
# glibc's default timeout of one name server.
RESOLVE_SECONDS = 5.0


_TARGET_PATTERN = f"{URL_PATTERN}|{MAILTO_PATTERN}"
# Without the text itself, which may hold a secret.
_TARGET_FORM = "write a URL such as https://hooks.example.org/gpu, or for e-mail mailto:oncall@example.org"
Url = Annotated[
    str, Field(pattern=_TARGET_PATTERN, max_length=MAX_URL), in_form(_TARGET_PATTERN, _TARGET_FORM)
]
GivenSecret = Annotated[SecretStr | None, Field(max_length=255)]


Matchers = Annotated[
    list[MatcherBody], Field(max_length=16, description="All must match, beside the filters.")
]
# A week: what is held back for longer is not for a webhook.
Seconds = Annotated[int, Field(ge=0, le=7 * 86400)]
RepeatSeconds = Annotated[int, Field(ge=60, le=7 * 86400)]
Template = dict[str, Any] | list[Any]
_WAIT = "How long a finding must stand before its first event is sent (Alertmanager: group_wait)."
_UNLESS = "Send nothing of a finding that was acknowledged during the wait: an escalation."
_INTERVAL = "Least time between two events of a finding (Alertmanager: group_interval)."
_REPEAT = "Send the last event of a finding that is open and not acknowledged again (repeat_interval)."
_TEMPLATE = "The body of the format `template`: texts may name fields as `{{ finding.title }}`."


class WebhookBody(BaseModel, extra="forbid"):
    """A new endpoint; without ``events`` it gets opened, reopened, escalated and resolved findings.

    ``secret`` is for formats whose receiver issues one: PagerDuty's integration key, a Slack bot's token.
    """

    url: Url
    name: str = Field(default="", max_length=128)
    format: FormatName = "standard"
    min_severity: Severity = "warning"
    events: list[EventType] = Field(default=[], max_length=7)
    kinds: list[Kind] = Field(default=[], max_length=50)
    clusters: list[Cluster] = Field(default=[], max_length=100)
    matchers: Matchers = []
    wait_seconds: Seconds = Field(default=0, description=_WAIT)
    unless_acknowledged: bool = Field(default=False, description=_UNLESS)
    interval_seconds: Seconds = Field(default=0, description=_INTERVAL)
    repeat_seconds: RepeatSeconds | None = Field(default=None, description=_REPEAT)
    template: Template | None = Field(default=None, description=_TEMPLATE)
    secret: GivenSecret = None


class SecretBody(BaseModel, extra="forbid"):
    """A new secret that the receiver issued; without it slowrank makes one."""

    secret: GivenSecret = None


class WebhookPatch(BaseModel, extra="forbid"):
    """Changes of an endpoint; omitted fields keep their values."""

    url: Url | None = None
    name: str | None = Field(default=None, max_length=128)
    format: FormatName | None = None
    min_severity: Severity | None = None
    events: list[EventType] | None = Field(default=None, max_length=7)
    kinds: list[Kind] | None = Field(default=None, max_length=50)
    clusters: list[Cluster] | None = Field(default=None, max_length=100)
    matchers: Matchers | None = None
    wait_seconds: Seconds | None = Field(default=None, description=_WAIT)
    unless_acknowledged: bool | None = Field(default=None, description=_UNLESS)
    interval_seconds: Seconds | None = Field(default=None, description=_INTERVAL)
    repeat_seconds: RepeatSeconds | Literal[0] | None = Field(
        default=None, description=f"{_REPEAT} 0 ends that."
    )
    template: Template | None = Field(default=None, description=_TEMPLATE)
    enabled: bool | None = None


@router.get("", responses={200: {"model": WebhookPage}, 304: conditional.UNCHANGED})
def read_webhooks(request: Request, services: ServicesDep, principal: WebhooksAdmin) -> Response:
    """List the endpoints; the paths of their URLs, which often hold a secret, are masked."""
    with services.pool.connection() as conn:
        found = [w for w in webhooks.listed(conn) if principal.may_handle(w.clusters)]
    return conditional.answer(request, {"items": [_shown(w) for w in found], "next_cursor": ""})


@router.post("", status_code=201, response_model=AddedWebhook, response_model_exclude_unset=True)
async def create_webhook(
    body: WebhookBody, request: Request, response: Response, services: ServicesDep, principal: WebhooksAdmin
) -> dict[str, Any]:
    """Add an endpoint; its signing secret is returned once, in this answer, unless the receiver issued it."""
    check_kinds(body.kinds, "#/body/kinds")
    _check_template(body.format, body.template)
    secret = _secret(body.format, body.secret)
    await _check_url(services, body.url, body.format)
    now = services.now()
    made = Webhook(
        id=new_id("whk", now),
        created_by=principal.key_id,
        created_at=now,
        updated_at=now,
        **_fields(body) | {"events": _event_types(body), "route": _route(Route(), body)},
    )
    _check_reach(principal, made)
    _check_repeats(made)

    def store() -> None:
        with services.pool.connection() as conn, conn.transaction():
            webhooks.create(conn, made, secret)
            record(conn, request, "webhook.create", made.id, {"url": masked(made.url)})

    await run_in_threadpool(store)
    response.headers["cache-control"] = "no-store"
    return _shown(made) | ({"secret": secret} if registry.receiver_named(made.format).is_signed else {})


@router.get("/{webhook_id}", responses={200: {"model": ShownWebhook}, 304: conditional.UNCHANGED})
def read_webhook(
    webhook_id: str, request: Request, services: ServicesDep, principal: WebhooksAdmin
) -> Response:
    """Return an endpoint."""
    with services.pool.connection() as conn:
        found = _reachable(conn, webhook_id, principal)
    return conditional.answer(request, _shown(found))


@router.patch("/{webhook_id}", response_model=ShownWebhook, response_model_exclude_unset=True)
async def update_webhook(
    webhook_id: str, body: WebhookPatch, request: Request, services: ServicesDep, principal: WebhooksAdmin
) -> dict[str, Any]:
    """Change an endpoint; ``enabled: true`` re-enables a failing or disabled one."""
    check_kinds(body.kinds or (), "#/body/kinds")
    changes = _fields(body)

    def current() -> Webhook:
        with services.pool.connection() as conn:
            return _reachable(conn, webhook_id, principal)

    if {"url", "format"} & changes.keys():
        wanted = replace(await run_in_threadpool(current), **changes)
        await _check_url(services, wanted.url, wanted.format)

    def store() -> Webhook:
        with services.pool.connection() as conn, conn.transaction():
            found = _reachable(conn, webhook_id, principal)
            changed = replace(found, updated_at=services.now(), route=_route(found.route, body), **changes)
            _check_same_credential(found, changed)
            _check_template(changed.format, changed.template)
            _check_repeats(changed)
            if "enabled" in changes:
                changed = replace(changed, disabled_reason="")
            _check_reach(principal, changed)
            # A new name or filter does not reset the failure count.
            webhooks.update(conn, changed, afresh=changes.get("enabled", False) or "url" in changes)
            given = body.model_dump(exclude_none=True, mode="json")
            audited = given | ({"url": masked(changed.url)} if body.url else {})
            record(conn, request, "webhook.update", webhook_id, {"changed": audited})
            return _reachable(conn, webhook_id, principal)

    return _shown(await run_in_threadpool(store))


@router.delete("/{webhook_id}", status_code=204)
def delete_webhook(
    webhook_id: str, request: Request, services: ServicesDep, principal: WebhooksAdmin
) -> None:
    """Remove an endpoint with its secrets and pending deliveries."""
    with services.pool.connection() as conn, conn.transaction():
        _reachable(conn, webhook_id, principal)
        webhooks.delete(conn, webhook_id)
        record(conn, request, "webhook.delete", webhook_id, {})


@router.post(
    "/{webhook_id}/secret", status_code=201, response_model=NewSecret, response_model_exclude_unset=True
)
def rotate_secret(
    webhook_id: str,
    request: Request,
    response: Response,
    services: ServicesDep,
    principal: WebhooksAdmin,
    body: SecretBody | None = None,
) -> dict[str, str]:
    """Create a new signing secret; for 24 h deliveries are signed with the old one as well.

    A secret that the receiver issues is replaced at once by the one in the body.
    """
    given, now = body.secret if body else None, services.now()
    old_until = now if given else now + ROTATION
    with services.pool.connection() as conn, conn.transaction():
        format_name = _reachable(conn, webhook_id, principal).format
        secret = _secret(format_name, given)
        webhooks.rotate(conn, webhook_id, secret, now=now, old_until=old_until)
        record(conn, request, "webhook.rotate", webhook_id, {})
    response.headers["cache-control"] = "no-store"
    shown = {"secret": secret} if registry.receiver_named(format_name).is_signed else {}
    return {"id": webhook_id, "old_until": rfc3339(old_until)} | shown


@router.post("/{webhook_id}/test", response_model=TriedWebhook)
async def send_test(
    webhook_id: str, request: Request, services: ServicesDep, principal: WebhooksAdmin
) -> dict[str, Any]:
    """Send a signed ``delivery.test`` through the notifier and return the receiver's answer."""
    event = sample_event(services.now())

    def queue() -> tuple[str, str]:
        with services.pool.connection() as conn, conn.transaction():
            found = _reachable(conn, webhook_id, principal)
            if not found.enabled:
                raise Problem(409, "conflict", "the webhook is disabled; PATCH it with enabled: true first")
            queued = deliveries.test(conn, webhook_id, event)
            wake(conn, {"id": event.id, "event": event.type})
            record(conn, request, "webhook.test", webhook_id, {})
            return queued, registry.receiver_named(found.format).transport

    delivery_id, transport = await run_in_threadpool(queue)
    return await _outcome(services, delivery_id) | {"protocol": "smtp" if transport == "smtp" else "http"}


@router.get("/{webhook_id}/deliveries", responses={200: {"model": DeliveryPage}, 304: conditional.UNCHANGED})
def read_deliveries(
    webhook_id: str,
    request: Request,
    services: ServicesDep,
    principal: WebhooksAdmin,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    cursor: Annotated[str | None, Query(max_length=1024)] = None,
) -> Response:
    """List the deliveries of an endpoint, newest first."""
    bound = {"webhook": webhook_id}
    position = services.cursors.open(cursor, bound) if cursor else None
    after = (datetime.fromisoformat(position[0]), position[1]) if position else None
    with services.pool.connection() as conn:
        _reachable(conn, webhook_id, principal)
        found = deliveries.listed(conn, webhook_id, limit=limit, after=after)
    last = found[-1] if len(found) == limit else None
    next_cursor = services.cursors.seal([last.created_at.isoformat(), last.id], bound) if last else ""
    return conditional.answer(
        request, {"items": [shown_delivery(d) for d in found], "next_cursor": next_cursor}
    )


def masked(url: str) -> str:
    """Return a URL with its path masked, which often is the receiver's only secret."""
    origin, separator, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    return f"{origin}{separator}{host.split('?')[0]}" + (f"/…{path[-4:]}" if slash and path else "")


def _fields(body: WebhookBody | WebhookPatch) -> dict[str, Any]:
    given = body.model_dump(exclude_none=True, exclude={"secret", *_ROUTE})
    return {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}


def _route(before: Route, body: WebhookBody | WebhookPatch) -> Route:
    """Return the route with the changes of a body. Raises the 409 problem of a bad matcher."""
    given = body.model_dump(exclude_none=True, include=_ROUTE)
    if body.matchers is not None:
        try:
            given["matchers"] = tuple(matcher.matcher() for matcher in body.matchers)
        except ValueError as error:
            raise contradiction("#/body/matchers", str(error)) from error
    if given.get("repeat_seconds") == 0:
        given["repeat_seconds"] = None
    return replace(before, **given)


def _check_repeats(webhook: Webhook) -> None:
    own = registry.receiver_named(webhook.format).repeat_seconds
    if own and webhook.route.repeat_seconds:
        detail = f"format {webhook.format} repeats every {own:g} s by itself: leave repeat_seconds out"
        raise contradiction("#/body/repeat_seconds", detail)


def _check_template(format_name: str, body: object) -> None:
    if body is None:
        return
    if format_name != template.RECEIVER.name:
        raise contradiction(
            "#/body/template", f"format {format_name} has a body of its own: send no template"
        )
    try:
        template.check(body)
    except ValueError as error:
        raise contradiction("#/body/template", str(error)) from error


def _secret(format_name: str, given: SecretStr | None) -> str:
    """Return the secret that the receiver issued, or a new one to sign with where it issues none."""
    wanted, pointer = registry.receiver_named(format_name).credential, "#/body/secret"
    if wanted is None:
        if given is not None:
            raise contradiction(pointer, f"a receiver of format {format_name} issues no secret: send none")
        return new_secret()
    secret = "" if given is None else given.get_secret_value()
    if not re.fullmatch(wanted.pattern, secret):
        # Never the secret itself, which may be right but for a character.
        got = f"the length of this one is {len(secret)}" if secret else "none was sent"
        if secret != secret.strip():
            got += ", with spaces or line ends around it"
        raise contradiction(
            pointer, f"format {format_name} needs as secret a {wanted.label}: {wanted.form}; {got}"
        )
    return secret


def _event_types(body: WebhookBody) -> tuple[str, ...]:
    """Return the types asked for; none stands for the default ones, unless the format needs more."""
    more = registry.receiver_named(body.format).more_events
    return tuple(body.events) or ((*sorted(DEFAULT_EVENTS), *more) if more else ())


def _check_same_credential(found: Webhook, changed: Webhook) -> None:
    before, after = (registry.receiver_named(webhook.format).credential for webhook in (found, changed))
    if before != after:
        detail = f"{found.format} and {changed.format} need different secrets; add another webhook"
        raise contradiction("#/body/format", detail)
    origins = [urlsplit(webhook.url.lower())[:2] for webhook in (found, changed)]
    if after is not None and origins[0] != origins[1]:
        # Whoever may change a webhook could otherwise have it sent to a server of their own.
        detail = f"the {after.label} was given for another server; add another webhook with it"
        raise contradiction("#/body/url", detail)


async def _check_url(services: Services, url: str, format_name: str) -> None:
    receiver = registry.receiver_named(format_name)
    try:
        if receiver.transport == "smtp":
            _check_recipient(services, url)
            return
        if receiver.url_form is not None and not re.fullmatch(receiver.url_form.pattern, url):
            raise Refused(f"the URL of format {format_name} looks like {receiver.url_form.example}")
        # Checked for an immediate answer; every delivery checks again. TimeoutError is an OSError.
        target = checked_url(url, services.policy)
        check_addresses(target, await _addresses(target), services.policy)
    except Refused as refusal:
        log.warning("a webhook was refused: %s", refusal.why)
        detail = str(refusal)
        errors = [{"pointer": "#/body/url", "detail": detail}]
        raise Problem(403, "destination-refused", detail, errors=errors) from refusal


def _check_recipient(services: Services, url: str) -> None:
    if services.recipients is None:
        raise Refused("there is no mail server: set SLOWRANK_SMTP_HOST and _FROM for API and notifier")
    services.recipients.checked(url)


async def _addresses(target: Target) -> Sequence[str]:
    try:
        async with asyncio.timeout(RESOLVE_SECONDS):
            return await resolve(target.host, target.port)
    except (OSError, UnicodeError) as error:
        raise unreachable(target.host, f"{target.host} does not resolve: {error!r}") from error


async def _outcome(services: Services, delivery_id: str) -> dict[str, Any]:
    deadline = time.monotonic() + TEST_SECONDS
    while time.monotonic() < deadline:
        tries = await run_in_threadpool(_attempts, services, delivery_id)
        if tries:
            done = tries[-1]
            return {
                "delivery_id": delivery_id,
                "delivered": done.status is not None and 200 <= done.status < 300,
                "status": done.status,
                "error": done.error,
                "seconds": done.seconds,
            }
        await asyncio.sleep(0.05)
    detail = f"no notifier sent the test within {TEST_SECONDS:g} s; is `slowrank notifier run` running?"
    raise Problem(504, "notifier-silent", detail)


def _attempts(services: Services, delivery_id: str) -> list[deliveries.Attempt]:
    with services.pool.connection() as conn:
        return deliveries.attempts(conn, delivery_id)


def _reachable(conn: Connection[Any], webhook_id: str, principal: Principal) -> Webhook:
    found = webhooks.get(conn, webhook_id)
    if found is None or not principal.may_handle(found.clusters):
        raise not_found("webhook", webhook_id)
    return found


def _check_reach(principal: Principal, webhook: Webhook) -> None:
    if not principal.may_handle(webhook.clusters):
        named = ", ".join(principal.clusters)
        raise Problem(403, "forbidden", f"this key is limited to {named}; name clusters among them")


def _shown(webhook: Webhook) -> dict[str, Any]:
    status = "disabled" if not webhook.enabled else "failing" if webhook.failing else "active"
    shown: dict[str, Any] = {
        "id": webhook.id,
        "name": webhook.name,
        "url": masked(webhook.url),
        "format": webhook.format,
        "min_severity": webhook.min_severity,
        "events": list(webhook.events),
        "kinds": list(webhook.kinds),
        "clusters": list(webhook.clusters),
        "matchers": [shown_matcher(matcher) for matcher in webhook.route.matchers],
        "wait_seconds": webhook.route.wait_seconds,
        "unless_acknowledged": webhook.route.unless_acknowledged,
        "interval_seconds": webhook.route.interval_seconds,
        "repeat_seconds": webhook.route.repeat_seconds,
        "template": webhook.template,
        "enabled": webhook.enabled,
        "status": status,
        "failures_in_a_row": webhook.failures,
        "created_at": rfc3339(webhook.created_at),
        "updated_at": rfc3339(webhook.updated_at),
    }
    if webhook.failing and webhook.failing_since:
        shown["failing_since"] = rfc3339(webhook.failing_since)
    if webhook.disabled_reason:
        shown["disabled_reason"] = webhook.disabled_reason
    return shown
