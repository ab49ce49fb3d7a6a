"""The settings page: silences, webhooks and keys, each for keys with its scope."""

from typing import Any

from fastapi import APIRouter, Request, Response

from api.delivery.receivers.registry import names, receiver_named
from api.deps import Services, ServicesDep
from api.pages.access import FindingsVisit, Visit
from api.pages.render import page
from api.pages.route import PageRoute
from api.routes.silences import reaches
from api.routes.webhooks import masked
from api.security.auth import SCOPES
from store.access import keys
from store.findings import silences, webhooks

router = APIRouter(include_in_schema=False, route_class=PageRoute)

DONE = {
    "silence": "The silence has ended.",
    "webhook": "The webhook has changed.",
    "webhook-deleted": "The webhook is deleted.",
    "key": "The key is revoked, and every session that it opened has ended.",
}

# Silences that have ended are listed up to this number (chosen: those that somebody may still ask about).
MAX_ENDED = 20


@router.get("/settings")
def show_settings(request: Request, services: ServicesDep, seen: FindingsVisit, done: str = "") -> Response:
    """Show silences, and webhooks and keys to whoever may change them."""
    return settings_page(request, services, seen, notice=DONE.get(done, ""))


def settings_page(
    request: Request, services: Services, seen: Visit, *, notice: str = "", secret: str = ""
) -> Response:
    """Return the page; ``secret`` is shown this once."""
    return page(
        request,
        "settings.html",
        viewer=seen.viewer,
        notice=notice,
        secret=secret,
        formats=names(),
        scopes=[scope for scope in SCOPES if scope in seen.principal.scopes],
        now=services.now(),
        **_stored(services, seen),
    )


def _stored(services: Services, seen: Visit) -> dict[str, Any]:
    principal, now = seen.principal, services.now()
    with services.pool.connection() as conn:
        muted = [one for one in silences.listed(conn) if reaches(principal, one)]
        hooks = webhooks.listed(conn) if seen.viewer.may("webhooks:admin") else []
        tokens = keys.listed(conn) if seen.viewer.may("keys:admin") else []
    ended = [one for one in muted if one.state(now) == "expired"]
    return {
        "silences": [one for one in muted if one.state(now) != "expired"],
        "ended": ended[:MAX_ENDED],
        "webhooks": [
            (one, masked(one.url), receiver_named(one.format))
            for one in hooks
            if principal.may_handle(one.clusters)
        ],
        "keys": [one for one in tokens if one.valid_at(now) and principal.may_handle(one.clusters)],
    }
