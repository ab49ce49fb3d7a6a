"""Writes audit log entries for requests: key id, action, client address and request id."""

from typing import Any

from fastapi import Request
from psycopg import Connection

from api.deps import services
from store.access import audit
from store.access.audit import Entry


def record(conn: Connection[Any], request: Request, action: str, target: str, detail: dict[str, Any]) -> None:
    """Append an entry in the caller's transaction, so that no change goes unrecorded."""
    origin = {
        "ip": request.client.host if request.client else "",
        "request_id": request.state.request_id,
    }
    entry = Entry(
        at=services(request).now(),
        actor=request.state.key_id,
        action=action,
        target=target,
        detail=detail | origin,
    )
    audit.record(conn, entry)
