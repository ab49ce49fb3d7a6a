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

# What does not work without each of them.
_LOST = {"streams": "no telemetry is judged", "notifier": "no webhook gets anything"}

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

    A process that waits, and a disk that is full, degrade it: what is stored can still be read. `detail` says
    what fails, why, and what to do.
    """
    database, *others = _database_and_processes(services)
    checks = [database, *others, *(_probed(name, services) for name in services.probes)]
    all_ok = all(check["ok"] for check in checks)
    response.status_code = 200 if database["ok"] else 503
    if all_ok:
        return {"status": "ok", "checks": checks}
    failed = "; ".join(f"{check['name']}: {check['detail']}" for check in checks if not check["ok"])
    status = "degraded" if database["ok"] else "unready"
    return {"status": status, "detail": failed, "checks": checks}


@router.get("/metrics", dependencies=[Depends(MetricsReader())], response_class=Response)
def metrics(services: ServicesDep) -> Response:
    """Return the metrics in Prometheus text format."""
    return Response(generate_latest(services.registry), media_type=CONTENT_TYPE_LATEST)


def _database_and_processes(services: Services) -> list[dict[str, Any]]:
    now = services.now()
    try:
        with services.pool.connection(timeout=2) as conn:
            recent = heartbeats.since(conn, now - STALE)
    except psycopg.errors.UndefinedTable:
        return [
            _check("database", False, "it has no tables yet, so nothing can be read: run `slowrank migrate`")
        ]
    except psycopg.Error as error:
        why = f"it does not answer ({type(error).__name__}), so nothing can be read"
        step = "start the database, or correct SLOWRANK_DATABASE_URL"
        if services.one_process:
            step = "the log of this process says why; start it again"
        return [_check("database", False, f"{why}: {step}")]
    checks = [_check("database", True, "answers")]
    for process in PROCESSES:
        beats = [beat for beat in recent if beat.process == process]
        checks.append(_alive(process, beats, now, one_process=services.one_process))
    return checks


def _alive(process: str, beats: Sequence[Heartbeat], now: datetime, *, one_process: bool) -> dict[str, Any]:
    if not beats:
        silent = f"no heartbeat for {STALE.total_seconds():.0f} s, so {_LOST[process]}"
        step = f"start `slowrank {process} run`, or read in its log why it waits"
        if one_process:
            step = "this process does it and stands still; read its log and start it again"
        return _check(process, False, f"{silent}: {step}")
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
        f"{detail}; {len(waiting)} wait for {' and '.join(whom)}{why} and do nothing meanwhile: see whether "
        "these servers run and their disks have room",
    )


def _probed(name: str, services: Services) -> dict[str, Any]:
    try:
        return _check(name, True, services.probes[name]())
    except OSError as error:
        return _check(name, False, str(error))


def _check(name: str, ok: bool, detail: str) -> dict[str, Any]:
    return {"name": name, "ok": ok, "detail": detail}
