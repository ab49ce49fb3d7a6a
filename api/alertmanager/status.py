"""``GET /api/v2/status`` and ``/receivers``: what Alertmanager's clients ask for before anything else."""

from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter, Request, Response, Security
from pydantic import BaseModel

from api.http import conditional
from api.http.times import rfc3339
from api.security.auth import PASSWORD, FindingsReader
from slowrank import __version__

router = APIRouter(prefix="/api/v2", tags=["alertmanager"], dependencies=[Security(PASSWORD)])

# The one receiver: to which webhooks a finding goes is no matter of its labels alone.
RECEIVER = {"name": "slowrank"}
# What a client may parse; there is no configuration of this kind.
_CONFIG = "route:\n  receiver: slowrank\nreceivers:\n- name: slowrank\n"
_STARTED_AT = datetime.now(UTC)


class Receiver(BaseModel):
    """A name."""

    name: str


class Cluster(BaseModel):
    """No cluster: processes of slowrank share a database."""

    status: str
    peers: list[str]


class Config(BaseModel):
    """A configuration as YAML."""

    original: str


class Status(BaseModel):
    """The state of the server, as Alertmanager shows it."""

    cluster: Cluster
    versionInfo: dict[str, str]
    config: Config
    uptime: str


@router.get("/status", responses={200: {"model": Status}, 304: {"description": "Unchanged."}})
def read_status(request: Request, principal: FindingsReader) -> Response:
    """Return version and start of this process in Alertmanager's form."""
    unknown = dict.fromkeys(("branch", "buildDate", "buildUser", "goVersion", "revision"), "")
    shown: dict[str, Any] = {
        "cluster": {"status": "disabled", "peers": []},
        "versionInfo": unknown | {"version": __version__},
        "config": {"original": _CONFIG},
        "uptime": rfc3339(_STARTED_AT),
    }
    return conditional.answer(request, shown)


@router.get("/receivers", responses={200: {"model": list[Receiver]}, 304: {"description": "Unchanged."}})
def read_receivers(request: Request, principal: FindingsReader) -> Response:
    """List the one receiver that every alert has."""
    return conditional.answer(request, [RECEIVER])
