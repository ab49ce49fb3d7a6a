"""Jobs: what they have lost and why, where their ranks run, and their step times as band and heat map."""

import math
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Path, Query, Request, Response
from psycopg import Connection
from pydantic import BaseModel, Field

from api.deps import ServicesDep
from api.http import conditional
from api.http.problems import contradiction, not_found
from api.routes.dashboard import level_changes
from api.routes.dashboard.band import band
from api.routes.dashboard.heat import Heat, ratios
from api.routes.dashboard.nodes import coords_of
from api.routes.dashboard.ranges import Name, Range, milliseconds, readable
from api.security.auth import Principal, TelemetryReader
from api.silent_jobs import RUNNING
from detectors.changepoint.offline_segmentation import change_points
from store.dashboard import jobs as stored
from store.dashboard import steps
from store.dashboard.jobs import JobFilter
from store.dashboard.steps import Grid, OfJob, grid_of
from store.telemetry.metrics import stored_metric
from store.telemetry.windows import MATRIX_SECONDS, bounded

router = APIRouter(prefix="/api/v1/jobs", tags=["telemetry"])

# Window of a query that names none. Chosen: 180 roll-ups of ten seconds, each a point of the band.
DEFAULT_WINDOW = timedelta(minutes=30)

# Cells of a heat map; above, the rows are nodes instead of ranks.
MAX_CELLS = 2_500_000
# Of change points in a job's step time (chosen: above the CV of a healthy job's steps, 0.4 to 2.4 %).
LEAST_CHANGE = 1.03
JobId = Annotated[str, Path(max_length=128)]
State = Literal["running", "hung", "silent"]
Metric = Literal["step_seconds", "compute_seconds", "wait_seconds"]


class JobQuery(BaseModel, extra="forbid"):
    """Filters of jobs."""

    cluster: Name | None = None
    job_id: Name | None = None
    running: bool = Field(default=False, description="Only jobs with a step in the last two minutes.")
    limit: int = Field(default=100, ge=1, le=1000)
    cursor: str | None = Field(default=None, max_length=1024)


class WindowQuery(Range):
    """A window (default: the last 30 minutes of the job) and what to show of it."""

    cluster: Name | None = None
    attempt: int | None = Field(default=None, ge=0, le=2**31 - 1)
    metric: Metric = "compute_seconds"


class StepsQuery(WindowQuery):
    """The band of a job's step times."""

    metric: Metric = "step_seconds"
    max_points: int = Field(default=300, ge=1, le=1000)


class HeatQuery(WindowQuery):
    """The heat map of a job."""

    max_columns: int = Field(default=500, ge=1, le=1000)


class RanksQuery(BaseModel, extra="forbid"):
    """Ranks of an attempt, the latest if none is given."""

    cluster: Name | None = None
    attempt: int | None = Field(default=None, ge=0, le=2**31 - 1)
    limit: int = Field(default=1000, ge=1, le=1000)
    cursor: str | None = Field(default=None, max_length=1024)


_JOB: dict[str, Any] = {
    "cluster": "prod-a",
    "job_id": "812345",
    "attempt": 1,
    "attempts": 2,
    "world_size": 4096,
    "started_at": 1795150000000,
    "last_seen_at": 1795160560000,
    "running": True,
    "state": "running",
    "first_step": 0,
    "last_step": 41699,
    "open_findings": 1,
    "gpu_hours_lost": 137.9,
}


class Job(BaseModel, json_schema_extra={"examples": [_JOB]}):
    """A job."""

    cluster: str
    job_id: str
    attempt: int = Field(description="The latest.")
    attempts: int
    world_size: int = Field(description="Ranks; those that were seen if the job does not report it.")
    started_at: int = Field(description="Epoch milliseconds of the first step.")
    last_seen_at: int
    running: bool = Field(description="Whether `state` is `running`.")
    state: State = Field(
        description="`running`: a step in the last two minutes; `hung`: an open finding says that it stands "
        "still; `silent`: neither, so that it has ended or sends nothing."
    )
    first_step: int
    last_step: int
    open_findings: int
    gpu_hours_lost: float


