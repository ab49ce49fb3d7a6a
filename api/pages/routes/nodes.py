"""The page of a node with its GPUs side by side, and that of a GPU, whose history follows the hardware."""

from datetime import timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from api.deps import ServicesDep
from api.http.problems import Problem
from api.pages.formats import SEVERITIES
from api.pages.render import page
from api.pages.route import PageRoute
from api.pages.routes.jobs import WINDOWS, Name, TelemetryVisit, Window
from api.routes.dashboard.nodes import RECENT, state_of
from api.routes.dashboard.ranges import readable
from store.dashboard import nodes as stored
from store.dashboard.nodes import NodeFilter
from store.telemetry.metrics import STORED
from store.telemetry.windows import bounded

router = APIRouter(include_in_schema=False, route_class=PageRoute)

METRICS = tuple(sorted(name for name, metric in STORED.items() if metric.owner == "gpu"))


@router.get("/node")
def show_node(
    request: Request,
    services: ServicesDep,
    seen: TelemetryVisit,
    cluster: Name,
    node: Name,
    since: Window = "30m",
    metric: Annotated[str, Query(max_length=64)] = "gpu.clock.sm_hz",
) -> Response:
    """Show a node: its GPUs, its ranks and its findings."""
    clusters, now = readable(seen.principal, cluster), services.now()
    with services.pool.connection() as conn, bounded(conn):
        wanted = NodeFilter(clusters=clusters or (), nodes=(node,), limit=1)
        found = [] if clusters is None else stored.nodes(conn, wanted)
        if not found:
            # A finding of step times or events leads here, too.
            detail = f"no samples of the node {node[:80]!r} are stored: an exporter on it sends them"
            raise Problem(404, "not-found", detail)
        ranks = stored.ranks_on(conn, cluster, node, now - RECENT)
        past = stored.findings_of_node(conn, cluster, node)
    return page(
        request,
        "node.html",
        viewer=seen.viewer,
        node=found[0],
        state=state_of(found[0], now),
        severities=[SEVERITIES[pip] for pip in found[0].pips],
        ranks={row["gpu_index"]: row for row in reversed(ranks)},
        # Titles of findings need the scope of findings.
        past=_past(past) if seen.viewer.may("findings:read") else None,
        since=since or "30m",
        metric=metric if metric in METRICS else "gpu.clock.sm_hz",
        windows=WINDOWS,
        metrics=METRICS,
        now=now,
    )


@router.get("/gpu")
def show_gpu(
    request: Request, services: ServicesDep, seen: TelemetryVisit, id: Annotated[str, Query(max_length=160)]
) -> Response:
    """Show what a GPU has had: by UUID or serial on whatever node, by ``node:index`` at its place."""
    with services.pool.connection() as conn, bounded(conn):
        past = stored.findings_of_gpu(conn, id, seen.principal.clusters)
    return page(
        request,
        "gpu.html",
        viewer=seen.viewer,
        id=id,
        places=list(dict.fromkeys(f"{row['node']}:{row['gpu_index']}" for row in past if row["node"])),
        lost=sum(row["gpu_hours_lost"] for row in past),
        past=_past(past) if seen.viewer.may("findings:read") else None,
        now=services.now(),
    )


def _past(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return findings with how long they lasted, in seconds; None while they are open."""
    return [
        row
        | {"lasted": None if row["resolved_at"] is None else (row["resolved_at"] - row["onset"]) / _SECOND}
        for row in rows
    ]


_SECOND = timedelta(seconds=1)
