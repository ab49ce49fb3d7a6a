"""``/api/v2/silences`` and ``/silence/{id}``: the silences of ``/api/v1`` for clients of Alertmanager."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response, Security
from psycopg import Connection
from pydantic import BaseModel, Field

from alerts.silence import Matcher, Silence
from api.alertmanager.matchers import Filters, parsed
from api.audit import record
from api.deps import ServicesDep
from api.http import conditional
from api.http.idempotency import IdempotentRoute
from api.http.problems import not_found
from api.routes.silences import MatcherBody, SilenceBody, reaches, save_silence, shown, silence_of
from api.security.auth import PASSWORD, FindingsReader, FindingsWriter, Principal
from store.findings import silences

router = APIRouter(
    prefix="/api/v2", tags=["alertmanager"], dependencies=[Security(PASSWORD)], route_class=IdempotentRoute
)


# Clients send what they read back, with fields of later releases.
class PostedSilence(SilenceBody, extra="ignore"):
    """A silence of Alertmanager's form; with the ``id`` of one that has not ended it replaces that."""

    id: str | None = Field(default=None, max_length=64)
    createdBy: str = Field(
        default="", max_length=128, description="A name for people; the key stays beside it."
    )


class SilenceState(BaseModel):
    """Derived from the time: `pending`, `active` or `expired`."""

    state: str


class ReadSilence(BaseModel):
    """A silence as Alertmanager's ``gettableSilence``."""

    id: str
    status: SilenceState
    matchers: list[MatcherBody]
    startsAt: str
    endsAt: str
    updatedAt: str
    createdBy: str
    comment: str


class SilenceId(BaseModel):
    """The id of a silence that was stored."""

    silenceID: str


@router.get("/silences", responses={200: {"model": list[ReadSilence]}, 304: conditional.UNCHANGED})
def read_silences(
    request: Request,
    services: ServicesDep,
    principal: FindingsReader,
    filters: Annotated[Filters, Query(alias="filter")] = [],  # noqa: B006
) -> Response:
    """List silences of any state whose matchers fit the filters, at most 1,000, latest end first."""
    wanted, now = parsed(filters), services.now()
    with services.pool.connection() as conn:
        found = [s for s in silences.listed(conn) if reaches(principal, s) and _fits(s.matchers, wanted)]
    return conditional.answer(request, [_read(shown(silence, now)) for silence in found])


@router.post("/silences", responses={200: {"model": SilenceId}})
def create_silence(
    body: PostedSilence, request: Request, services: ServicesDep, principal: FindingsWriter
) -> dict[str, str]:
    """Mute findings that match all matchers until ``endsAt``, or change a silence."""
    made = silence_of(body, principal, services.now())
    if body.createdBy:
        made = replace(made, created_by=f"{body.createdBy} ({made.created_by})")
    with services.pool.connection() as conn, conn.transaction():
        if body.id:
            before = _reachable(conn, body.id, principal)
            # Alertmanager, too, keeps what has ended as it was, and makes another one.
            if before.state(services.now()) != "expired":
                made = replace(made, id=before.id)
        save_silence(conn, made, services.now())
        record(conn, request, "silence.create", made.id, {"comment": made.comment})
    return {"silenceID": made.id}


@router.get("/silence/{silence_id}", responses={200: {"model": ReadSilence}, 304: conditional.UNCHANGED})
def read_silence(
    silence_id: str, request: Request, services: ServicesDep, principal: FindingsReader
) -> Response:
    """Return a silence."""
    with services.pool.connection() as conn:
        found = _reachable(conn, silence_id, principal)
    return conditional.answer(request, _read(shown(found, services.now())))


@router.delete("/silence/{silence_id}", response_class=Response)
def expire_silence(
    silence_id: str, request: Request, services: ServicesDep, principal: FindingsWriter
) -> Response:
    """End a silence now; it stays in the list."""
    with services.pool.connection() as conn, conn.transaction():
        _reachable(conn, silence_id, principal)
        silences.expire(conn, silence_id, services.now())
        record(conn, request, "silence.expire", silence_id, {})
    return Response(status_code=200)


def _reachable(conn: Connection[Any], silence_id: str, principal: Principal) -> Silence:
    found = silences.get(conn, silence_id)
    if found is None or not reaches(principal, found):
        raise not_found("silence", silence_id)
    return found


def _fits(matchers: Sequence[Matcher], wanted: Iterable[Matcher]) -> bool:
    """Return whether for every filter there is a matcher of that label whose value the filter matches."""
    return all(any(f.name == m.name and f.matches({m.name: m.value}) for m in matchers) for f in wanted)


def _read(silence: dict[str, Any]) -> dict[str, Any]:
    # When a silence was changed is in the audit log only.
    return silence | {"updatedAt": silence["startsAt"]}
