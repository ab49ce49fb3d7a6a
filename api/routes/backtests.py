"""Backtests: recorded telemetry run through the detectors of this installation, as jobs.

The API stores the recording and shows the result; a runner beside it (``cli.run.backtests``) does the work in
a process of its own.
"""

import gzip
import json
from io import BytesIO
from itertools import islice
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.concurrency import run_in_threadpool
from pydantic import BaseModel, Field

from api.audit import record
from api.deps import ServicesDep
from api.http import conditional
from api.http.idempotency import IdempotentRoute
from api.http.ids import new_id
from api.http.problems import Problem, not_found
from api.http.times import Timestamp, rfc3339
from api.routes.ingest.rows import NDJSON_BODY, plain_body
from api.security.auth import FindingsReader, Principal, TelemetryWriter
from slowrank.telemetry.names import kind_of
from slowrank.telemetry.rows.formats import is_array, is_csv, wrong_separator
from store.findings import backtests
from store.findings.backtests import Backtest, State

router = APIRouter(prefix="/api/v1/backtests", tags=["backtests"], route_class=IdempotentRoute)

# Lines that are looked at before a recording is taken (chosen: a file of another format shows at once).
LOOKED_AT = 100

_EXAMPLE: dict[str, Any] = {
    "id": "bkt_01KB2P8TA0Q6N3X1R5J7M9V4CE",
    "state": "done",
    "created_at": "2026-11-20T09:00:00Z",
    "created_by": "k7Q2mX9d",
    "ended_at": "2026-11-20T09:00:07Z",
    "result": {
        "rows": 51200,
        "findings": 1,
        "by_kind": {"straggler.fail_slow": 1},
        "by_severity": {"critical": 1},
        "notes": [],
        "items": [],
    },
}


class BacktestResult(BaseModel):
    """What the detectors found in a recording."""

    rows: int = Field(description="Rows that were read.")
    findings: int = Field(description="Findings, suspected ones included.")
    by_kind: dict[str, int] = Field(description="Findings that were opened, by kind.")
    by_severity: dict[str, int] = Field(description="Those, by severity.")
    notes: list[str] = Field(description="Rows that were set aside, and other remarks.")
    items: list[dict[str, Any]] = Field(
        description="The findings as `finding.v1`, each in its final version, the dearest first; at most 500."
    )


class ShownBacktest(BaseModel, json_schema_extra={"examples": [_EXAMPLE]}):
    """A backtest."""

    id: str
    state: State
    created_at: Timestamp
    created_by: str = Field(description="The key that posted the recording.")
    ended_at: Timestamp | None = None
    error: str | None = Field(default=None, description="Why it failed.")
    result: BacktestResult | None = Field(default=None, description="Once it is done; not in the list.")


class BacktestPage(BaseModel):
    """The newest backtests, at most 100; a key that is limited to clusters sees its own."""

    items: list[ShownBacktest]
    next_cursor: str = Field(description="Always empty.")


@router.post(
    "",
    status_code=202,
    response_model=ShownBacktest,
    response_model_exclude_unset=True,
    openapi_extra=NDJSON_BODY,
)
async def create_backtest(
    request: Request, response: Response, services: ServicesDep, principal: TelemetryWriter
) -> dict[str, Any]:
    """Run recorded rows, at most 20 MiB of NDJSON, through the detectors; `Location` has the result."""
    if not services.runs_backtests:
        raise Problem(503, "no-backtests", "no process beside this API runs backtests")
    rows, now = await plain_body(request), services.now()
    if not rows.strip():
        raise Problem(422, "no-rows", "the body has no row; send one JSON object per line (docs/records.md)")
    if not (is_csv(rows) or is_array(rows) or _has_row(rows)):
        detail = wrong_separator(rows) or (
            f"none of the first {LOOKED_AT} lines is a row of telemetry: send NDJSON, a JSON array of rows "
            "or CSV whose first line names the columns, ts among them (docs/records.md); plain or gzip"
        )
        raise Problem(409, "no-usable-row", detail)

    def store() -> Backtest:
        packed, id_ = gzip.compress(rows, 6), new_id("bkt", now)
        with services.pool.connection() as conn, conn.transaction():
            if not backtests.add(conn, id_, by=principal.key_id, now=now, recording=packed):
                detail = f"{backtests.MAX_WAITING} recordings wait already; try again later"
                raise Problem(429, "too-many-requests", detail, headers={"retry-after": "30"})
            record(conn, request, "backtest.create", id_, {"bytes": len(rows)})
            made = backtests.get(conn, id_)
        assert made is not None
        return made

    made = await run_in_threadpool(store)
    response.headers["location"] = f"/api/v1/backtests/{made.id}"
    return _shown(made)


@router.get("", responses={200: {"model": BacktestPage}, 304: conditional.UNCHANGED})
def read_backtests(request: Request, services: ServicesDep, principal: FindingsReader) -> Response:
    """List backtests, the newest first, without their results."""
    own = principal.key_id if principal.clusters else None
    with services.pool.connection() as conn:
        found = backtests.listed(conn, by=own)
    items = [{k: v for k, v in _shown(one).items() if k != "result"} for one in found]
    return conditional.answer(request, {"items": items, "next_cursor": ""})


@router.get("/{backtest_id}", responses={200: {"model": ShownBacktest}, 304: conditional.UNCHANGED})
def read_backtest(
    backtest_id: str, request: Request, services: ServicesDep, principal: FindingsReader
) -> Response:
    """Return a backtest with its result, once it is done."""
    with services.pool.connection() as conn:
        found = backtests.get(conn, backtest_id)
    if found is None or not _may_see(principal, found):
        raise not_found("backtest", backtest_id)
    return conditional.answer(request, _shown(found))


def _has_row(rows: bytes) -> bool:
    return any(map(_is_row, islice(filter(None, map(bytes.strip, BytesIO(rows))), LOOKED_AT)))


def _is_row(line: bytes) -> bool:
    try:
        row = json.loads(line)
    # Nested too deeply.
    except (ValueError, RecursionError):
        return False
    return isinstance(row, dict) and "ts" in row and kind_of(row) in ("step", "sample", "event")


def _may_see(principal: Principal, found: Backtest) -> bool:
    # A recording may name any cluster.
    return not principal.clusters or found.created_by == principal.key_id


def _shown(found: Backtest) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "id": found.id,
        "state": found.state,
        "created_at": rfc3339(found.created_at),
        "created_by": found.created_by,
    }
    if found.ended_at is not None:
        shown["ended_at"] = rfc3339(found.ended_at)
    if found.error:
        shown["error"] = found.error
    if found.result is not None:
        shown["result"] = found.result
    return shown
