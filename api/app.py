"""Composes the HTTP API: ``create_app`` is the one place that imports every part."""

from collections.abc import Mapping
from functools import cache
from typing import Any
from urllib.parse import urlsplit

import psycopg
from fastapi import APIRouter, Depends, FastAPI
from fastapi.middleware.cors import CORSMiddleware
from fastapi.routing import iter_route_contexts
from psycopg_pool import ConnectionPool

from api import ingest
from api.alertmanager import alerts as alertmanager_alerts
from api.alertmanager import silences as alertmanager_silences
from api.alertmanager import status as alertmanager_status
from api.delivery.from_settings import policy_of, recipients_of
from api.deps import Probe, Services
from api.event_hub import EventHub
from api.foreign import alertmanager, otlp, remote_write
from api.http import problems
from api.http.client_address import networks
from api.http.cursors import Cursors
from api.http.idempotency import reserve_idempotency_key
from api.http.middleware import OuterLayer
from api.http.query import known_parameters
from api.metrics import ApiMetrics, DatabaseGauges, new_registry
from api.openapi import document
from api.pages import routers as page_routers
from api.pages.breakable import Breakable
from api.pages.route import problem_page
from api.routes import (
    audit,
    backtests,
    chronic,
    deliveries,
    evidence,
    findings,
    health,
    inhibitions,
    keys,
    meta,
    silences,
    stream,
    webhooks,
)
from api.routes.dashboard import fleet, jobs, nodes, series, timeline
from api.routes.ingest import alerts as ingest_alerts
from api.routes.ingest import metrics as ingest_metrics
from api.routes.ingest import rows as ingest_rows
from slowrank import __version__
from slowrank.settings import Settings
from store.findings.search import open_counts

ROUTERS = (
    health.router,
    findings.router,
    evidence.router,
    timeline.router,
    fleet.router,
    nodes.router,
    jobs.router,
    series.router,
    chronic.router,
    silences.router,
    inhibitions.router,
    webhooks.router,
    deliveries.router,
    ingest_rows.router,
    ingest_metrics.router,
    ingest_metrics.otlp_router,
    ingest_alerts.router,
    backtests.router,
    stream.router,
    keys.router,
    audit.router,
    meta.router,
    alertmanager_alerts.router,
    alertmanager_silences.router,
    alertmanager_status.router,
    *page_routers.ROUTERS,
)


# Header fields that pages of other origins may send and read.
CORS_REQUEST_HEADERS = [
    *("authorization", "content-type", "idempotency-key", "if-match", "if-none-match", "last-event-id"),
]
CORS_ANSWER_HEADERS = [
    "etag",
    "link",
    "location",
    "ratelimit",
    "ratelimit-policy",
    "retry-after",
    "x-request-id",
]


def create_app(
    settings: Settings,
    pool: ConnectionPool[Any],
    *,
    sink: ingest.Sink | None = None,
    probes: Mapping[str, Probe] | None = None,
    breakable: Breakable | None = None,
    runs_backtests: bool = False,
    one_process: bool = False,
) -> FastAPI:
    """Return the app over an open ``pool``.

    ``sink`` accepts ingested telemetry (without one, ingest answers 503); ``probes`` adds checks to /readyz;
    ``breakable`` is a demo's simulated cluster; ``runs_backtests``: the caller runs what is posted;
    ``one_process``: detectors and notifier run in it, too.
    """
    registry = new_registry()
    metrics = ApiMetrics(registry)
    registry.register(DatabaseGauges(lambda: _open_findings(pool), psycopg.OperationalError))
    # The framework's pages need no key and load scripts from a CDN; routes.meta serves the document.
    app = FastAPI(title="slowrank", version=__version__, docs_url=None, redoc_url=None, openapi_url=None)
    app.state.services = Services(
        settings=settings,
        pool=pool,
        hub=EventHub(pool),
        registry=registry,
        metrics=metrics,
        policy=policy_of(settings),
        recipients=recipients_of(settings),
        cursors=Cursors(settings.cursor_key()),
        sink=sink,
        breakable=breakable,
        runs_backtests=runs_backtests,
        one_process=one_process,
        probes=probes or {},
    )
    routes = [route for router in ROUTERS for route in router.routes]
    problems.install(app, settings.public_url, routes, problem_page)
    if settings.api_cors_origins:
        # Keys come in a header, so that no cookie is sent across origins.
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.api_cors_origins,
            allow_methods=["GET", "POST", "PATCH", "DELETE"],
            allow_headers=CORS_REQUEST_HEADERS,
            expose_headers=CORS_ANSWER_HEADERS,
        )
    app.add_middleware(
        OuterLayer,
        allowed_hosts=allowed_hosts(settings),
        observe=metrics.observe,
        body_limits={
            "/api/v1/ingest/samples": ingest.MAX_BODY,
            "/api/v1/ingest/alertmanager": alertmanager.MAX_BODY,
            "/api/v1/backtests": ingest.MAX_BODY,
            "/api/v1/write": remote_write.MAX_BODY,
            "/v1/metrics": otlp.MAX_BODY,
        },
        trusted=networks(settings.api_trusted_proxies),
    )
    app.router.routes.extend(_prepared_router().routes)
    _served_document()
    app.openapi = _served_document  # type: ignore[method-assign]  # FastAPI's documented hook
    return app


@cache
def _prepared_router() -> APIRouter:
    # The same for all apps of a process, and most of the time that it takes to create one. Not at the first
    # request: the framework cannot prepare routes in several threads at once.
    prepared = APIRouter()
    for router in ROUTERS:
        # Not at the probes: whoever asks those may add what defeats a cache.
        checks = (
            [Depends(known_parameters), Depends(reserve_idempotency_key)]
            if router.prefix.startswith("/api/")
            else []
        )
        prepared.include_router(router, dependencies=checks)
    list(iter_route_contexts(prepared.routes))
    return prepared


def allowed_hosts(settings: Settings) -> frozenset[str]:
    """Return the accepted Host names: loopback, the public name, and those of the settings."""
    public = urlsplit(settings.public_url).hostname
    named = {"127.0.0.1", "localhost", "[::1]", *settings.api_allowed_hosts}
    return frozenset(host.lower() for host in (*named, public) if host)


def openapi_document() -> dict[str, Any]:
    """Return the OpenAPI document without a database."""
    app = FastAPI(title="slowrank")
    for router in ROUTERS:
        app.include_router(router)
    return document(app)


@cache
def _served_document() -> dict[str, Any]:
    # The same for all apps of a process; not at the first request, as with the routes.
    return openapi_document()


def _open_findings(pool: ConnectionPool[Any]) -> Mapping[tuple[str, str], int]:
    # 2 s: a scrape must not wait for an absent database. PoolTimeout is an OperationalError, too.
    with pool.connection(timeout=2) as conn:
        return open_counts(conn)
