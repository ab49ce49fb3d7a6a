"""Telemetry that sites already have: Prometheus remote write, and OTLP metrics over HTTP."""

import threading
from collections import Counter
from collections.abc import Callable

from fastapi import APIRouter, Request, Response
from fastapi.concurrency import run_in_threadpool
from pydantic import BaseModel, Field

from api import ingest
from api.deps import Services, ServicesDep
from api.foreign import otlp, remote_write
from api.foreign.measurement import BadBody, Decoded
from api.foreign.receiver import Full
from api.foreign.ticks import Source, WriteScope
from api.http.idempotency import IdempotentRoute
from api.http.problems import Problem
from api.routes.ingest.rows import inflated
from api.security.auth import Principal, TelemetryReader, TelemetryWriter

router = APIRouter(prefix="/api/v1", tags=["ingest"], route_class=IdempotentRoute)
otlp_router = APIRouter(prefix="/v1", tags=["ingest"])

# Nodes and unknown names in an answer. Chosen: some 100 kB.
MAX_LISTED = 1000
# A body takes up to forty times its size while it is parsed, before its parts are counted: one at a time,
# which takes no longer, as only one thread runs.
_DECODING = threading.Lock()
_BINARY = {"schema": {"type": "string", "format": "binary"}}


def _body_of(*media_types: str) -> dict[str, object]:
    return {"requestBody": {"required": True, "content": dict.fromkeys(media_types, _BINARY)}}


class SendingNode(BaseModel):
    """A node whose telemetry comes from another system."""

    cluster: str
    node: str
    source: Source
    resolution_seconds: float | None = Field(description="Seconds between its readings; null until known.")
    age_seconds: float = Field(description="Since its last measurement arrived.")


class ForeignSources(BaseModel):
    """What other systems send to this process."""

    nodes: list[SendingNode] = Field(description=f"At most {MAX_LISTED}, by name.")
    unused: dict[str, int] = Field(description="Measurements that fill no column, by reason.")
    unknown_metrics: dict[str, int] = Field(description="Metric names without a column, most frequent first.")


@router.post("/write", status_code=204, openapi_extra=_body_of(otlp.PROTOBUF))
async def receive_remote_write(
    request: Request, services: ServicesDep, principal: TelemetryWriter
) -> Response:
    """Prometheus remote write 1.0. 400: not to be sent again; 429 and 5xx: to be sent again."""
    _require(request, "content-encoding", ("snappy",))
    _require(request, "content-type", (otlp.PROTOBUF,))
    if "io.prometheus.write.v2" in request.headers["content-type"]:
        raise Problem(415, "unsupported-encoding", "remote write 2.0 is not accepted, only 1.0")
    body = await request.body()
    decoded = await run_in_threadpool(_decoded, lambda: remote_write.decode(body))
    refused = await run_in_threadpool(_take, services, decoded, _sender(services, principal, "remote_write"))
    # Histograms are no error of the sender: other metrics of the same program are used.
    refused.pop("histogram", None)
    if refused:
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(refused.items()))
        raise Problem(400, "refused-samples", f"the other samples were accepted, these were not: {reasons}")
    return Response(status_code=204)


@otlp_router.post("/metrics", openapi_extra=_body_of(otlp.PROTOBUF, otlp.JSON))
async def receive_otlp(request: Request, services: ServicesDep, principal: TelemetryWriter) -> Response:
    """OTLP metrics; refused points are a partial success. 429 and 503: to be sent again."""
    media_type = _require(request, "content-type", (otlp.PROTOBUF, otlp.JSON))
    body = await request.body()
    if _require(request, "content-encoding", ("identity", "gzip"), default="identity") == "gzip":
        body = await run_in_threadpool(inflated, body)
    decoded = await run_in_threadpool(_decoded, lambda: otlp.decode(body, media_type))
    refused = await run_in_threadpool(_take, services, decoded, _sender(services, principal, "otlp"))
    return Response(otlp.answer(refused, media_type), media_type=media_type)


@router.get("/ingest/sources")
def read_sources(services: ServicesDep, principal: TelemetryReader) -> ForeignSources:
    """List the nodes whose telemetry comes from other systems, their resolution, and what is not used."""
    now = services.now().timestamp()
    unused = services.foreign.unused()
    nodes = [node for node in services.foreign.nodes() if principal.may_see(node.cluster)]
    names = sorted(unused.names.items(), key=lambda item: (-item[1], item[0]))
    return ForeignSources(
        nodes=[
            SendingNode(
                cluster=node.cluster,
                node=node.node,
                source=node.source,
                resolution_seconds=node.resolution,
                age_seconds=round(now - node.received, 3),
            )
            for node in nodes[:MAX_LISTED]
        ],
        unused=dict(unused.reasons),
        unknown_metrics=dict(names[:MAX_LISTED]),
    )


def _require(request: Request, header: str, values: tuple[str, ...], default: str = "") -> str:
    """Return the value of a header without its parameters. Raises the 415 problem for an unexpected one."""
    value = request.headers.get(header, default).partition(";")[0].strip().lower()
    if value not in values:
        raise Problem(415, "unsupported-encoding", f"{header} is {value[:40]!r}; send {' or '.join(values)}")
    return value


def _decoded(decode: Callable[[], Decoded]) -> Decoded:
    try:
        with _DECODING:
            return decode()
    except BadBody as error:
        raise Problem(400, "bad-body", str(error)) from error


def _sender(services: Services, principal: Principal, source: Source) -> WriteScope:
    default = principal.clusters[0] if len(principal.clusters) == 1 else services.settings.cluster
    return WriteScope(source, default, principal.clusters)


def _take(services: Services, decoded: Decoded, sender: WriteScope) -> Counter[str]:
    if services.sink is None:
        raise Problem(503, "ingest-unavailable", "this API has no pipeline; set SLOWRANK_KAFKA_BOOTSTRAP")
    try:
        refused = services.foreign.take(decoded, sender, services.sink, services.now().timestamp())
    except Full as error:
        services.metrics.rejected.labels("too_many_waiting").inc(len(decoded.measurements))
        raise Problem(503, "too-many-waiting", str(error), headers={"retry-after": "5"}) from error
    except ingest.SinkUnavailable as error:
        raise Problem(503, "ingest-unavailable", str(error), headers={"retry-after": "5"}) from error
    finally:
        services.metrics.waiting.set(services.foreign.waiting())
    services.metrics.ingested.labels(sender.source).inc(len(decoded.measurements))
    for reason, count in refused.items():
        services.metrics.rejected.labels(reason).inc(count)
    return refused
