"""Authentication by bearer keys ``srk_<id>_<secret>``, authorisation by scope, and rate limits per key.

A browser's session cookie stands for its key where nothing is changed; forms are checked in ``api.pages``.
"""

import base64
from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated, Literal, get_args

from fastapi import Depends, Request, Security
from fastapi.concurrency import run_in_threadpool
from fastapi.dependencies.models import Dependant
from fastapi.security import HTTPAuthorizationCredentials, HTTPBasic, HTTPBearer
from pydantic import Field

from api.deps import Services, ServicesDep
from api.deps import services as services_of
from api.http.limits import FAILED_AUTH, READ, TELEMETRY, WRITE, Rate, quota_headers
from api.http.problems import Problem
from api.http.text_forms import in_form
from api.security.sessions import token_of
from store.access import keys, sessions
from store.access.keys import ApiKey

Scope = Literal[
    "findings:read",
    "findings:write",
    "telemetry:read",
    "telemetry:write",
    "webhooks:admin",
    "keys:admin",
    "metrics:read",
]
SCOPES: tuple[Scope, ...] = get_args(Scope)
_CLUSTER_PATTERN = r"^[A-Za-z0-9._:/-]{1,128}$"
_CLUSTER_FORM = "a cluster's name has at most 128 letters, digits and ._:/-"
Cluster = Annotated[str, Field(pattern=_CLUSTER_PATTERN), in_form(_CLUSTER_PATTERN, _CLUSTER_FORM)]
"""A cluster name in a request body."""

# A token has 81 characters; much longer ones are not hashed.
_MAX_TOKEN = 256
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
# Sent without pause by agents that may drop what is refused with a 429 (Prometheus' retry_on_http_429).
_TELEMETRY_PATHS = frozenset({"/api/v1/write", "/v1/metrics"})
_bearer = HTTPBearer(auto_error=False, scheme_name="key", description="`slowrank key create` makes one.")
# Where clients of Alertmanager ask, some of which can send a password only.
_PASSWORD_PATHS = "/api/v2/"

# Documents that a key may be the password; ``authenticated`` reads it.
PASSWORD = HTTPBasic(
    auto_error=False, scheme_name="password", description="A key as password, with any user name."
)
CredentialsDep = Annotated[HTTPAuthorizationCredentials | None, Security(_bearer)]


@dataclass(frozen=True, slots=True)
class Principal:
    """The key of a request; no ``clusters`` means all clusters."""

    key_id: str
    scopes: frozenset[str]
    clusters: tuple[str, ...] = ()
    name: str = ""
    """That of the key, for people."""

    @property
    def author(self) -> str:
        """Who acts, in what people read: the name of the key, its id where it has none."""
        return self.name or self.key_id

    def may_see(self, cluster: str) -> bool:
        """Return whether the key may read ``cluster``."""
        return not self.clusters or cluster in self.clusters

    def may_handle(self, clusters: Collection[str]) -> bool:
        """Return whether the key may manage an object limited to ``clusters`` (none: all clusters)."""
        return not self.clusters or bool(clusters and set(clusters) <= set(self.clusters))


def authenticated(request: Request, services: ServicesDep, credentials: CredentialsDep) -> Principal:
    """Return the principal of the request's key. Raises the 401 or 429 problem."""
    return admitted(request, services, _key(request, services, credentials))


def is_valid(request: Request, services: Services, credentials: HTTPAuthorizationCredentials | None) -> bool:
    """Return whether the key or session of an admitted request is still valid; counts no request."""
    return _key(request, services, credentials) is not None


async def require_key(request: Request) -> None:
    """Raise the 401 or 429 problem for a request without a valid key, of which no dependency has run."""
    credentials = await _bearer(request)
    await run_in_threadpool(authenticated, request, services_of(request), credentials)