class JobPage(BaseModel):
    """One page of jobs, the latest start first."""

    items: list[Job]
    next_cursor: str = Field(description="Empty on the last page.")


class Attempt(BaseModel):
    """One start of a job."""

    attempt: int
    world_size: int
    first_step: int
    last_step: int
    started_at: int
    last_seen_at: int


class Cost(BaseModel):
    """What findings of one kind and cause have cost the job."""

    kind: str
    cause: str
    findings: int
    open: int
    gpu_hours_lost: float


# Not the example of the base, which lacks what is required here.
class JobDetail(Job, json_schema_extra={}):
    """A job with its attempts and costs."""

    history: list[Attempt] = Field(description="The latest first, at most 100.")
    lost: list[Cost] = Field(description="The dearest first.")
    degrees: dict[str, int] = Field(description="How many coordinates there are of each kind: dp, pp, tp, …")
    nodes: int


class Place(BaseModel):
    """Where a rank runs."""

    rank: int
    node: str
    gpu_index: int | None = None
    coords: dict[str, int]
    first_seen_at: int
    last_seen_at: int


class PlacePage(BaseModel):
    """One page of ranks."""

    attempt: int
    items: list[Place]
    next_cursor: str = Field(description="Empty on the last page.")


class Explained(BaseModel):
    """What happened near a change of level and may explain it."""

    what: level_changes.What
    at: int = Field(description="Epoch milliseconds.")
    text: str = Field(description="What the job declared, the sizes, or the title of the finding.")
    finding_id: str | None = None


class LevelChange(BaseModel):
    """A change of the level of a job."""

    at: int = Field(description="Start of the first bin of the new level, epoch milliseconds.")
    ratio: float | None = Field(description="The level after it by the level before; null for a level of 0.")
    before: float = Field(description="Median of the bins since the change before, in the unit of the band.")
    after: float = Field(description="Median of the bins until the next change.")
    explanations: list[Explained] = Field(
        description="What is known of the minute before it, the likeliest first, at most 8. Findings need a "
        "key with `findings:read`. Evaluations and checkpoints that are so frequent that one lies beside any "
        "change are left out."
    )


class Band(BaseModel):
    """Quantiles over the ranks, in columns: one value for each time in ``t``."""

    job_id: str
    cluster: str
    metric: str
    unit: str
    sampled: bool = Field(description="Whether one roll-up of 10 s stands for each bin, as all are too many.")
    bin_ms: int
    t: list[int] = Field(
        description="Starts of the bins, epoch milliseconds; those without steps are left out."
    )
    first_step: list[int]
    last_step: list[int]
    ranks: list[int]
    p05: list[float]
    median: list[float]
    p95: list[float]
    max: list[float]
    slowest_rank: list[int]
    checkpoints: list[tuple[int, float]] = Field(
        description="Start of each bin in which ranks saved a checkpoint, epoch milliseconds, and the "
        "longest time that one spent saving, in seconds; only of jobs that report the phase."
    )
    change_points: list[LevelChange] = Field(
        description="Where the median changes its level by 3 % or more, by an offline segmentation of the "
        "window; empty without the extra `science`. Information, and never a finding."
    )


class Matrix(BaseModel):
    """Cells as bytes: value = lo + code / 254 × (hi - lo), row by row; ``missing`` where there is none."""

    encoding: Literal["u8-linear"]
    lo: float
    hi: float
    missing: int
    data: str = Field(description="Base64.")
    top: list[tuple[int, int, float]] = Field(
        description="Row, column and ratio of the largest cells from 1.05 on, at most 200, the largest first."
    )


class HeatRows(BaseModel):
    """What the rows are, in columns: nodes have no ``rank``."""

    rank: list[int] = []
    node: list[str]
    gpu_index: list[int | None] = []
    pp: list[int | None] = []
    dp: list[int | None] = []
    tp: list[int | None] = []


