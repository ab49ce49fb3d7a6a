"""Nodes and GPUs: where they stand, what is open on them, and what one GPU has had on whatever node."""

from datetime import datetime, timedelta
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import BaseModel, Field

from api.deps import Services, ServicesDep
from api.http import conditional
from api.http.hosts import HostList, hosts
from api.http.problems import contradiction, not_found
from api.routes.dashboard.ranges import Name, milliseconds, readable
from api.security.auth import Principal, TelemetryReader
from store.dashboard import nodes as stored
from store.dashboard.nodes import NodeFilter, NodeState
from store.telemetry.windows import bounded

router = APIRouter(prefix="/api/v1", tags=["telemetry"])

# Without a sample for so long a node counts as silent. Chosen: four times what the roll-up of an idle source
# takes, so that a node that reports is never shown as silent.
SILENT = timedelta(minutes=2)
# A rank seen since then counts as running (two repetitions of its place).
RECENT = timedelta(minutes=10)
State = Literal["ok", "info", "warning", "error", "critical", "silent"]


class NodeQuery(BaseModel, extra="forbid"):
    """Filters of nodes."""

    cluster: Name | None = None
    node: list[HostList] = Field(default=[], max_length=50)
    rack: list[Name] = Field(default=[], max_length=100)
    job_id: Name | None = None
    limit: int = Field(default=100, ge=1, le=1000)
    cursor: str | None = Field(default=None, max_length=1024)


_NODE: dict[str, Any] = {
    "cluster": "prod-a",
    "node": "gpu-0423",
    "state": "critical",
    "last_seen_at": 1795160560000,
    "rack": "r17",
    "switch": "leaf-3",
    "gpus": 8,
    "nics": 8,
    "job_id": "812345",
    "open_findings": 1,
    "pips": [0, 0, 0, 0, 0, 4, 0, 0],
}


class Node(BaseModel, json_schema_extra={"examples": [_NODE]}):
    """A node by its latest sample and its open findings."""

    cluster: str
    node: str
    state: State = Field(description="The worst severity of what is open on it, or `silent`.")
    last_seen_at: int = Field(description="Epoch milliseconds.")
    rack: str | None = None
    switch: str | None = None
    gpus: int
    nics: int
    job_id: str | None = None
    open_findings: int
    pips: list[int] = Field(
        description="Per GPU the worst severity of its open findings: 0 none, 1 info, 2 warning, 3 error, "
        "4 critical."
    )


class NodePage(BaseModel):
    """One page of nodes, by cluster and name."""

    items: list[Node]
    next_cursor: str = Field(description="Empty on the last page.")


class RankHere(BaseModel):
    """A rank on the node."""

    job_id: str
    attempt: int
    rank: int
    gpu_index: int | None = None
    coords: dict[str, int]
    last_seen_at: int


class Brief(BaseModel):
    """A finding in short."""

    id: str
    cluster: str
    kind: str
    severity: str
    status: str
    title: str
    cause: str | None = None
    node: str | None = None
    gpu_index: int | None = None
    gpu_uuid: str | None = None
    serial: str | None = None
    onset: int = Field(description="Epoch milliseconds.")
    resolved_at: int | None = None
    gpu_hours_lost: float


# Not the example of the base, which lacks what is required here.
class NodeDetail(Node, json_schema_extra={}):
    """A node with the ranks of the last ten minutes and its newest 200 findings."""

    ranks: list[RankHere]
    findings: list[Brief]


class Gpu(BaseModel):
    """A GPU of a node."""

    cluster: str
    node: str
    gpu_index: int
    severity: int = Field(description="As in `pips` of a node.")
    rack: str | None = None
    job_id: str | None = None
    id: str = Field(description="`node:index`, for `/gpus/{id}`.")


class GpuPage(BaseModel):
    """The GPUs of one page of nodes."""

    items: list[Gpu]
    next_cursor: str = Field(description="Empty on the last page.")


class GpuHistory(BaseModel):
    """What one GPU has had, on whatever node it was."""

    id: str
    places: list[str] = Field(description="`node:index` of its findings, the latest first.")
    findings: list[Brief]
    gpu_hours_lost: float


@router.get("/nodes", responses={200: {"model": NodePage}, 304: conditional.UNCHANGED})
def read_nodes(
    request: Request, services: ServicesDep, principal: TelemetryReader, query: Annotated[NodeQuery, Query()]
) -> Response:
    """List nodes; `node` takes Slurm host lists."""
    found, cursor = _page(services, principal, query, "nodes")
    now = services.now()
    return conditional.answer(request, {"items": [shown(n, now) for n in found], "next_cursor": cursor})


