"""Liveness, readiness, version and metrics, for probes and Prometheus."""

from datetime import timedelta
from typing import Any

import psycopg
from fastapi import APIRouter, Depends, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from api.deps import Services, ServicesDep
from api.security.auth import MetricsReader
from slowrank import __version__
from store import heartbeats

router = APIRouter(tags=["health"])

# Six heartbeats missed: processes send one every ten seconds or less.
STALE = timedelta(seconds=60)
PROCESSES = ("streams", "notifier")


@router.get("/healthz")
def healthz() -> dict[str, str]:
    """Return 200 while the process answers."""
    return {"status": "ok"}


@router.get("/version")
def version() -> dict[str, str]:
    """Return the running version."""
    return {"version": __version__}


@router.get("/readyz", responses={503: {"description": "The database does not answer."}})
def readyz(services: ServicesDep, response: Response) -> dict[str, Any]:
    """Check each dependency of the API. Only a missing database makes it unready (503)."""
    database, *others = _database_and_processes(services)
    checks = [database, *others, *(_probed(name, services) for name in services.probes)]
    all_ok = all(check["ok"] for check in checks)
    response.status_code = 200 if database["ok"] else 503
    return {"status": "ok" if all_ok else "degraded" if database["ok"] else "unready", "checks": checks}


@router.get("/metrics", dependencies=[Depends(MetricsReader())], response_class=Response)
def metrics(services: ServicesDep) -> Response:
    """Return the metrics in Prometheus text format."""
    return Response(generate_latest(services.registry), media_type=CONTENT_TYPE_LATEST)


def _database_and_processes(services: Services) -> list[dict[str, Any]]:
    now = services.now()
    try:
        with services.pool.connection(timeout=2) as conn:
            recent = heartbeats.since(conn, now - STALE)
    except psycopg.Error as error:
        why = f"does not answer ({type(error).__name__})"
        return [_check("database", False, f"{why}; check SLOWRANK_DATABASE_URL and `slowrank migrate`")]
    checks = [_check("database", True, "answers")]
    for process in PROCESSES:
        ages = [(now - beat.at).total_seconds() for beat in recent if beat.process == process]
        silent = f"no heartbeat for {STALE.total_seconds():.0f} s; is `slowrank {process} run` running?"
        detail = f"{len(ages)} alive, last heartbeat {min(ages):.0f} s ago" if ages else silent
        checks.append(_check(process, bool(ages), detail))
    return checks


def _probed(name: str, services: Services) -> dict[str, Any]:
    try:
        return _check(name, True, services.probes[name]())
    except OSError as error:
        return _check(name, False, str(error))


def _check(name: str, ok: bool, detail: str) -> dict[str, Any]:
    return {"name": name, "ok": ok, "detail": detail}
