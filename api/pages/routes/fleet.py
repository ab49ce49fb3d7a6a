"""The front page: the state of the fleet in numbers, its nodes by rack, and what costs most now."""

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from api.deps import Services, ServicesDep
from api.pages.access import FindingsVisit, Visit, visit
from api.pages.formats import SEVERITIES
from api.pages.freshness import warning
from api.pages.render import page
from api.pages.route import PageRoute
from api.pages.routes.findings import Filters, listed
from api.pages.routes.sign_in_form import ask_to_sign_in
from api.routes.dashboard.fleet import numbers_of, racks_of
from api.security.auth import CredentialsDep, Requires, authenticated
from api.security.sessions import token_of
from store.dashboard.fleet import rails
from store.dashboard.nodes import NodeFilter, nodes
from store.telemetry.windows import bounded

router = APIRouter(include_in_schema=False, route_class=PageRoute)

# Nodes in the grid. Chosen: some 300 kB of HTML; a larger fleet is shown cluster by cluster.
MAX_NODES = 2000
# Findings below the grid (chosen: more are not read on a page that is for a first look).
MAX_FINDINGS = 50

Cluster = Annotated[str, Query(max_length=128)]


@dataclass(frozen=True, slots=True)
class Grid:
    """Numbers of the fleet, its nodes by rack, and rails with findings; ``more``: there are more nodes."""

    numbers: dict[str, Any]
    racks: list[dict[str, Any]]
    rails: list[dict[str, Any]]
    more: bool


@router.get("/")
def show_fleet(
    request: Request, services: ServicesDep, credentials: CredentialsDep, cluster: Cluster = ""
) -> Response:
    """Show the fleet, or the form to sign in to those who have not."""
    if credentials is None and not token_of(request):
        # No failed attempt: it is where people land by the address alone.
        return ask_to_sign_in(request, "", status=200)
    seen = visit(request, Requires("findings:read")(authenticated(request, services, credentials)))
    return _page(request, services, seen, "fleet.html", cluster)


@router.get("/fleet-now")
def show_fleet_now(
    request: Request, services: ServicesDep, seen: FindingsVisit, cluster: Cluster = ""
) -> Response:
    """Show the part of the page that changes, for scripts."""
    return _page(request, services, seen, "fleet_now.html", cluster)


def _page(request: Request, services: Services, seen: Visit, template: str, cluster: str) -> Response:
    now = services.now()
    grid = _grid(services, seen, cluster, now) if seen.viewer.may("telemetry:read") else None
    found = listed(services, seen, Filters(cluster=cluster), limit=MAX_FINDINGS)
    newest = grid.numbers["newest_sample_at"] if grid else None
    return page(
        request,
        template,
        viewer=seen.viewer,
        cluster=cluster,
        grid=grid,
        stale=warning(newest, now) if grid else "",
        age=None if newest is None else (now.timestamp() - newest / 1000),
        findings=found.findings,
        total=found.total,
        filtered=False,
        breakable=services.breakable,
        now=now,
    )


def _grid(services: Services, seen: Visit, cluster: str, now: datetime) -> Grid:
    asked = (cluster,) if cluster else seen.principal.clusters
    clusters = tuple(name for name in asked if seen.principal.may_see(name))
    if asked and not clusters:
        # No cluster has an empty name, so that nothing is counted.
        clusters = ("",)
    with services.pool.connection() as conn, bounded(conn):
        found = nodes(conn, NodeFilter(clusters=clusters, limit=MAX_NODES + 1))
        numbers = numbers_of(conn, clusters, now)
        found_rails = [row | {"severity": SEVERITIES[row["worst"]]} for row in rails(conn, clusters)]
    return Grid(numbers, racks_of(found[:MAX_NODES], now), found_rails, len(found) > MAX_NODES)