@router.get("/nodes/{node}", responses={200: {"model": NodeDetail}, 304: conditional.UNCHANGED})
def read_node(
    node: Annotated[str, Path(max_length=128)],
    request: Request,
    services: ServicesDep,
    principal: TelemetryReader,
    cluster: Name | None = None,
) -> Response:
    """Return a node with its ranks and findings; `cluster` is needed where two clusters have the name."""
    clusters, now = readable(principal, cluster), services.now()
    with services.pool.connection() as conn, bounded(conn):
        wanted = NodeFilter(clusters=clusters or (), nodes=(node,), limit=2)
        found = [] if clusters is None else stored.nodes(conn, wanted)
        if not found:
            raise not_found("node", node)
        if len(found) > 1:
            raise contradiction("#/query/cluster", "several clusters have this node; name one")
        ranks = stored.ranks_on(conn, found[0].cluster, node, now - RECENT)
        past = stored.findings_of_node(conn, found[0].cluster, node)
    here = [_rank(row) for row in ranks]
    return conditional.answer(
        request, shown(found[0], now) | {"ranks": here, "findings": [brief(row) for row in past]}
    )


@router.get("/gpus", responses={200: {"model": GpuPage}, 304: conditional.UNCHANGED})
def read_gpus(
    request: Request, services: ServicesDep, principal: TelemetryReader, query: Annotated[NodeQuery, Query()]
) -> Response:
    """List the GPUs of nodes; `limit` counts nodes."""
    found, cursor = _page(services, principal, query, "gpus")
    items = [
        _known(
            cluster=n.cluster,
            node=n.node,
            gpu_index=i,
            severity=severity,
            rack=n.rack,
            job_id=n.job_id,
            id=f"{n.node}:{i}",
        )
        for n in found
        for i, severity in enumerate(n.pips)
    ]
    return conditional.answer(request, {"items": items, "next_cursor": cursor})


@router.get("/gpus/{gpu_id}", responses={200: {"model": GpuHistory}, 304: conditional.UNCHANGED})
def read_gpu(
    gpu_id: Annotated[str, Path(max_length=160, description="UUID, serial number, or `node:index`.")],
    request: Request,
    services: ServicesDep,
    principal: TelemetryReader,
) -> Response:
    """Return the findings of a GPU. By UUID or serial number its history follows it from node to node.

    By `node:index` it is that of the place, for GPUs whose findings carry neither.
    """
    with services.pool.connection() as conn, bounded(conn):
        past = stored.findings_of_gpu(conn, gpu_id, principal.clusters)
    places = dict.fromkeys(f"{row['node']}:{row['gpu_index']}" for row in past if row["node"])
    lost = sum(row["gpu_hours_lost"] for row in past)
    found = {"id": gpu_id, "places": list(places), "findings": [brief(row) for row in past]}
    return conditional.answer(request, found | {"gpu_hours_lost": lost})


def state_of(node: NodeState, now: datetime) -> State:
    """Return how a node is: silent before anything else, as what is open may have ended with it."""
    if node.last_seen_at < now - SILENT:
        return "silent"
    states: tuple[State, ...] = ("ok", "info", "warning", "error", "critical")
    return states[node.worst]


def shown(node: NodeState, now: datetime) -> dict[str, Any]:
    """Return a node as it is served."""
    return _known(
        cluster=node.cluster,
        node=node.node,
        state=state_of(node, now),
        last_seen_at=milliseconds(node.last_seen_at),
        rack=node.rack,
        switch=node.switch,
        gpus=node.gpus,
        nics=node.nics,
        job_id=node.job_id,
        open_findings=node.open,
        pips=list(node.pips),
    )


def brief(row: dict[str, Any]) -> dict[str, Any]:
    """Return a finding in short, as it is served."""
    times = {
        name: None if row[name] is None else milliseconds(row[name]) for name in ("onset", "resolved_at")
    }
    return _known(**(row | times))


def coords_of(row: dict[str, Any]) -> dict[str, int]:
    """Return the parallel coordinates of a rank that are known."""
    return {name: row[name] for name in ("dp", "pp", "tp", "cp", "ep") if row[name] is not None}


def _rank(row: dict[str, Any]) -> dict[str, Any]:
    return _known(
        job_id=row["job_id"],
        attempt=row["attempt"],
        rank=row["rank"],
        gpu_index=row["gpu_index"],
        coords=coords_of(row),
        last_seen_at=milliseconds(row["last_seen_at"]),
    )


def _page(
    services: Services, principal: Principal, query: NodeQuery, what: str
) -> tuple[list[NodeState], str]:
    """Return one page of nodes and the cursor of the next, empty on the last."""
    bound = {"list": what, "clusters": principal.clusters} | query.model_dump(exclude={"cursor", "limit"})
    position = services.cursors.open(query.cursor, bound) if query.cursor else None
    clusters = readable(principal, query.cluster)
    if clusters is None:
        return [], ""
    wanted = NodeFilter(
        clusters=clusters,
        nodes=hosts(query.node),
        racks=tuple(query.rack),
        job_id=query.job_id,
        after=None if position is None else (position[0], position[1]),
        # One more than the page holds shows whether there is a next page.
        limit=query.limit + 1,
    )
    with services.pool.connection() as conn, bounded(conn):
        found = stored.nodes(conn, wanted)
    more, page = len(found) > query.limit, found[: query.limit]
    return page, services.cursors.seal([page[-1].cluster, page[-1].node], bound) if more else ""


def _known(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
