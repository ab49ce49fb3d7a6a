"""The forms of the settings page. A new secret is on the page that answers the form, and nowhere else."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import RedirectResponse

from api.deps import ServicesDep
from api.http.problems import Problem
from api.pages.access import FindingsForm, FormRequires, Visit
from api.pages.forms import Fields, checked
from api.pages.route import PageRoute
from api.pages.routes.settings import settings_page
from api.routes import keys, silences, webhooks
from api.security.auth import SCOPES

router = APIRouter(include_in_schema=False, route_class=PageRoute, prefix="/settings")

WebhooksForm = Annotated[Visit, Depends(FormRequires("webhooks:admin"))]
KeysForm = Annotated[Visit, Depends(FormRequires("keys:admin"))]


@router.post("/silences/{silence_id}/expire")
def expire_silence(silence_id: str, request: Request, services: ServicesDep, seen: FindingsForm) -> Response:
    """End a silence now."""
    silences.expire_silence(silence_id, request, services, seen.principal)
    return _back("silence")


@router.post("/webhooks")
async def add_webhook(
    request: Request, services: ServicesDep, seen: WebhooksForm, fields: Fields
) -> Response:
    """Add a webhook and show its secret."""
    given = {name: fields[name] for name in ("url", "name", "format", "min_severity") if fields.get(name)}
    secret = {"secret": fields["secret"]} if fields.get("secret") else {}
    # Of the key's clusters: one that is limited to some may add no webhook for others.
    body = checked(webhooks.WebhookBody, {**given, **secret, "clusters": list(seen.principal.clusters)})
    made = await webhooks.create_webhook(body, request, Response(), services, seen.principal)
    notice = f"Webhook {made['id']} is added."
    return await run_in_threadpool(
        settings_page, request, services, seen, notice=notice, secret=made.get("secret", "")
    )


@router.post("/webhooks/{webhook_id}/test")
async def send_test(webhook_id: str, request: Request, services: ServicesDep, seen: WebhooksForm) -> Response:
    """Send a test delivery and show what the receiver answered."""
    outcome = await webhooks.send_test(webhook_id, request, services, seen.principal)
    return await run_in_threadpool(settings_page, request, services, seen, notice=_outcome(outcome))


@router.post("/webhooks/{webhook_id}/enable")
async def enable_webhook(
    webhook_id: str, request: Request, services: ServicesDep, seen: WebhooksForm
) -> Response:
    """Enable a webhook again."""
    return await _switch(webhook_id, request, services, seen, enabled=True)


@router.post("/webhooks/{webhook_id}/disable")
async def disable_webhook(
    webhook_id: str, request: Request, services: ServicesDep, seen: WebhooksForm
) -> Response:
    """Disable a webhook."""
    return await _switch(webhook_id, request, services, seen, enabled=False)


@router.post("/webhooks/{webhook_id}/rotate")
def rotate_secret(
    webhook_id: str, request: Request, services: ServicesDep, seen: WebhooksForm, fields: Fields
) -> Response:
    """Replace a webhook's secret by the one that its receiver issued, else by a new one, and show that."""
    given = {"secret": fields["secret"]} if fields.get("secret") else {}
    body = checked(webhooks.SecretBody, given) if given else None
    made = webhooks.rotate_secret(webhook_id, request, Response(), services, seen.principal, body)
    notice = f"Webhook {webhook_id} has a new secret."
    if "secret" in made:
        notice += f" Until {made['old_until']} deliveries are signed with the old one as well."
    return settings_page(request, services, seen, notice=notice, secret=made.get("secret", ""))


@router.post("/webhooks/{webhook_id}/delete")
def delete_webhook(webhook_id: str, request: Request, services: ServicesDep, seen: WebhooksForm) -> Response:
    """Remove a webhook."""
    webhooks.delete_webhook(webhook_id, request, services, seen.principal)
    return _back("webhook-deleted")


@router.post("/keys")
def add_key(request: Request, services: ServicesDep, seen: KeysForm, fields: Fields) -> Response:
    """Create a key and show its token."""
    wanted: dict[str, Any] = {
        "name": fields.get("name", ""),
        "scopes": [scope for scope in SCOPES if fields.get(f"scope:{scope}")],
        "clusters": list(seen.principal.clusters),
    }
    if fields.get("days"):
        wanted["days"] = fields["days"]
    made = keys.create_key(checked(keys.KeyRequest, wanted), request, Response(), services, seen.principal)
    return settings_page(
        request, services, seen, notice=f"Key {made['id']} is created.", secret=made["token"]
    )


@router.post("/keys/{key_id}/revoke")
def revoke_key(key_id: str, request: Request, services: ServicesDep, seen: KeysForm) -> Response:
    """Revoke a key."""
    if key_id == seen.principal.key_id:
        raise Problem(409, "conflict", "this is the key of your session; revoke it with another one")
    keys.revoke_key(key_id, request, services, seen.principal)
    return _back("key")


async def _switch(
    webhook_id: str, request: Request, services: ServicesDep, seen: Visit, *, enabled: bool
) -> Response:
    body = webhooks.WebhookPatch(enabled=enabled)
    await webhooks.update_webhook(webhook_id, body, request, services, seen.principal)
    return _back("webhook")


def _outcome(outcome: dict[str, Any]) -> str:
    took = f"after {outcome['seconds']:.2f} s"
    if outcome["delivered"]:
        return f"Delivered {took} (HTTP {outcome['status']})."
    return f"Not delivered {took}: {outcome['error'] or 'HTTP ' + str(outcome['status'])}"


def _back(done: str) -> Response:
    return RedirectResponse(f"/settings?done={done}", 303)
