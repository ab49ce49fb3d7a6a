"""Telemetry over HTTP, for hosts without Kafka: NDJSON rows of the JSON twin."""

from typing import Any

from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool

from api import ingest
from api.auth import TelemetryWriter
from api.deps import Services, ServicesDep
from api.problems import Problem

router = APIRouter(prefix="/api/v1/ingest", tags=["ingest"])

_BODY = {"application/x-ndjson": {"schema": {"type": "string", "description": "One JSON row a line."}}}


@router.post("/samples", status_code=202, openapi_extra={"requestBody": {"required": True, "content": _BODY}})
async def ingest_samples(
    request: Request, services: ServicesDep, principal: TelemetryWriter
) -> dict[str, Any]:
    """Take step, sample and event rows; says how many were taken and why others were not."""
    sink = services.sink
    if sink is None:
        raise _unavailable("this API has no pipeline behind it; set SLOWRANK_KAFKA_BOOTSTRAP")
    # Off the event loop, for 20 MiB of JSON take their time.
    batch = await run_in_threadpool(_read, services, await _body(request), principal.clusters)
    if batch.records:
        try:
            batch.take_back(await run_in_threadpool(sink.accept, batch.records))
        except ingest.SinkUnavailable as error:
            raise _unavailable(str(error)) from error
    services.metrics.ingested.labels("http").inc(batch.accepted)
    for reason, count in batch.rejected.items():
        services.metrics.rejected.labels(reason).inc(count)
    return {
        "accepted": batch.accepted,
        "rejected": batch.rejected.total(),
        "reasons": dict(batch.rejected),
        "examples": batch.examples,
    }


async def _body(request: Request) -> bytes:
    data = await request.body()
    encoding = request.headers.get("content-encoding", "identity").lower()
    if encoding == "identity":
        return data
    if encoding != "gzip":
        raise Problem(415, "unsupported-encoding", "send the body plain or with Content-Encoding: gzip")
    try:
        return await run_in_threadpool(ingest.inflate, data)
    except ValueError as error:
        raise Problem(400, "bad-body", str(error)) from error


def _read(services: Services, data: bytes, clusters: tuple[str, ...]) -> ingest.Batch:
    return ingest.read(data, now=services.now().timestamp(), clusters=clusters)


def _unavailable(detail: str) -> Problem:
    return Problem(503, "ingest-unavailable", detail, headers={"retry-after": "5"})
