"""Chronically slow GPUs, computed on request from weeks of paces."""

import itertools
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from psycopg import Connection
from pydantic import BaseModel, Field

from alerts.finding import rfc3339
from api.deps import ServicesDep
from api.http import conditional
from api.security.auth import FindingsReader
from detectors.fleet.chronic import MAX_DAYS, MIN_DAYS, Chronic, Machine, chronic, fleet_of, place
from store.telemetry import rank_pace

router = APIRouter(prefix="/api/v1/chronic", tags=["findings"])


class ChronicGpu(BaseModel):
    """A chronically slow GPU."""

    cluster: str
    node: str
    gpu_index: int
    slowdown_ratio: float = Field(description="Step time over that of its peers, cut off at 1.10.")
    spreads: float = Field(description="Deviation in robust standard deviations of healthy GPUs.")
    certainty: float
    since: str = Field(description="RFC 3339: the first day on which it was slow.")
    hours: int = Field(description="Hours with a pace since then, on ``days`` days in ``jobs`` jobs.")
    days: int
    jobs: int
    ranks: int = Field(description="Ranks it had in these jobs; with one, that rank's work may be the cause.")


class ChronicPage(BaseModel):
    """One page of chronically slow GPUs, the largest deviation first."""

    items: list[ChronicGpu]
    next_cursor: str = Field(description="Empty on the last page.")


@router.get("", responses={200: {"model": ChronicPage}, 304: {"description": "Unchanged."}})
def read_chronic(
    request: Request,
    services: ServicesDep,
    principal: FindingsReader,
    cluster: Annotated[str | None, Query(max_length=128)] = None,
    days: Annotated[
        int, Query(ge=MIN_DAYS, le=MAX_DAYS, description="Days to look back, today included.")
    ] = MAX_DAYS,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    cursor: Annotated[str | None, Query(max_length=1024)] = None,
) -> Response:
    """List GPUs that are slightly slow in many jobs."""
    bound = {"list": "chronic", "cluster": cluster, "days": days, "clusters": principal.clusters}
    after = _position(services.cursors.open(cursor, bound)) if cursor else None
    today = services.now().astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    since = today - timedelta(days=days - 1)
    with services.pool.connection() as conn:
        # Each cluster by itself: its GPUs are compared with each other.
        clusters = [cluster] if cluster else rank_pace.clusters(conn, since)
        slow = [_slow(conn, name, since) for name in clusters if principal.may_see(name)]
    found = sorted(itertools.chain(*slow), key=place)
    left = [one for one in found if after is None or place(one) > after]
    items = [_shown(one) for one in left[:limit]]
    last = left[limit - 1] if len(left) > limit else None
    next_cursor = "" if last is None else services.cursors.seal([last.spreads, *last.machine], bound)
    return conditional.answer(request, {"items": items, "next_cursor": next_cursor})


def _slow(conn: Connection[Any], cluster: str, since: datetime) -> tuple[Chronic, ...]:
    usual = fleet_of(rank_pace.means(conn, cluster, since))
    return (
        () if usual is None else chronic(rank_pace.suspects(conn, cluster, since, least=usual.least), usual)
    )


def _position(sealed: list[Any]) -> tuple[float, Machine]:
    spreads, cluster, node, gpu_index = sealed
    return (-spreads, Machine(cluster, node, gpu_index))


def _shown(found: Chronic) -> dict[str, Any]:
    return {
        **found.machine._asdict(),
        "slowdown_ratio": found.ratio,
        "spreads": found.spreads,
        "certainty": found.certainty,
        "since": rfc3339(found.since),
        "hours": found.hours,
        "days": found.days,
        "jobs": found.jobs,
        "ranks": found.ranks,
    }
