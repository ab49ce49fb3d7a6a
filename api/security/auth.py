"""Who asks and what they may: bearer keys ``srk_<id>_<secret>``, scopes, and a rate for each key."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Annotated, Literal, get_args

from fastapi import Depends, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import Field

from api.deps import Services, ServicesDep
from api.limits import FAILED_AUTH, READ, WRITE
from api.problems import Problem
from store import keys

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
Cluster = Annotated[str, Field(pattern=r"^[A-Za-z0-9._:/-]{1,128}$")]
"""A cluster's name, as a body may give it."""

# A token has 81 characters; what is much longer is not even hashed.
_MAX_TOKEN = 256
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_bearer = HTTPBearer(auto_error=False, scheme_name="key", description="`slowrank key create` makes one.")
CredentialsDep = Annotated[HTTPAuthorizationCredentials | None, Security(_bearer)]


@dataclass(frozen=True, slots=True)
class Principal:
    """The key behind a request; no ``clusters`` means all of them."""

    key_id: str
    scopes: frozenset[str]
    clusters: tuple[str, ...] = ()

    def may_see(self, cluster: str) -> bool:
        """Whether this key reaches ``cluster``."""
        return not self.clusters or cluster in self.clusters

    def may_handle(self, clusters: Collection[str]) -> bool:
        """Whether this key may handle what is limited to ``clusters`` (none: not limited)."""
        return not self.clusters or bool(clusters and set(clusters) <= set(self.clusters))


def authenticated(request: Request, services: ServicesDep, credentials: CredentialsDep) -> Principal:
    """Return the principal of the request's key. Raises the 401 or 429 problem."""
    principal = _principal(services, credentials)
    client = request.client.host if request.client else "unknown"
    if principal is None:
        # By address, for there is no key to count by.
        _take(services, f"failed:{client}", failed=True, safe=False)
        raise Problem(
            401,
            "unauthorized",
            "send Authorization: Bearer srk_…; `slowrank key create` makes a key",
            headers={"www-authenticate": 'Bearer realm="slowrank"'},
        )
    _take(services, f"key:{principal.key_id}", failed=False, safe=request.method in _SAFE)
    request.state.key_id = principal.key_id
    return principal


AnyKey = Annotated[Principal, Depends(authenticated)]


def require(scope: str) -> Callable[[Principal], Principal]:
    """Return the dependency that lets only keys with ``scope`` pass."""
    if scope not in SCOPES:
        raise ValueError(f"{scope} is no scope")

    def check(principal: AnyKey) -> Principal:
        if scope not in principal.scopes:
            raise Problem(403, "forbidden", f"this key lacks the scope {scope}")
        return principal

    return check


def metrics_reader(request: Request, services: ServicesDep, credentials: CredentialsDep) -> None:
    """Let a scrape pass: with a key of scope ``metrics:read``, or any where the setting says so."""
    if not services.settings.api_metrics_public:
        require("metrics:read")(authenticated(request, services, credentials))


FindingsReader = Annotated[Principal, Depends(require("findings:read"))]
FindingsWriter = Annotated[Principal, Depends(require("findings:write"))]
TelemetryWriter = Annotated[Principal, Depends(require("telemetry:write"))]
WebhooksAdmin = Annotated[Principal, Depends(require("webhooks:admin"))]
KeysAdmin = Annotated[Principal, Depends(require("keys:admin"))]


def _principal(services: Services, credentials: HTTPAuthorizationCredentials | None) -> Principal | None:
    if credentials is None or len(credentials.credentials) > _MAX_TOKEN:
        return None
    now = services.now()
    with services.pool.connection() as conn:
        key = keys.verify(conn, credentials.credentials, now)
        if key is None:
            return None
        keys.touch(conn, key.id, now)
    return Principal(key.id, frozenset(key.scopes), key.clusters)


def _take(services: Services, name: str, *, failed: bool, safe: bool) -> None:
    rate = FAILED_AUTH if failed else READ if safe else WRITE
    wait = services.limiter.take(f"{name}:{'r' if safe else 'w'}", rate, services.monotonic())
    if wait:
        detail = f"at most {rate.per_second:g} requests a second, {rate.burst:g} at once"
        raise Problem(429, "too-many-requests", detail, headers={"retry-after": str(int(wait) + 1)})
