"""What the API serves of webhooks and their deliveries."""

from typing import Any, Literal

from pydantic import BaseModel, Field

from alerts.notify import EventType
from api.http.times import Timestamp
from api.routes.silences import ShownMatcher
from slowrank.telemetry.records import Severity
from store.findings.deliveries import State

_WEBHOOK: dict[str, Any] = {
    "id": "whk_01KB2P8TA0Q6N3X1R5J7M9V4CE",
    "name": "on call",
    "url": "https://hooks.example.org/…3f9a",
    "format": "standard",
    "min_severity": "error",
    "events": [],
    "kinds": ["straggler"],
    "clusters": ["prod-a"],
    "matchers": [{"name": "rack", "value": "r7", "isRegex": False, "isEqual": True}],
    "wait_seconds": 30,
    "unless_acknowledged": False,
    "interval_seconds": 300,
    "repeat_seconds": 14400,
    "template": None,
    "enabled": True,
    "status": "active",
    "failures_in_a_row": 0,
    "created_at": "2026-11-20T07:00:00Z",
    "updated_at": "2026-11-20T07:00:00Z",
}
_DELIVERY: dict[str, Any] = {
    "id": "dlv_01JD7Q5B2CZ4X8_whk_01KB2P8TA0",
    "message_id": "msg_01JD7Q5B2CZ4X8",
    "webhook_id": "whk_01KB2P8TA0",
    "event_type": "finding.opened",
    "finding_id": "fnd_01JD7Q4Y6R8V2M3K5N9P0S1T2W",
    "status": "delivered",
    "attempts": 1,
    "muted_by": None,
    "superseded_by": None,
    "last_status": 200,
    "last_error": "",
    "last_attempt_at": "2026-11-20T07:34:03Z",
    "delivered_at": "2026-11-20T07:34:03Z",
    "created_at": "2026-11-20T07:34:02Z",
}


class ShownWebhook(BaseModel, json_schema_extra={"examples": [_WEBHOOK]}):
    """An endpoint, without its secret."""

    id: str
    name: str
    url: str = Field(description="With its path masked, which often is the receiver's secret.")
    format: str
    min_severity: Severity
    events: list[EventType] = Field(description="None: those that ask people to act, or to stop acting.")
    kinds: list[str] = Field(description="Kinds and families of kinds; none: all.")
    clusters: list[str] = Field(description="None: all.")
    matchers: list[ShownMatcher]
    wait_seconds: int
    unless_acknowledged: bool
    interval_seconds: int
    repeat_seconds: int | None
    template: dict[str, Any] | list[Any] | None
    enabled: bool
    status: Literal["active", "failing", "disabled"]
    failures_in_a_row: int = Field(description="Failed attempts, of any delivery, since the last success.")
    created_at: Timestamp
    updated_at: Timestamp
    failing_since: Timestamp | None = Field(default=None, description="Only while it is failing.")
    disabled_reason: str | None = Field(default=None, description="Only where the receiver disabled it.")


class WebhookPage(BaseModel):
    """All endpoints that the key may see, the oldest first."""

    items: list[ShownWebhook]
    next_cursor: str = Field(description="Always empty.")


class AddedWebhook(ShownWebhook):
    """A new endpoint with its secret."""

    secret: str | None = Field(
        default=None, description="Verifies signatures; shown this once. None where the receiver issued it."
    )


class NewSecret(BaseModel):
    """A rotated secret."""

    id: str = Field(description="Of the webhook.")
    old_until: Timestamp = Field(description="Until when deliveries are signed with the old one as well.")
    secret: str | None = Field(
        default=None, description="Shown this once. Absent where the receiver issued it."
    )


class TriedWebhook(BaseModel):
    """How the receiver answered a test."""

    delivery_id: str
    delivered: bool
    status: int | None = Field(description="HTTP or SMTP status; null without an answer.")
    error: str
    seconds: float
    protocol: Literal["http", "smtp"]


class ShownDelivery(BaseModel, json_schema_extra={"examples": [_DELIVERY]}):
    """One event for one endpoint."""

    id: str
    message_id: str = Field(description="The `webhook-id`.")
    webhook_id: str
    event_type: str
    finding_id: str | None = Field(description="Null for a test.")
    status: State
    attempts: int
    muted_by: str | None = Field(description="A silence, a rule, or `wait` or `interval`.")
    superseded_by: str | None = Field(
        description="The delivery of a newer event, sent instead; null for the end of what never arrived."
    )
    last_status: int | None
    last_error: str
    last_attempt_at: Timestamp | None = None
    delivered_at: Timestamp | None = None
    created_at: Timestamp
    next_attempt_at: Timestamp | None = Field(default=None, description="While it waits.")


class DeliveryTry(BaseModel):
    """One attempt."""

    at: Timestamp
    status: int | None
    error: str
    excerpt: str = Field(description="Beginning of the answer.")
    seconds: float


class DeliveryWithTries(ShownDelivery):
    """A delivery and its attempts."""

    tries: list[DeliveryTry]


class DeliveryPage(BaseModel):
    """One page of deliveries, the newest first."""

    items: list[ShownDelivery]
    next_cursor: str = Field(description="Empty on the last page.")


class RetriedDelivery(BaseModel):
    """What is sent: the delivery asked for, or the newest of its finding."""

    id: str
    status: Literal["pending"]
