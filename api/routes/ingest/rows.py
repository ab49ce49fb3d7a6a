"""Telemetry over HTTP for hosts without Kafka: NDJSON, one row a line."""

from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool
from pydantic import BaseModel, Field

from api import ingest
from api.deps import Services, ServicesDep
from api.http.idempotency import IdempotentRoute
from api.http.problems import Problem
from api.security.auth import TelemetryWriter

router = APIRouter(prefix="/api/v1/ingest", tags=["ingest"], route_class=IdempotentRoute)

# JSON Schema can require a line that is not blank and no more of NDJSON: other errors in the body are a 409.
_ROWS = {"type": "string", "minLength": 1, "pattern": r"\S", "description": "One JSON row a line."}

# Documents a body of rows.
NDJSON_BODY = {"requestBody": {"required": True, "content": {"application/x-ndjson": {"schema": _ROWS}}}}


class LineError(BaseModel):
    """A refused line."""

    pointer: str = Field(description="`#/body/LINE/FIELD`, lines counted from 0.")
    reason: str
    detail: str


class IngestAnswer(BaseModel):
    """Result of an ingest request."""

    accepted: int = Field(description="Accepted lines; with none the answer is a 409.")
    rejected: int = Field(description="Refused lines; sent again, they are refused again.")
    reasons: dict[str, int] = Field(description="The refused lines by reason.")
    errors: list[LineError] = Field(description="The first refused lines.")


@router.post("/samples", status_code=202, openapi_extra=NDJSON_BODY)
async def ingest_samples(request: Request, services: ServicesDep, principal: TelemetryWriter) -> IngestAnswer:
    """Ingest step, sample and event rows: valid lines are accepted, others reported; 409 if none is valid."""
    sink = services.sink
    if sink is None:
        raise _unavailable("this API has no pipeline to send telemetry to; set SLOWRANK_KAFKA_BOOTSTRAP")
    # In a thread: parsing 20 MiB of JSON would block the event loop.
    batch = await run_in_threadpool(_read, services, await plain_body(request), principal.clusters)
    if batch.records:
        try:
            batch.take_back(await run_in_threadpool(sink.accept, batch.records))
        except ingest.SinkUnavailable as error:
            raise _unavailable(str(error)) from error
    services.metrics.ingested.labels("http").inc(batch.accepted)
    for reason, count in batch.rejected.items():
        services.metrics.rejected.labels(reason).inc(count)
    errors = [refusal.as_error() for refusal in batch.errors]
    if not batch.accepted:
        raise _nothing_taken(batch, errors)
    return IngestAnswer(
        accepted=batch.accepted,
        rejected=batch.rejected.total(),
        reasons=dict(batch.rejected),
        errors=[LineError(**error) for error in errors],
    )


def _nothing_taken(batch: ingest.Batch, errors: list[dict[str, str]]) -> Problem:
    if not errors:
        return Problem(422, "no-rows", "the body has no row; send one JSON object per line (docs/records.md)")
    reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(batch.rejected.items()))
    detail = f"no line was accepted ({reasons}); first: {errors[0]['pointer']}: {errors[0]['detail']}"
    return Problem(409, "no-usable-row", detail, errors=errors)


async def plain_body(request: Request) -> bytes:
    """Return the body, inflated where it is gzip. Raises the 400, 413 and 415 problems."""
    data = await request.body()
    encoding = request.headers.get("content-encoding", "identity").lower()
    # A file that was compressed beforehand is often posted without the header.
    if encoding == "identity" and not ingest.is_gzip(data):
        return data
    if encoding not in ("identity", "gzip"):
        raise Problem(415, "unsupported-encoding", "send the body plain or with Content-Encoding: gzip")
    return await run_in_threadpool(inflated, data)


def inflated(data: bytes) -> bytes:
    """Return a gunzipped body. Raises the 400 and 413 problems."""
    try:
        return ingest.inflate(data)
    except ingest.TooLarge as error:
        raise Problem(413, "too-large", str(error)) from error
    except ValueError as error:
        raise Problem(400, "bad-body", str(error)) from error


def _read(services: Services, data: bytes, clusters: tuple[str, ...]) -> ingest.Batch:
    try:
        return ingest.read(data, now=services.now().timestamp(), clusters=clusters)
    except ingest.TooManyLines as error:
        raise Problem(413, "too-large", str(error)) from error


def _unavailable(detail: str) -> Problem:
    return Problem(503, "ingest-unavailable", detail, headers={"retry-after": "5"})
