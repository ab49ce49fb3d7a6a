"""The list of findings; its filters are the address."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, Field

from alerts.silence import Silence, labels, muting
from api.deps import Services, ServicesDep
from api.pages.access import FindingsVisit, Visit
from api.pages.finding_view import shown
from api.pages.formats import query
from api.pages.render import page
from api.pages.route import PageRoute
from api.silent_jobs import no_steps
from store.findings import search, silences
from store.findings.search import FindingFilter

router = APIRouter(include_in_schema=False, route_class=PageRoute)

STATUSES = {
    "live": ("open", "acknowledged"),
    "open": ("open",),
    "acknowledged": ("acknowledged",),
    "ended": ("resolved", "expired"),
    "suspected": ("suspected",),
    "all": ("open", "acknowledged", "resolved", "expired"),
}
_NAMES = {"live": "open or acknowledged", "ended": "resolved or expired", "suspected": "only suspected"}
# Chosen: what one looks through by eye.
PAGE_SIZE = 100


class Filters(BaseModel, extra="ignore"):
    """Filters of the list; empty ones do not filter."""

    status: str = Field(default="live", pattern=f"^({'|'.join(STATUSES)})$")
    severity: str = Field(default="", pattern="^(critical|error|warning|info)?$")
    kind: str = Field(default="", max_length=64)
    node: str = Field(default="", max_length=128)
    job_id: str = Field(default="", max_length=128)
    cluster: str = Field(default="", max_length=128)
    cursor: str = Field(default="", max_length=1024)


@dataclass(frozen=True, slots=True)
class Listed:
    """One page of the list and the cursor of the next one."""

    findings: list[dict[str, Any]]
    total: int
    cursor: str


@router.get("/findings")
def list_findings(
    request: Request, services: ServicesDep, seen: FindingsVisit, filters: Annotated[Filters, Query()]
) -> Response:
    """List findings, the most expensive live ones first, else the newest."""
    found = listed(services, seen, filters)
    chosen = filters.model_dump(exclude={"cursor"}, exclude_defaults=True)
    return page(
        request,
        "findings.html",
        viewer=seen.viewer,
        findings=found.findings,
        total=found.total,
        next=query("/findings", **chosen, cursor=found.cursor) if found.cursor else "",
        filters=filters,
        filtered=bool(chosen),
        statuses=[(name, _NAMES.get(name, name)) for name in STATUSES],
        now=services.now(),
    )


def listed(services: Services, seen: Visit, filters: Filters, *, limit: int = PAGE_SIZE) -> Listed:
    """Return the findings of the filters that the visitor's key may see."""
    principal = seen.principal
    bound = filters.model_dump(exclude={"cursor"}) | {"page": "findings", "clusters": principal.clusters}
    after = services.cursors.open(filters.cursor, bound) if filters.cursor else None
    asked = (filters.cluster,) if filters.cluster else principal.clusters
    clusters = tuple(name for name in asked if principal.may_see(name))
    if asked and not clusters:
        return Listed([], 0, "")
    wanted = FindingFilter(
        status=STATUSES[filters.status],
        severity=(filters.severity,) if filters.severity else (),
        kinds=(filters.kind,) if filters.kind else (),
        clusters=clusters,
        nodes=(filters.node,) if filters.node else (),
        job_id=filters.job_id or None,
        sort="cost" if filters.status in ("live", "open", "acknowledged") else "detected_at",
        limit=limit,
        after=None if after is None else (after[0], after[1]),
    )
    now = services.now()
    with services.pool.connection() as conn:
        found = search.find(conn, wanted)
        mutes = silences.current(conn, now)
        stopped = no_steps(conn, [item.doc for item in found.items], now)
    rows = [
        shown(item.doc | since) | {"silenced": _is_muted(item.doc, mutes, now)}
        for item, since in zip(found.items, stopped, strict=True)
    ]
    cursor = services.cursors.seal(list(found.next), bound) if found.next else ""
    return Listed(rows, found.total, cursor)


def _is_muted(doc: dict[str, Any], mutes: Sequence[Silence], now: datetime) -> bool:
    return doc["status"] in STATUSES["live"] and muting(mutes, labels(doc), now) is not None
