"""GPUs that are slow for good: what weeks of paces tell, judged when it is asked for."""

import itertools
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from psycopg import Connection
from pydantic import BaseModel, Field

from alerts.chronic import MAX_DAYS, MIN_DAYS, Chronic, Machine, chronic, fleet_of, place
from alerts.finding import rfc3339
from api import conditional
from api.auth import FindingsReader
from api.deps import ServicesDep
from store import paces

router = APIRouter(prefix="/api/v1/chronic", tags=["findings"])


class ChronicGpu(BaseModel):
    """A GPU that is slow for good."""

    cluster: str
    node: str
    gpu_index: int
    slowdown_ratio: float = Field(description="Its seconds over its peers'; 1.10 where it is that or more.")
    spreads: float = Field(description="By how many times what healthy GPUs differ by (robust sd).")
    certainty: float
    since: str = Field(description="RFC 3339: the day from which on it is slow.")
    hours: int = Field(description="Hours that jobs told of since then, on so many days, in so many jobs.")
    days: int
    jobs: int
    ranks: int = Field(
        description="Ranks it was in them. Of one that is always the same the work may differ."
    )


class ChronicPage(BaseModel):
    """One page of them, the farthest from healthy first."""

    items: list[ChronicGpu]
    next_cursor: str = Field(description="Empty on the last page.")


@router.get("", responses={200: {"model": ChronicPage}, 304: {"description": "Unchanged."}})
def read_chronic(
    request: Request,
    services: ServicesDep,
    principal: FindingsReader,
    cluster: Annotated[str | None, Query(max_length=128)] = None,
    days: Annotated[int, Query(ge=MIN_DAYS, le=MAX_DAYS, description="How far back, with today.")] = MAX_DAYS,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    cursor: Annotated[str | None, Query(max_length=1024)] = None,
) -> Response:
    """List GPUs that are a little slow in job after job."""
    bound = {"list": "chronic", "cluster": cluster, "days": days, "clusters": principal.clusters}
    after = _position(services.cursors.open(cursor, bound)) if cursor else None
    today = services.now().astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    since = today - timedelta(days=days - 1)
    with services.pool.connection() as conn:
        # Each cluster by itself: its machines are its own, and so is what is usual among them.
        clusters = [cluster] if cluster else paces.clusters(conn, since)
        slow = [_slow(conn, name, since) for name in clusters if principal.may_see(name)]
    found = sorted(itertools.chain(*slow), key=place)
    left = [one for one in found if after is None or place(one) > after]
    items = [_shown(one) for one in left[:limit]]
    last = left[limit - 1] if len(left) > limit else None
    next_cursor = "" if last is None else services.cursors.seal([last.spreads, *last.machine], bound)
    return conditional.answer(request, {"items": items, "next_cursor": next_cursor})


def _slow(conn: Connection[Any], cluster: str, since: datetime) -> tuple[Chronic, ...]:
    usual = fleet_of(paces.means(conn, cluster, since))
    return () if usual is None else chronic(paces.suspects(conn, cluster, since, least=usual.least), usual)


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
