"""Findings: list, read, acknowledge, resolve, and give feedback."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request, Response
from psycopg import Connection
from pydantic import BaseModel, Field

from alerts.cases.lifecycle import LIVE
from alerts.finding import Status
from alerts.silence import Silence, labels, muting
from api.audit import record
from api.deps import Services, ServicesDep
from api.http import conditional
from api.http.hosts import HostList, hosts
from api.http.idempotency import IdempotentRoute
from api.http.problems import Problem, contradiction, not_found
from api.http.text_forms import in_form
from api.http.times import Moment, parse_time, rfc3339
from api.routes.finding_kinds import check_kinds
from api.security.auth import FindingsReader, FindingsWriter, Principal
from api.silent_jobs import no_steps
from slowrank.telemetry.records import Severity
from store.findings import findings, search, silences
from store.findings.findings import Conflict, Edit, Verdict
from store.findings.rows import StoredFinding
from store.findings.search import FindingFilter, FindingPage
from store.findings.search import Sort as StoreSort

router = APIRouter(prefix="/api/v1/findings", tags=["findings"], route_class=IdempotentRoute)

Sort = Literal["-cost", "-onset", "-detected_at", "-updated_at", "-severity"]
_ID_PATTERN = r"^fnd_[0-9A-HJKMNP-TV-Z]{26}$"
_ID_FORM = "an id is fnd_ and 26 capitals and digits; `slowrank findings list -o wide` shows them"
FindingId = Annotated[str, Path(pattern=_ID_PATTERN), in_form(_ID_PATTERN, _ID_FORM)]

_SERVED_BY_DEFAULT: tuple[Status, ...] = ("open", "acknowledged", "resolved", "expired")
_SORTS: dict[Sort, StoreSort] = {
    "-cost": "cost",
    "-onset": "onset",
    "-detected_at": "detected_at",
    "-updated_at": "updated_at",
    "-severity": "severity",
}
_SHADOW = {"true": True, "false": False, "all": None}
_PAGE = {"application/json": {"schema": {"$ref": "#/components/schemas/FindingPage"}}}
_ONE = {"application/json": {"schema": {"$ref": "#/components/schemas/Finding"}}}


class Filters(BaseModel, extra="forbid", populate_by_name=True):
    """Filters of a list; a filter given several times matches any of its values."""

    status: list[Status] = Field(default=[], max_length=5)
    severity: list[Severity] = Field(default=[], max_length=4)
    kind: list[Annotated[str, Field(max_length=64)]] = Field(default=[], max_length=20)
    cluster: str | None = Field(default=None, max_length=128)
    node: list[HostList] = Field(default=[], max_length=100)
    job_id: str | None = Field(default=None, max_length=128)
    min_confidence: float | None = Field(default=None, ge=0, le=1)
    shadow: Literal["true", "false", "all"] = Field(
        default="false", description="Only findings of detectors in shadow mode, none of them, or all."
    )
    from_: Moment | None = Field(default=None, alias="from")
    to: Moment | None = None
    limit: int = Field(default=100, ge=1, le=1000)
    sort: Sort | None = Field(default=None, description="-cost for live findings, else -detected_at.")
    cursor: str | None = Field(default=None, max_length=1024)


class Transition(BaseModel, extra="forbid"):
    """A new status of a finding, set by a person."""

    status: Literal["acknowledged", "resolved"]
    note: str = Field(default="", max_length=2000)


class Feedback(BaseModel, extra="forbid"):
    """Whether a finding was right."""

    verdict: Verdict
    note: str = Field(default="", max_length=2000)


@router.get("", responses={200: {"content": _PAGE}, 304: {"description": "Unchanged."}})
def read_findings(
    request: Request, services: ServicesDep, principal: FindingsReader, filters: Annotated[Filters, Query()]
) -> Response:
    """List findings; suspicions only with ``status=suspected``."""
    bound = _bound(filters, principal)
    wanted = _wanted(filters, principal, services)
    if wanted is None:
        page, items = FindingPage((), None, 0), []
    else:
        with services.pool.connection() as conn:
            page = search.find(conn, wanted)
            silenced = Silencer(silences.current(conn, services.now()), services.now())
            stopped = no_steps(conn, [item.doc for item in page.items], services.now())
        # After the connection is given back: thousands of silences take a while.
        items = [
            item.doc | since | silenced.fields(item.doc)
            for item, since in zip(page.items, stopped, strict=True)
        ]
    cursor = services.cursors.seal(list(page.next), bound) if page.next else ""
    content = {
        "items": items,
        "next_cursor": cursor,
        "total_estimate": page.total,
    }
    link = {"link": f'<{request.url.include_query_params(cursor=cursor)}>; rel="next"'} if cursor else {}
    return conditional.answer(request, content, **link)


@router.get("/{finding_id}", responses={200: {"content": _ONE}, 304: {"description": "Unchanged."}})
def read_finding(
    finding_id: FindingId, request: Request, services: ServicesDep, principal: FindingsReader
) -> Response:
    """Return a finding with its evidence, history and edits by people."""
    with services.pool.connection() as conn:
        stored = visible(conn, finding_id, principal)
        content = _detail(conn, stored, services.now())
    return conditional.answer(request, content, _tag(content, stored))


@router.patch("/{finding_id}", responses={200: {"content": _ONE}})
def update_finding(
    finding_id: FindingId,
    body: Transition,
    request: Request,
    services: ServicesDep,
    principal: FindingsWriter,
) -> Response:
    """Acknowledge or resolve a finding; ``If-Match`` is the ETag of the state that was read."""
    step = findings.acknowledge if body.status == "acknowledged" else findings.resolve
    with services.pool.connection() as conn, conn.transaction():
        seen = visible(conn, finding_id, principal)
        conditional.check_if_match(request, _tag(_at_present(conn, seen, services.now()), seen))
        # With the version: another request may change the finding between this read and the store's lock.
        edit = Edit(principal.author, services.now(), body.note, seen.version)
        try:
            step(conn, finding_id, edit)
        except Conflict as error:
            if visible(conn, finding_id, principal).version != seen.version:
                raise conditional.stale() from error
            raise Problem(409, "conflict", str(error)) from error
        record(conn, request, f"finding.{body.status}", finding_id, {"note": body.note})
        stored = visible(conn, finding_id, principal)
        content = _detail(conn, stored, services.now())
    return conditional.answer(request, content, _tag(content, stored))


@router.post("/{finding_id}/feedback", status_code=201)
def give_feedback(
    finding_id: FindingId,
    body: Feedback,
    request: Request,
    services: ServicesDep,
    principal: FindingsWriter,
) -> dict[str, str]:
    """Record whether the finding was right; the last verdict counts."""
    edit = Edit(principal.author, services.now(), body.note)
    with services.pool.connection() as conn, conn.transaction():
        visible(conn, finding_id, principal)
        findings.feedback(conn, finding_id, body.verdict, edit)
        record(conn, request, "finding.feedback", finding_id, {"verdict": body.verdict, "note": body.note})
    services.metrics.feedback.labels(body.verdict).inc()
    return {"finding_id": finding_id, "verdict": body.verdict}


def _wanted(filters: Filters, principal: Principal, services: Services) -> FindingFilter | None:
    """Return the store's filter, or None when the key may see nothing of what is requested."""
    asked = (filters.cluster,) if filters.cluster else principal.clusters
    clusters = tuple(c for c in asked if principal.may_see(c))
    if asked and not clusters:
        return None
    check_kinds(filters.kind, "#/query/kind")
    now = services.now()
    starts, ends = (None if at is None else parse_time(at, now) for at in (filters.from_, filters.to))
    if starts and ends and starts >= ends:
        raise contradiction("#/query/from", "from must be before to")
    return FindingFilter(
        status=tuple(filters.status or _SERVED_BY_DEFAULT),
        severity=tuple(filters.severity),
        kinds=tuple(filters.kind),
        clusters=clusters,
        nodes=hosts(filters.node),
        job_id=filters.job_id,
        min_confidence=filters.min_confidence,
        shadow=_SHADOW[filters.shadow],
        onset_from=starts,
        onset_to=ends,
        sort=_sort(filters),
        limit=filters.limit,
        after=_position(filters, principal, services),
    )


