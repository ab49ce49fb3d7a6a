"""Single deliveries: their attempts, and sending one again under the same ``webhook-id``."""

from dataclasses import asdict
from typing import Any

from fastapi import APIRouter, Request, Response
from psycopg import Connection

from api.audit import record
from api.deps import ServicesDep
from api.http.conditional import UNCHANGED, answer
from api.http.idempotency import IdempotentRoute
from api.http.problems import not_found
from api.http.times import rfc3339
from api.routes.webhook_answers import DeliveryWithTries, RetriedDelivery
from api.security.auth import Principal, WebhooksAdmin
from store.findings import deliveries, webhooks
from store.findings.deliveries import Delivery
from store.findings.outbox import wake

router = APIRouter(prefix="/api/v1/deliveries", tags=["webhooks"], route_class=IdempotentRoute)


@router.get("/{delivery_id}", responses={200: {"model": DeliveryWithTries}, 304: UNCHANGED})
def read_delivery(
    delivery_id: str, request: Request, services: ServicesDep, principal: WebhooksAdmin
) -> Response:
    """Return a delivery with all its attempts."""
    with services.pool.connection() as conn:
        found = _reachable(conn, delivery_id, principal)
        tries = deliveries.attempts(conn, delivery_id)
    return answer(request, shown(found) | {"tries": [asdict(t) | {"at": rfc3339(t.at)} for t in tries]})


@router.post("/{delivery_id}/retry", status_code=202, response_model=RetriedDelivery)
def retry_delivery(
    delivery_id: str, request: Request, services: ServicesDep, principal: WebhooksAdmin
) -> dict[str, str]:
    """Make a delivery due now, also one that failed for good.

    If the webhook has a newer delivery of the same finding, that one is sent instead; ``id`` names it.
    """
    with services.pool.connection() as conn, conn.transaction():
        found = _reachable(conn, delivery_id, principal)
        due = deliveries.retry(conn, delivery_id, services.now())
        wake(conn, {"id": found.event_id, "event": found.type})
        record(conn, request, "delivery.retry", delivery_id, {})
    return {"id": due or delivery_id, "status": "pending"}


def shown(delivery: Delivery) -> dict[str, Any]:
    """Return a delivery as it is served."""
    times = ["last_attempt_at", "delivered_at", "created_at"]
    if delivery.state in ("pending", "muted"):
        times.append("next_attempt_at")
    present = {name: getattr(delivery, name) for name in times if getattr(delivery, name) is not None}
    return {
        "id": delivery.id,
        "message_id": delivery.event_id,
        "webhook_id": delivery.webhook_id,
        "event_type": delivery.type,
        "finding_id": delivery.finding_id,
        "status": delivery.state,
        "attempts": delivery.attempts,
        "muted_by": delivery.muted_by,
        "superseded_by": delivery.superseded_by,
        "last_status": delivery.last_status,
        "last_error": delivery.last_error,
        **{name: rfc3339(moment) for name, moment in present.items()},
    }


def _reachable(conn: Connection[Any], delivery_id: str, principal: Principal) -> Delivery:
    found = deliveries.get(conn, delivery_id)
    endpoint = webhooks.get(conn, found.webhook_id) if found else None
    if found is None or not principal.may_handle(endpoint.clusters if endpoint else ()):
        raise not_found("delivery", delivery_id)
    return found