def admitted(request: Request, services: Services, key: ApiKey | None) -> Principal:
    """Return the principal of a key and count the request. Raises the 429 problem, and 401 for no key."""
    client = request.client.host if request.client else "unknown"
    if key is None:
        # By address, as there is no key.
        _take(services, f"failed:{client}:w", FAILED_AUTH)
        raise Problem(
            401,
            "unauthorized",
            "send Authorization: Bearer srk_…; `slowrank key create` makes a key",
            headers={"www-authenticate": 'Bearer realm="slowrank"'},
        )
    use, rate = _use(request)
    name = f"key:{key.id}:{use}"
    try:
        _take(services, name, rate)
    finally:
        # A refusal says as well how much is left.
        left = services.limiter.left(name, rate, services.monotonic())
        request.state.quota = quota_headers(use, rate, left)
    request.state.key_id = key.id
    return Principal(key.id, frozenset(key.scopes), key.clusters, key.name)


AnyKey = Annotated[Principal, Depends(authenticated)]


@dataclass(frozen=True, slots=True)
class Requires:
    """The dependency that requires a key with ``scope``."""

    scope: Scope

    def __call__(self, principal: AnyKey) -> Principal:
        """Return the principal. Raises the 403 problem."""
        if self.scope not in principal.scopes:
            raise Problem(403, "forbidden", f"this key lacks the scope {self.scope}")
        return principal


@dataclass(frozen=True, slots=True)
class MetricsReader:
    """The dependency that requires ``scope``, unless the setting makes metrics public."""

    scope: Scope = "metrics:read"

    def __call__(self, request: Request, services: ServicesDep, credentials: CredentialsDep) -> None:
        """Raise the 401, 403 or 429 problem."""
        if not services.settings.api_metrics_public:
            Requires(self.scope)(authenticated(request, services, credentials))


def scope_of(dependant: Dependant) -> Scope | None:
    """Return the scope that a route's dependencies declare; None where they declare none."""
    declared: Scope | None = getattr(dependant.call, "scope", None)
    return declared or next(filter(None, map(scope_of, dependant.dependencies)), None)


FindingsReader = Annotated[Principal, Depends(Requires("findings:read"))]
FindingsWriter = Annotated[Principal, Depends(Requires("findings:write"))]
TelemetryReader = Annotated[Principal, Depends(Requires("telemetry:read"))]
TelemetryWriter = Annotated[Principal, Depends(Requires("telemetry:write"))]
WebhooksAdmin = Annotated[Principal, Depends(Requires("webhooks:admin"))]
KeysAdmin = Annotated[Principal, Depends(Requires("keys:admin"))]


def key_of_token(services: Services, token: str) -> ApiKey | None:
    """Return the valid key of a token and record its use."""
    if len(token) > _MAX_TOKEN:
        return None
    now = services.now()
    with services.pool.connection() as conn:
        key = keys.verify(conn, token, now)
        if key is not None:
            keys.touch(conn, key.id, now)
    return key


def _key(
    request: Request, services: Services, credentials: HTTPAuthorizationCredentials | None
) -> ApiKey | None:
    if credentials is not None:
        return key_of_token(services, credentials.credentials)
    if request.url.path.startswith(_PASSWORD_PATHS) and (password := _password(request)):
        return key_of_token(services, password)
    session = token_of(request)
    # A cookie is sent by itself: it proves no intention to change anything.
    if not session or request.method not in _SAFE:
        return None
    with services.pool.connection() as conn:
        return sessions.key_of(conn, session, services.now())


def _password(request: Request) -> str:
    scheme, _, encoded = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return ""
    try:
        return base64.b64decode(encoded, validate=True).decode().partition(":")[2]
    except ValueError:
        return ""


def _use(request: Request) -> tuple[str, Rate]:
    """Return the name of a request's bucket, and its rate."""
    if request.url.path in _TELEMETRY_PATHS:
        return "t", TELEMETRY
    return ("r", READ) if request.method in _SAFE else ("w", WRITE)


def _take(services: Services, name: str, rate: Rate) -> None:
    wait = services.limiter.take(name, rate, services.monotonic())
    if wait:
        detail = f"at most {rate.per_second:g} requests a second, {rate.burst:g} at once; see Retry-After"
        if rate == WRITE:
            detail += "; for telemetry, send rows of all ranks and devices of a node in one POST a second"
        raise Problem(429, "too-many-requests", detail, headers={"retry-after": str(int(wait) + 1)})