_HEAT_MAP: dict[str, Any] = {
    "job_id": "812345",
    "cluster": "prod-a",
    "metric": "compute_seconds",
    "value": "ratio_to_peer_median",
    "by": "rank",
    "sampled": False,
    "bin_ms": 10000,
    "t": [1795160550000, 1795160560000],
    "first_step": [41690, 41695],
    "last_step": [41694, 41699],
    "rows": {
        "rank": [3389],
        "node": ["gpu-0423"],
        "gpu_index": [5],
        "pp": [3],
        "dp": [39],
        "tp": [5],
    },
    "encoding": "u8-linear",
    "lo": 1.0,
    "hi": 1.5,
    "missing": 255,
    "data": "AJw=",
    "top": [[0, 1, 1.31]],
}


class HeatMap(Matrix, json_schema_extra={"examples": [_HEAT_MAP]}):
    """How slow each rank was beside the ranks of its pipeline stage."""

    job_id: str
    cluster: str
    metric: str
    value: Literal["ratio_to_peer_median"]
    by: Literal["rank", "node"] = Field(description="`node`: the slowest rank of each node, for large jobs.")
    sampled: bool
    bin_ms: int
    t: list[int]
    first_step: list[int | None] = Field(description="Of some of the ranks; null without steps.")
    last_step: list[int | None]
    rows: HeatRows = Field(description="Ordered by pipeline stage, data-parallel index, rank.")


class DpPp(Matrix):
    """The slowest rank of each data-parallel index (column) and pipeline stage (row) over the window."""

    job_id: str
    cluster: str
    metric: str
    value: Literal["ratio_to_peer_median"]
    pp: list[int]
    dp: list[int]
    slowest_rank: list[list[int | None]]


@router.get("", responses={200: {"model": JobPage}, 304: conditional.UNCHANGED})
def read_jobs(
    request: Request, services: ServicesDep, principal: TelemetryReader, query: Annotated[JobQuery, Query()]
) -> Response:
    """List jobs that sent step times, the latest start first."""
    bound = {"list": "jobs", "clusters": principal.clusters} | query.model_dump(exclude={"cursor", "limit"})
    position = services.cursors.open(query.cursor, bound) if query.cursor else None
    after = None if position is None else (datetime.fromisoformat(position[0]), position[1], position[2])
    clusters, now = readable(principal, query.cluster), services.now()
    found: list[dict[str, Any]] = []
    if clusters is not None:
        since = now - RUNNING if query.running else None
        wanted = JobFilter(
            clusters=clusters, job_id=query.job_id, since=since, after=after, limit=query.limit + 1
        )
        with services.pool.connection() as conn, bounded(conn):
            found = stored.with_totals(conn, stored.jobs(conn, wanted))
    more, page = len(found) > query.limit, found[: query.limit]
    last = [page[-1]["started_at"].isoformat(), page[-1]["cluster"], page[-1]["job_id"]] if more else []
    cursor = services.cursors.seal(last, bound) if more else ""
    return conditional.answer(request, {"items": [_job(row, now) for row in page], "next_cursor": cursor})


@router.get("/{job_id:path}/ranks", responses={200: {"model": PlacePage}, 304: conditional.UNCHANGED})
def read_ranks(
    job_id: JobId,
    request: Request,
    services: ServicesDep,
    principal: TelemetryReader,
    query: Annotated[RanksQuery, Query()],
) -> Response:
    """List where the ranks of a job run."""
    asked = query.model_dump(exclude={"cursor", "limit"})
    bound = {"list": "ranks", "job": job_id, "clusters": principal.clusters} | asked
    after = services.cursors.open(query.cursor, bound)[0] if query.cursor else -1
    with services.pool.connection() as conn, bounded(conn):
        job = _the_job(conn, job_id, principal, query.cluster)
        attempt = job["attempt"] if query.attempt is None else query.attempt
        found = stored.ranks(conn, job["cluster"], job_id, attempt, after=after, limit=query.limit + 1)
    more, page = len(found) > query.limit, found[: query.limit]
    cursor = services.cursors.seal([page[-1]["rank"]], bound) if more else ""
    items = [_place(row) for row in page]
    return conditional.answer(request, {"attempt": attempt, "items": items, "next_cursor": cursor})