def _position(filters: Filters, principal: Principal, services: Services) -> tuple[Any, str] | None:
    if not filters.cursor:
        return None
    at, last_id = services.cursors.open(filters.cursor, _bound(filters, principal))
    return at, last_id


def _bound(filters: Filters, principal: Principal) -> dict[str, Any]:
    """Return what a page cursor is bound to: the filters and the clusters of the key."""
    return filters.model_dump(exclude={"cursor", "limit"}) | {"clusters": principal.clusters}


def _sort(filters: Filters) -> StoreSort:
    if filters.sort is None:
        return "cost" if filters.status and LIVE.issuperset(filters.status) else "detected_at"
    return _SORTS[filters.sort]


def visible(conn: Connection[Any], finding_id: str, principal: Principal) -> StoredFinding:
    stored = findings.get(conn, finding_id)
    # The same answer for both, so that a key cannot probe for ids in clusters it may not see.
    if stored is None or not principal.may_see(stored.cluster):
        raise not_found("finding", finding_id)
    return stored


def _detail(conn: Connection[Any], stored: StoredFinding, now: datetime) -> dict[str, Any]:
    steps = findings.history(conn, stored.id)
    found = stored.doc | {"history": [step | {"at": rfc3339(step["at"])} for step in steps]}
    return found | _at_present(conn, stored, now)


def _at_present(conn: Connection[Any], stored: StoredFinding, now: datetime) -> dict[str, str]:
    """Return what is served beside a finding and no part of its version: its silence, its job's last step."""
    silenced = Silencer(silences.current(conn, now), now).fields(stored.doc)
    return silenced | no_steps(conn, [stored.doc], now)[0]


def _tag(content: Mapping[str, Any], stored: StoredFinding) -> str:
    # What is served changes with these, and not the version of the finding.
    beside = (content.get(name) for name in ("silenced_by", "silenced_until", "no_steps_since"))
    return f'W/"{stored.id}.{stored.version}{"".join(f".{one}" for one in beside if one)}"'


@dataclass(frozen=True, slots=True)
class Silencer:
    """The silences that mute something now, held against findings that are live."""

    silences: Sequence[Silence]
    now: datetime

    def fields(self, doc: Mapping[str, Any]) -> dict[str, str]:
        """Return ``silenced_by`` and ``silenced_until`` of the silence that mutes longest; else nothing."""
        found = muting(self.silences, labels(doc), self.now) if doc["status"] in LIVE else None
        if found is None:
            return {}
        return {
            "silenced_by": found.id,
            "silenced_until": rfc3339(found.mutes_until(self.now) or found.ends_at),
        }
