"""The fleet on one page: the numbers that matter, and every node with its GPUs by rack."""

import re
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import groupby
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from api.deps import ServicesDep
from api.http import conditional
from api.routes.dashboard.nodes import SILENT, State, state_of
from api.routes.dashboard.ranges import Name, milliseconds, readable
from api.security.auth import TelemetryReader
from api.silent_jobs import RUNNING
from store.dashboard import fleet as stored
from store.dashboard.nodes import NodeFilter, NodeState, nodes
from store.telemetry.windows import bounded

router = APIRouter(prefix="/api/v1/fleet", tags=["telemetry"])

# Nodes in the grid: the largest fleet that the product is measured with.
MAX_NODES = 10_000

_WEEK, _DAY = timedelta(days=7), timedelta(days=1)


class Numbers(BaseModel):
    """The numbers of a fleet."""

    open_findings: int
    open_by_severity: dict[str, int]
    open_by_kind: dict[str, int]
    gpu_hours_lost_per_hour: float = Field(description="What the open findings cost now.")
    gpu_hours_lost_1d: float = Field(description="Of findings that began in the last 24 hours.")
    gpu_hours_lost_7d: float
    nodes: int
    nodes_silent: int = Field(description="Without a sample for two minutes.")
    gpus: int
    gpus_reporting: int
    newest_sample_at: int | None = Field(default=None, description="Epoch milliseconds.")
    jobs_gpu_hours_7d: float = Field(description="GPU-hours of the jobs from their first to their last step.")
    ettr_7d: float | None = Field(
        default=None,
        description="Effective training time ratio: GPU-hours within attempts, less what findings cost, over "
        "`jobs_gpu_hours_7d`; null without jobs.",
    )
    mttf_hours_7d: float | None = Field(
        default=None,
        description="Hours that jobs ran over their restarts; null where none restarted.",
    )


class GridNode(BaseModel):
    """A node in the grid."""

    node: str
    state: State
    pips: str = Field(description="A digit for each GPU: 0 none, 1 info, 2 warning, 3 error, 4 critical.")
    job_id: str | None = None
    last_seen_at: int


class GridRack(BaseModel):
    """The nodes of a rack; those without one have the rack ``""``."""

    cluster: str
    rack: str
    nodes: list[GridNode]


class Fleet(BaseModel):
    """The fleet."""

    numbers: Numbers
    racks: list[GridRack]
    truncated: bool = Field(description="Whether there are more nodes than the 10,000 shown.")


@router.get("", responses={200: {"model": Fleet}, 304: {"description": "Unchanged."}})
def read_fleet(
    request: Request, services: ServicesDep, principal: TelemetryReader, cluster: Name | None = None
) -> Response:
    """Return the numbers of the fleet and its nodes by cluster and rack."""
    clusters, now = readable(principal, cluster), services.now()
    if clusters is None:
        # No cluster has an empty name, so that nothing is counted.
        clusters = ("",)
    with services.pool.connection() as conn, bounded(conn):
        found = nodes(conn, NodeFilter(clusters=clusters, limit=MAX_NODES + 1))
        numbers = numbers_of(conn, clusters, now)
    grid = racks_of(found[:MAX_NODES], now)
    return conditional.answer(
        request, {"numbers": numbers, "racks": grid, "truncated": len(found) > MAX_NODES}
    )


def numbers_of(conn: Any, clusters: tuple[str, ...], now: datetime) -> dict[str, Any]:
    """Return the numbers of some clusters (none: all)."""
    opened = stored.open_findings(conn, clusters, running=now - RUNNING)
    counts = stored.node_counts(conn, clusters, now - SILENT)
    time, week = (
        stored.job_time(conn, clusters, now - _WEEK),
        stored.gpu_hours_lost(conn, clusters, now - _WEEK),
    )
    newest = counts["newest"]
    return {
        "open_findings": sum(row["n"] for row in opened),
        "open_by_severity": _sums(opened, "severity"),
        "open_by_kind": _sums(opened, "kind"),
        "gpu_hours_lost_per_hour": float(sum(row["rate"] or 0.0 for row in opened)),
        "gpu_hours_lost_1d": stored.gpu_hours_lost(conn, clusters, now - _DAY),
        "gpu_hours_lost_7d": week,
        "nodes": counts["nodes"],
        "nodes_silent": counts["silent"],
        "gpus": counts["gpus"],
        "gpus_reporting": counts["reporting"],
        "newest_sample_at": None if newest is None else milliseconds(newest),
        "jobs_gpu_hours_7d": time.wall / 3600,
        "ettr_7d": max(0.0, time.busy / 3600 - week) / (time.wall / 3600) if time.wall > 0 else None,
        "mttf_hours_7d": time.running / 3600 / time.restarts if time.restarts else None,
    }


def racks_of(found: list[NodeState], now: datetime) -> list[dict[str, Any]]:
    """Return the nodes by cluster and rack; numbers in names count as such, so that r2 comes before r10."""
    ordered = sorted(
        found,
        key=lambda n: (n.cluster, natural_key(n.rack or ""), n.rack or "", natural_key(n.node), n.node),
    )
    return [
        {"cluster": cluster, "rack": rack, "nodes": [_grid_node(node, now) for node in members]}
        for (cluster, rack), members in groupby(ordered, key=lambda n: (n.cluster, n.rack or ""))
    ]


# As many names as the grid has nodes and racks: they are the same from one request to the next.
@lru_cache(2 * MAX_NODES)
def natural_key(name: str) -> tuple[str | int, ...]:
    """Return a name split into its texts and, at every second place, the numbers between them."""
    parts = re.split("([0-9]+)", name)
    return tuple(int(part) if i % 2 else part for i, part in enumerate(parts))


def _grid_node(node: NodeState, now: datetime) -> dict[str, Any]:
    shown = {
        "node": node.node,
        "state": state_of(node, now),
        "pips": "".join(map(str, node.pips)),
        "last_seen_at": milliseconds(node.last_seen_at),
    }
    return shown | ({} if node.job_id is None else {"job_id": node.job_id})


def _sums(rows: list[dict[str, Any]], name: str) -> dict[str, int]:
    sums: dict[str, int] = {}
    for row in rows:
        sums[row[name]] = sums.get(row[name], 0) + row["n"]
    return sums