@router.get("/{job_id:path}/steps", responses={200: {"model": Band}, 304: conditional.UNCHANGED})
def read_steps(
    job_id: JobId,
    request: Request,
    services: ServicesDep,
    principal: TelemetryReader,
    query: Annotated[StepsQuery, Query()],
) -> Response:
    """Return the band of a job's step times over its ranks, and which rank was the slowest."""
    with services.pool.connection() as conn, bounded(conn, MATRIX_SECONDS):
        job, of, grid = _read_window(conn, job_id, principal, query, services.now(), query.max_points)
        found = steps.values(conn, of, grid)
        known = _known(conn, job, grid, principal)
    rows, times = band(found), grid.times()
    shown = {
        "job_id": job_id,
        "cluster": job["cluster"],
        "metric": of.metric.name,
        "unit": of.metric.unit,
        "sampled": grid.sampled,
        "bin_ms": round(grid.step.total_seconds() * 1000),
        "t": [times[row.source.col] for row in rows],
        "first_step": [row.source.first_step for row in rows],
        "last_step": [row.source.last_step for row in rows],
        "ranks": [row.ranks for row in rows],
        "max": [row.max for row in rows],
    }
    shown |= {name: [row.quantiles[i] for row in rows] for i, name in enumerate(("p05", "median", "p95"))}
    saved = [(at, row.source.checkpoint) for at, row in zip(shown["t"], rows, strict=True)]
    shown |= {"checkpoints": [[at, round(seconds, 3)] for at, seconds in saved if seconds]}
    if not any(one.what == "checkpoint" for one in known):
        known += [
            level_changes.Explanation(at, "checkpoint", f"{longest:g} s")
            for at, longest in shown["checkpoints"]
        ]
    levels = np.log(np.maximum(shown["median"], np.finfo(float).tiny))
    edges = change_points(levels, math.log(LEAST_CHANGE))
    shown["change_points"] = level_changes.changes(
        edges, shown["t"], shown["median"], shown["ranks"], bin_ms=shown["bin_ms"], known=known
    )
    return conditional.answer(request, shown | {"slowest_rank": [row.slowest for row in rows]})


@router.get("/{job_id:path}/heatmap", responses={200: {"model": HeatMap}, 304: conditional.UNCHANGED})
def read_heatmap(
    job_id: JobId,
    request: Request,
    services: ServicesDep,
    principal: TelemetryReader,
    query: Annotated[HeatQuery, Query()],
) -> Response:
    """Return how slow each rank was beside its peers, bin by bin."""
    with services.pool.connection() as conn, bounded(conn, MATRIX_SECONDS):
        job, of, grid = _read_window(conn, job_id, principal, query, services.now(), query.max_columns)
        attempt = job["attempt"] if query.attempt is None else query.attempt
        places = _in_order(stored.ranks(conn, job["cluster"], job_id, attempt))
        by: Literal["rank", "node"] = "rank" if len(places) * grid.bins <= MAX_CELLS else "node"
        rows = _rows_of(places, by)
        found = steps.values(conn, of, grid)
    made = {one.col: (one.first_step, one.last_step) for one in found}
    heat = Heat(max(rows.values(), default=-1) + 1, grid.bins)
    for rank, beside_peers in ratios(found, _stages(places), grid.bins).items():
        if rank in rows:
            heat.add(rows[rank], beside_peers)
    shown = {
        "job_id": job_id,
        "cluster": job["cluster"],
        "metric": of.metric.name,
        "value": "ratio_to_peer_median",
        "by": by,
        "sampled": grid.sampled,
        "bin_ms": round(grid.step.total_seconds() * 1000),
        "t": grid.times(),
        "first_step": [made[i][0] if i in made else None for i in range(grid.bins)],
        "last_step": [made[i][1] if i in made else None for i in range(grid.bins)],
        "rows": _row_columns(places, by),
    }
    return conditional.answer(request, shown | heat.shown())


