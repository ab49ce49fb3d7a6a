"""The audit log, read only."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, Field

from api.deps import ServicesDep
from api.http.conditional import UNCHANGED, answer
from api.http.problems import Problem
from api.http.times import Timestamp, rfc3339
from api.security.auth import KeysAdmin
from store.access import audit, keys

router = APIRouter(prefix="/api/v1/audit", tags=["audit"])

_FILTERS = {"list": "audit"}
_EXAMPLE: dict[str, Any] = {
    "seq": 412,
    "at": "2026-11-20T07:36:10Z",
    "actor": "anna",
    "key_id": "k7Q2mX9d",
    "action": "finding.acknowledge",
    "target": "fnd_01JD7Q4Y6R8V2M3K5N9P0S1T2W",
    "detail": {"ip": "10.0.0.7", "request_id": "01JD7Q5B2C"},
}


class AuditEntry(BaseModel, json_schema_extra={"examples": [_EXAMPLE]}):
    """Who did what."""

    seq: int = Field(description="Grows by one with each entry.")
    at: Timestamp
    actor: str = Field(description="Name of the key that acted, or `cli`.")
    key_id: str | None = Field(default=None, description="The key; absent where there was none.")
    action: str
    target: str = Field(description="Id of what was changed.")
    detail: dict[str, Any] = Field(description="Values of the action, client's address, request's id.")


class AuditPage(BaseModel):
    """One page of the log, the newest entry first."""

    items: list[AuditEntry]
    next_cursor: str = Field(description="Empty on the last page.")


@router.get("", responses={200: {"model": AuditPage}, 304: UNCHANGED})
def read_audit(
    request: Request,
    services: ServicesDep,
    principal: KeysAdmin,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    cursor: Annotated[str | None, Query(max_length=1024)] = None,
) -> Response:
    """List who did what in all clusters, newest first; entries are hash-chained and never change.

    ``actor`` is the name of the key that acted, ``key_id`` the key.
    """
    if principal.clusters:
        raise Problem(
            403,
            "forbidden",
            "the audit log covers all clusters; use a key that is not limited to some",
        )
    before = services.cursors.open(cursor, _FILTERS)[0] if cursor else None
    with services.pool.connection() as conn:
        entries = audit.listed(conn, before=before, limit=limit)
        names = keys.names(conn, {e.actor for e in entries})
    more = len(entries) == limit and entries[-1].seq > 1
    items = [
        {
            "seq": e.seq,
            "at": rfc3339(e.at),
            "actor": names.get(e.actor) or e.actor,
            **({"key_id": e.actor} if e.actor in names else {}),
            "action": e.action,
            "target": e.target,
            "detail": e.detail,
        }
        for e in entries
    ]
    next_cursor = services.cursors.seal([entries[-1].seq], _FILTERS) if more else ""
    return answer(request, {"items": items, "next_cursor": next_cursor})
