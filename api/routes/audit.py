"""The audit log, read only."""

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from api.deps import ServicesDep
from api.http.conditional import answer
from api.http.problems import Problem
from api.http.times import rfc3339
from api.security.auth import KeysAdmin
from store.access import audit, keys

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
