"""Liveness, readiness, version and metrics, for probes and Prometheus."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import psycopg
from fastapi import APIRouter, Depends, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from api.deps import Services, ServicesDep
from api.security.auth import MetricsReader
from slowrank import __version__
from store import heartbeats
from store.heartbeats import Heartbeat

router = APIRouter(tags=["health"])

# Six heartbeats missed: processes send one every ten seconds or less.
STALE = timedelta(seconds=60)
PROCESSES = ("streams", "notifier")

# Servers that a process may wait for: it is alive, and does nothing.
SERVERS = ("database", "kafka")


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
    """Check each dependency of the API. Only a database that does not answer makes it unready (503).

    A process that waits, and a disk that is full, degrade it: what is stored can still be read.
    """
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
        checks.append(_alive(process, [beat for beat in recent if beat.process == process], now))
    return checks


def _alive(process: str, beats: Sequence[Heartbeat], now: datetime) -> dict[str, Any]:
    if not beats:
        silent = f"no heartbeat for {STALE.total_seconds():.0f} s; is `slowrank {process} run` running?"
        return _check(process, False, silent)
    youngest = min((now - beat.at).total_seconds() for beat in beats)
    detail = f"{len(beats)} alive, last heartbeat {youngest:.0f} s ago"
    waiting = [beat for beat in beats if set(SERVERS) & set(beat.detail.get("waiting_for", ()))]
    if not waiting:
        return _check(process, True, detail)
    whom = [server for server in SERVERS if any(server in beat.detail["waiting_for"] for beat in waiting)]
    why = next((f" ({beat.detail['error']})" for beat in waiting if beat.detail.get("error")), "")
    return _check(
        process,
        False,
        f"{detail}; {len(waiting)} wait for {' and '.join(whom)}{why}: see the log, free space",
    )


def _probed(name: str, services: Services) -> dict[str, Any]:
    try:
        return _check(name, True, services.probes[name]())
    except OSError as error:
        return _check(name, False, str(error))


def _check(name: str, ok: bool, detail: str) -> dict[str, Any]:
    return {"name": name, "ok": ok, "detail": detail}
