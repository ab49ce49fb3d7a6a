"""The audit log, read only."""

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from api.deps import ServicesDep
from api.http.conditional import answer
from api.http.problems import Problem
from api.http.times import rfc3339
from api.security.auth import KeysAdmin
from store.access import audit

router = APIRouter(prefix="/api/v1/audit", tags=["audit"])

_FILTERS = {"list": "audit"}


@router.get("")
def read_audit(
    request: Request,
    services: ServicesDep,
    principal: KeysAdmin,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    cursor: Annotated[str | None, Query(max_length=1024)] = None,
) -> Response:
    """List who did what in all clusters, newest first; entries are hash-chained and never change."""
    if principal.clusters:
        raise Problem(
            403,
            "forbidden",
            "the audit log covers all clusters; use a key that is not limited to some",
        )
    before = services.cursors.open(cursor, _FILTERS)[0] if cursor else None
    with services.pool.connection() as conn:
        entries = audit.listed(conn, before=before, limit=limit)
    more = len(entries) == limit and entries[-1].seq > 1
    items = [
        {
            "seq": e.seq,
            "at": rfc3339(e.at),
            "actor": e.actor,
            "action": e.action,
            "target": e.target,
            "detail": e.detail,
        }
        for e in entries
    ]
    next_cursor = services.cursors.seal([entries[-1].seq], _FILTERS) if more else ""
    return answer(request, {"items": items, "next_cursor": next_cursor})
