"""API keys: create, list, revoke. A key can only create keys with a subset of its own rights."""

from datetime import datetime, timedelta
from typing import Any, Literal

from fastapi import APIRouter, Request, Response
from psycopg import Connection
from pydantic import BaseModel, Field

from api.audit import record
from api.deps import ServicesDep
from api.http.conditional import UNCHANGED, answer
from api.http.idempotency import IdempotentRoute
from api.http.problems import Problem, not_found
from api.http.times import Timestamp, rfc3339
from api.security.auth import SCOPES, Cluster, KeysAdmin, Principal, Scope
from store.access import keys
from store.access.keys import ApiKey

router = APIRouter(prefix="/api/v1/keys", tags=["keys"], route_class=IdempotentRoute)


_EXAMPLE: dict[str, Any] = {
    "id": "k7Q2mX9d",
    "name": "grafana",
    "scopes": ["findings:read", "telemetry:read"],
    "clusters": ["prod-a"],
    "created_by": "cli",
    "created_at": "2026-11-20T07:00:00Z",
    "last_used_at": "2026-11-25T01:00:00Z",
}


class KeyRequest(BaseModel, extra="forbid"):
    """A new key; ``all`` stands for every scope."""

    name: str = Field(min_length=1, max_length=128)
    scopes: list[Literal[Scope, "all"]] = Field(min_length=1, max_length=20)
    clusters: list[Cluster] = Field(default=[], max_length=100)
    days: int | None = Field(default=None, ge=1, le=3650)

    @property
    def granted(self) -> tuple[Scope, ...]:
        """The scopes, with ``all`` written out."""
        return SCOPES if "all" in self.scopes else tuple(s for s in SCOPES if s in self.scopes)


class ShownKey(BaseModel, json_schema_extra={"examples": [_EXAMPLE]}):
    """A key without its secret."""

    id: str
    name: str
    scopes: list[Scope]
    clusters: list[str] = Field(description="None: all.")
    created_by: str = Field(description="The key that created it, or `cli`.")
    created_at: Timestamp
    expires_at: Timestamp | None = None
    last_used_at: Timestamp | None = None
    revoked_at: Timestamp | None = None


class KeyPage(BaseModel):
    """All keys that the key may see."""

    items: list[ShownKey]
    next_cursor: str = Field(description="Always empty.")


class CreatedKey(ShownKey):
    """A new key with its token."""

    token: str = Field(description="Sent as `Authorization: Bearer`; shown this once.")


@router.get("", responses={200: {"model": KeyPage}, 304: UNCHANGED})
def read_keys(request: Request, services: ServicesDep, principal: KeysAdmin) -> Response:
    """List the keys, never their secrets; a key limited to clusters sees those limited like it."""
    with services.pool.connection() as conn:
        found = [key for key in keys.listed(conn) if principal.may_handle(key.clusters)]
    return answer(request, {"items": [_shown(key) for key in found], "next_cursor": ""})


@router.post("", status_code=201, response_model=CreatedKey, response_model_exclude_unset=True)
def create_key(
    body: KeyRequest, request: Request, response: Response, services: ServicesDep, principal: KeysAdmin
) -> dict[str, Any]:
    """Create a key, which ends with this one at the latest; its token is returned once, in this answer."""
    _check_no_escalation(body, principal)
    with services.pool.connection() as conn, conn.transaction():
        own = keys.get(conn, principal.key_id)
        until = own.expires_at if own else None
        key, token = store_key(conn, body, actor=principal.key_id, now=services.now(), until=until)
        record(conn, request, "key.create", key.id, {"name": key.name, "scopes": list(key.scopes)})
    response.headers["cache-control"] = "no-store"
    return _shown(key) | {"token": token}


@router.delete("/{key_id}", status_code=204)
def revoke_key(key_id: str, request: Request, services: ServicesDep, principal: KeysAdmin) -> None:
    """Revoke a key, at once and for good."""
    with services.pool.connection() as conn, conn.transaction():
        found = keys.get(conn, key_id)
        governed = found is not None and principal.may_handle(found.clusters)
        if not governed or not keys.revoke(conn, key_id, services.now()):
            raise not_found("valid key", key_id)
        record(conn, request, "key.revoke", key_id, {})


def store_key(
    conn: Connection[Any], wanted: KeyRequest, *, actor: str, now: datetime, until: datetime | None = None
) -> tuple[ApiKey, str]:
    """Store a new key that ends at ``until`` at the latest, and return it with its token."""
    wanted_end = None if wanted.days is None else now + timedelta(days=wanted.days)
    key_id, token, sha256 = keys.generate()
    key = ApiKey(
        id=key_id,
        name=wanted.name,
        sha256=sha256,
        scopes=wanted.granted,
        clusters=tuple(wanted.clusters),
        created_by=actor,
        created_at=now,
        expires_at=min((end for end in (wanted_end, until) if end), default=None),
    )
    keys.create(conn, key)
    return key, token


def _check_no_escalation(wanted: KeyRequest, principal: Principal) -> None:
    more = sorted(set(wanted.granted) - principal.scopes)
    if more:
        raise Problem(403, "forbidden", f"this key does not have {more[0]} and cannot grant it")
    if not principal.may_handle(wanted.clusters):
        named = ", ".join(principal.clusters)
        raise Problem(
            403,
            "forbidden",
            f"this key is limited to {named}; limit the new one to clusters among them",
        )


def _shown(key: ApiKey) -> dict[str, Any]:
    times = ("created_at", "expires_at", "last_used_at", "revoked_at")
    shown = {name: getattr(key, name) for name in times if getattr(key, name) is not None}
    return {
        "id": key.id,
        "name": key.name,
        "scopes": list(key.scopes),
        "clusters": list(key.clusters),
        "created_by": key.created_by,
        **{name: rfc3339(moment) for name, moment in shown.items()},
    }