@router.get("/{job_id:path}/matrix", responses={200: {"model": DpPp}, 304: conditional.UNCHANGED})
def read_matrix(
    job_id: JobId,
    request: Request,
    services: ServicesDep,
    principal: TelemetryReader,
    query: Annotated[WindowQuery, Query()],
) -> Response:
    """Return the DP × PP matrix: how slow the slowest rank of each pair was over the whole window."""
    with services.pool.connection() as conn, bounded(conn, MATRIX_SECONDS):
        job, of, grid = _read_window(conn, job_id, principal, query, services.now(), 1)
        attempt = job["attempt"] if query.attempt is None else query.attempt
        places = {p["rank"]: p for p in stored.ranks(conn, job["cluster"], job_id, attempt)}
        values = steps.values(conn, of, grid)
    found = {rank: row[0] for rank, row in ratios(values, _stages(places.values()), 1).items()}
    pps = sorted({p["pp"] or 0 for p in places.values()})
    dps = sorted({p["dp"] or 0 for p in places.values()})
    heat = Heat(len(pps), len(dps))
    worst: list[list[int | None]] = [[None] * len(dps) for _ in pps]
    for rank in sorted(found.keys() & places.keys(), key=lambda r: found[r]):
        row, column = pps.index(places[rank]["pp"] or 0), dps.index(places[rank]["dp"] or 0)
        heat.add(row, found[rank], column)
        worst[row][column] = rank
    shown = {"job_id": job_id, "cluster": job["cluster"], "metric": of.metric.name, "pp": pps, "dp": dps}
    shown |= {"value": "ratio_to_peer_median", "slowest_rank": worst}
    return conditional.answer(request, shown | heat.shown())


# After the others: an id may have slashes, and this path takes all that follows.
@router.get("/{job_id:path}", responses={200: {"model": JobDetail}, 304: conditional.UNCHANGED})
def read_job(
    job_id: JobId,
    request: Request,
    services: ServicesDep,
    principal: TelemetryReader,
    cluster: Name | None = None,
) -> Response:
    """Return a job; `cluster` is needed where two clusters have the id."""
    with services.pool.connection() as conn, bounded(conn):
        job = _the_job(conn, job_id, principal, cluster)
        history = stored.attempts(conn, job["cluster"], job_id)
        costs = stored.costs_of(conn, job["cluster"], job_id)
        places = stored.ranks(conn, job["cluster"], job_id, job["attempt"])
        hung = bool(stored.hung(conn, [job["job_id"]]) & {(job["cluster"], job["job_id"])})
    names = ("dp", "pp", "tp", "cp", "ep")
    kinds = {name: {p[name] for p in places if p[name] is not None} for name in names}
    shown = _job(job | stored.totals_of(costs) | {"hung": hung}, services.now()) | {
        "history": [_attempt(row) for row in history],
        "lost": costs,
        "degrees": {name: len(found) for name, found in kinds.items() if found},
        "nodes": len({p["node"] for p in places}),
    }
    return conditional.answer(request, shown)


def _the_job(conn: Connection[Any], job_id: str, principal: Principal, cluster: str | None) -> dict[str, Any]:
    clusters = readable(principal, cluster)
    found = (
        [] if clusters is None else stored.jobs(conn, JobFilter(clusters=clusters, job_id=job_id, limit=2))
    )
    if not found:
        raise not_found("job", job_id)
    if len(found) > 1:
        raise contradiction("#/query/cluster", "several clusters have a job of this id; name one")
    return found[0]


