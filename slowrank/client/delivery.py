"""Requests about webhooks, their deliveries, and silences."""

from collections.abc import Mapping, Sequence
from typing import Any

from slowrank.client.objects import (
    Delivery,
    Inhibition,
    Matcher,
    Page,
    Rotation,
    Silence,
    TestResult,
    Webhook,
)
from slowrank.client.request import Request, get, part


def webhooks() -> Request[Page[Webhook]]:
    """Return the request for all webhooks."""
    return get("/webhooks")


def webhook(webhook_id: str) -> Request[Webhook]:
    """Return the request for one webhook."""
    return get(f"/webhooks/{part(webhook_id)}")


def add_webhook(url: str, **fields: Any) -> Request[Webhook]:
    """Return the request that adds a webhook; ``fields`` are the others of ``WebhookBody``."""
    return Request("POST", "/webhooks", json={"url": url, **fields})


def change_webhook(webhook_id: str, changes: Mapping[str, Any]) -> Request[Webhook]:
    """Return the request that changes some fields of a webhook."""
    return Request("PATCH", f"/webhooks/{part(webhook_id)}", json=dict(changes))


def remove_webhook(webhook_id: str) -> Request[None]:
    """Return the request that removes a webhook with its pending deliveries."""
    return Request("DELETE", f"/webhooks/{part(webhook_id)}")


def rotate_secret(webhook_id: str, secret: str | None = None) -> Request[Rotation]:
    """Return the request for a new secret; ``secret`` is one that the receiver issued."""
    body = None if secret is None else {"secret": secret}
    return Request("POST", f"/webhooks/{part(webhook_id)}/secret", json=body)


def send_test(webhook_id: str) -> Request[TestResult]:
    """Return the request that sends a test delivery and waits for the receiver's answer."""
    return Request("POST", f"/webhooks/{part(webhook_id)}/test")


def deliveries(webhook_id: str, *, limit: int = 100) -> Request[Page[Delivery]]:
    """Return the request for the deliveries of a webhook, newest first."""
    return get(f"/webhooks/{part(webhook_id)}/deliveries", limit=limit)


def delivery(delivery_id: str) -> Request[Delivery]:
    """Return the request for one delivery with its attempts."""
    return get(f"/deliveries/{part(delivery_id)}")


def retry(delivery_id: str) -> Request[dict[str, str]]:
    """Return the request that makes a delivery due now."""
    return Request("POST", f"/deliveries/{part(delivery_id)}/retry")


def silences() -> Request[Page[Silence]]:
    """Return the request for silences of any state, latest end first."""
    return get("/silences")


def add_silence(matchers: Sequence[Matcher], ends_at: str, comment: str, **more: Any) -> Request[Silence]:
    """Return the request that keeps what all matchers match from webhooks until ``ends_at`` (RFC 3339)."""
    body = {"matchers": list(matchers), "endsAt": ends_at, "comment": comment, **more}
    return Request("POST", "/silences", json=body)


def expire_silence(silence_id: str) -> Request[None]:
    """Return the request that ends a silence now."""
    return Request("DELETE", f"/silences/{part(silence_id)}")


def inhibitions() -> Request[Page[Inhibition]]:
    """Return the request for all inhibition rules, oldest first."""
    return get("/inhibitions")


def add_inhibition(
    source: Sequence[Matcher], target: Sequence[Matcher], equal: Sequence[str], comment: str
) -> Request[Inhibition]:
    """Return the request for a rule: while ``source`` matches an open finding, ``target`` is held back."""
    body = {"source": list(source), "target": list(target), "equal": list(equal), "comment": comment}
    return Request("POST", "/inhibitions", json=body)


def remove_inhibition(inhibition_id: str) -> Request[None]:
    """Return the request that removes an inhibition rule."""
    return Request("DELETE", f"/inhibitions/{part(inhibition_id)}")
