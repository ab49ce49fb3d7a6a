"""Jobs: the list, and the page of one with its step times, its heat map and what it has lost."""

from datetime import timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response

from api.deps import Services, ServicesDep
from api.http.problems import not_found
from api.pages.access import Visit, visit
from api.pages.formats import query
from api.pages.render import page
from api.pages.route import PageRoute
from api.pages.routes.findings import Filters, Listed, listed
from api.routes.dashboard.jobs import state_of
from api.routes.dashboard.ranges import readable
from api.security.auth import TelemetryReader
from store.dashboard import jobs as stored
from store.dashboard.jobs import JobFilter
from store.telemetry.windows import bounded

router = APIRouter(include_in_schema=False, route_class=PageRoute)

# Jobs in the list, the latest first (chosen: what one looks through by eye).
MAX_JOBS = 100
# Findings on the page of a job (chosen: what one takes in at once); the list has them all.
MAX_FINDINGS = 20

WINDOWS = {"30m": "30 minutes", "2h": "2 hours", "6h": "6 hours", "1d": "1 day", "7d": "7 days"}
STATES = {"running": "running", "hung": "hung", "silent": "ended or silent"}
METRICS = {
    "compute_seconds": "time in compute",
    "step_seconds": "whole step",
    "wait_seconds": "time waiting for other ranks",
}


def _telemetry(request: Request, principal: TelemetryReader) -> Visit:
    return visit(request, principal)


TelemetryVisit = Annotated[Visit, Depends(_telemetry)]
Name = Annotated[str, Query(max_length=128)]
Window = Annotated[str, Query(pattern=f"^({'|'.join(WINDOWS)})?$")]
Metric = Annotated[str, Query(pattern=f"^({'|'.join(METRICS)})$")]


@router.get("/jobs")
def list_jobs(request: Request, services: ServicesDep, seen: TelemetryVisit, cluster: Name = "") -> Response:
    """List jobs, the latest start first."""
    clusters, now = readable(seen.principal, cluster or None), services.now()
    found: list[dict[str, Any]] = []
    if clusters is not None:
        with services.pool.connection() as conn, bounded(conn):
            found = stored.with_totals(conn, stored.jobs(conn, JobFilter(clusters=clusters, limit=MAX_JOBS)))
    return page(
        request,
        "jobs.html",
        viewer=seen.viewer,
        jobs=[row | {"state": state_of(row, now)} for row in found],
        most=MAX_JOBS,
        states=STATES,
        now=now,
    )


@router.get("/job")
def show_job(
    request: Request,
    services: ServicesDep,
    seen: TelemetryVisit,
    cluster: Name,
    job_id: Name,
    since: Window = "",
    metric: Metric = "compute_seconds",
) -> Response:
    """Show a job; its script reads the plots from the API."""
    now = services.now()
    clusters = readable(seen.principal, cluster)
    with services.pool.connection() as conn, bounded(conn):
        wanted = JobFilter(clusters=clusters or (), job_id=job_id, limit=1)
        found = [] if clusters is None else stored.jobs(conn, wanted)
        if not found:
            raise not_found("job", job_id)
        lost = stored.costs_of(conn, cluster, job_id)
        history = stored.attempts(conn, cluster, job_id)
        hung = bool(stored.hung(conn, [found[0]["job_id"]]) & {(cluster, found[0]["job_id"])})
    findings = _findings(services, seen, cluster, job_id) if seen.viewer.may("findings:read") else None
    return page(
        request,
        "job.html",
        viewer=seen.viewer,
        job=found[0] | stored.totals_of(lost),
        state=state_of(found[0] | {"hung": hung}, now),
        ran=(found[0]["last_seen_at"] - found[0]["started_at"]) / timedelta(seconds=1),
        lost=lost,
        attempts=history,
        findings=None if findings is None else findings.findings,
        total=0 if findings is None else findings.total,
        all_findings=query("/findings", status="all", cluster=cluster, job_id=job_id),
        filtered=True,
        since=since,
        metric=metric,
        windows=WINDOWS,
        states=STATES,
        metrics=METRICS,
        public_url=services.settings.public_url.rstrip("/"),
        now=now,
    )


def _findings(services: Services, seen: Visit, cluster: str, job_id: str) -> Listed:
    """Return the most expensive live findings of a job, then the newest ended ones."""
    live, ended = (
        listed(services, seen, Filters(cluster=cluster, job_id=job_id, status=status), limit=MAX_FINDINGS)
        for status in ("live", "ended")
    )
    return Listed((live.findings + ended.findings)[:MAX_FINDINGS], live.total + ended.total, "")