def _read_window(
    conn: Connection[Any],
    job_id: str,
    principal: Principal,
    query: WindowQuery,
    now: datetime,
    most: int,
) -> tuple[dict[str, Any], OfJob, Grid]:
    """Return the job, what to read of it, and the bins; without a time those of its last minutes."""
    job = _the_job(conn, job_id, principal, query.cluster)
    given = query.from_ is not None or query.to is not None or query.since is not None
    starts, ends = query.window(now, DEFAULT_WINDOW)
    if not given:
        # The bucket of the last step is 10 s long.
        ends = min(now, job["last_seen_at"] + timedelta(seconds=10))
        starts = ends - DEFAULT_WINDOW
    metric = stored_metric(query.metric)
    assert metric is not None
    grid = grid_of(starts, ends, series=max(1, job["world_size"]), most=most)
    return job, OfJob(cluster=job["cluster"], job_id=job_id, attempt=query.attempt, metric=metric), grid


def _known(
    conn: Connection[Any], job: dict[str, Any], grid: Grid, principal: Principal
) -> list[level_changes.Explanation]:
    """Return what may explain changes of a job's level in a window and a little around it."""
    around = max(grid.step, timedelta(milliseconds=level_changes.REACH_MS))
    of = (job["cluster"], job["job_id"], grid.starts - around, grid.ends + around)
    known = level_changes.restarts(stored.attempts(conn, job["cluster"], job["job_id"]))
    known += level_changes.declared(stored.events(conn, *of))
    if "findings:read" in principal.scopes:
        known += level_changes.begun_or_ended(stored.findings_within(conn, *of), *of[2:])
    return known


def _stages(places: Iterable[dict[str, Any]]) -> dict[int, int]:
    """Return the pipeline stage of each rank that has one."""
    return {place["rank"]: place["pp"] for place in places if place["pp"] is not None}


def _in_order(places: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return ranks by pipeline stage, then data-parallel index, then rank."""
    return sorted(places, key=lambda p: (p["pp"] or 0, p["dp"] or 0, p["rank"]))


def _rows_of(places: list[dict[str, Any]], by: Literal["rank", "node"]) -> dict[int, int]:
    """Return the row of each rank."""
    if by == "rank":
        return {place["rank"]: i for i, place in enumerate(places)}
    of_node = {node: i for i, node in enumerate(dict.fromkeys(place["node"] for place in places))}
    return {place["rank"]: of_node[place["node"]] for place in places}


def _row_columns(places: list[dict[str, Any]], by: Literal["rank", "node"]) -> dict[str, Any]:
    if by == "node":
        return {"node": list(dict.fromkeys(place["node"] for place in places))}
    names = ("rank", "node", "gpu_index", "pp", "dp", "tp")
    return {name: [place[name] for place in places] for name in names}


def state_of(row: dict[str, Any], now: datetime) -> State:
    """Return the state of a job, from its last step and whether a finding says that it is hung."""
    if row["hung"]:
        return "hung"
    return "running" if row["last_seen_at"] >= now - RUNNING else "silent"


def _job(row: dict[str, Any], now: datetime) -> dict[str, Any]:
    times = {name: milliseconds(row[name]) for name in ("started_at", "last_seen_at")}
    state = state_of(row, now)
    shown = {name: value for name, value in row.items() if name != "hung"}
    return shown | times | {"running": state == "running", "state": state}


def _attempt(row: dict[str, Any]) -> dict[str, Any]:
    shown = {name: row[name] for name in ("attempt", "world_size", "first_step", "last_step")}
    times = {"started_at": row["first_seen_at"], "last_seen_at": row["last_seen_at"]}
    return shown | {name: milliseconds(at) for name, at in times.items()}


def _place(row: dict[str, Any]) -> dict[str, Any]:
    shown = {"rank": row["rank"], "node": row["node"], "coords": coords_of(row)}
    shown |= {name: milliseconds(row[name]) for name in ("first_seen_at", "last_seen_at")}
    return shown | ({} if row["gpu_index"] is None else {"gpu_index": row["gpu_index"]})
