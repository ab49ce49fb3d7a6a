"""Requests about API keys and the audit log."""

from collections.abc import Sequence

from slowrank.client.objects import ApiKey, AuditEntry, Page
from slowrank.client.request import Request, get, part


def keys() -> Request[Page[ApiKey]]:
    """Return the request for all keys."""
    return get("/keys")


def create_key(
    name: str, scopes: Sequence[str], *, clusters: Sequence[str] = (), days: int | None = None
) -> Request[ApiKey]:
    """Return the request for a new key; ``all`` stands for every scope, None for a key without expiry."""
    body = {"name": name, "scopes": list(scopes), "clusters": list(clusters), "days": days}
    return Request("POST", "/keys", json=body)


def revoke_key(key_id: str) -> Request[None]:
    """Return the request that revokes a key."""
    return Request("DELETE", f"/keys/{part(key_id)}")


def audit(*, limit: int = 100) -> Request[Page[AuditEntry]]:
    """Return the request for the audit log, newest entry first."""
    return get("/audit", limit=limit)
