"""Alerts of other systems, as Alertmanager posts them, to corroborate what slowrank suspects."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter
from pydantic import AwareDatetime, BaseModel, BeforeValidator, Field

from api import ingest
from api.deps import ServicesDep
from api.foreign.alertmanager import Alert, Reader
from api.http.idempotency import IdempotentRoute
from api.http.problems import Problem
from api.security.auth import TelemetryWriter

router = APIRouter(prefix="/api/v1/ingest", tags=["ingest"], route_class=IdempotentRoute)

_EXAMPLE: dict[str, Any] = {
    "version": "4",
    "alerts": [
        {
            "status": "firing",
            "labels": {"alertname": "GpuTooHot", "severity": "warning", "node": "gpu-0423", "gpu": "5"},
            "annotations": {"summary": "GPU 5 has 92 degrees", "slowrank_kind": "throttle.thermal"},
            "startsAt": "2026-11-20T07:32:40Z",
            "endsAt": "0001-01-01T00:00:00Z",
            "fingerprint": "9a1f0c5d7be2443e",
        }
    ],
}


def _written(value: Any) -> Any:
    # A number would be read as Unix time, which the document does not allow.
    if not isinstance(value, str) or value.isdecimal():
        raise ValueError("a time is written as 2026-11-20T07:32:40Z")
    return value


class PostedAlert(BaseModel):
    """One alert; fields that are not listed here are ignored."""

    status: Literal["firing", "resolved"]
    labels: dict[str, str] = Field(max_length=256)
    annotations: dict[str, str] = Field(default={}, max_length=256)
    startsAt: Annotated[AwareDatetime, BeforeValidator(_written)]
    fingerprint: str = Field(default="", max_length=128)


class AlertNotification(BaseModel, json_schema_extra={"examples": [_EXAMPLE]}):
    """A notification as Alertmanager's webhook receiver sends it (`webhook_configs`)."""

    version: Literal["4"]
    alerts: list[PostedAlert] = Field(max_length=1000)


class AlertsAnswer(BaseModel):
    """What was taken of a notification."""

    accepted: int = Field(description="Alerts about a node.")
    ignored: dict[str, int] = Field(
        description="The others by reason: `no_node`, `own_alert` (of slowrank), `forbidden_cluster`, …"
    )


@router.post("/alertmanager")
def receive_alerts(
    body: AlertNotification, services: ServicesDep, principal: TelemetryWriter
) -> AlertsAnswer:
    """Take alerts about nodes as corroborating evidence; 503: to be sent again, as Alertmanager does."""
    if services.sink is None:
        raise Problem(503, "ingest-unavailable", "this API has no pipeline; set SLOWRANK_KAFKA_BOOTSTRAP")
    only = principal.clusters[0] if len(principal.clusters) == 1 else services.settings.cluster
    alerts = [
        Alert(one.status == "firing", one.labels, one.annotations, one.startsAt, one.fingerprint)
        for one in body.alerts
    ]
    events, ignored = Reader(only, principal.clusters).events(alerts, services.now().timestamp())
    if events:
        try:
            for refused in services.sink.accept(events).values():
                ignored[refused.reason] += 1
        except ingest.SinkUnavailable as error:
            raise Problem(503, "ingest-unavailable", str(error), headers={"retry-after": "5"}) from error
    accepted = len(alerts) - ignored.total()
    services.metrics.ingested.labels("alertmanager").inc(accepted)
    for reason, count in ignored.items():
        services.metrics.rejected.labels(reason).inc(count)
    return AlertsAnswer(accepted=accepted, ignored=dict(ignored))
