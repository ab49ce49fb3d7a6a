"""One metric of one subject over time, beside the band of its peers, and the distribution of the peers."""

from datetime import datetime, timedelta
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response
from psycopg import Connection
from pydantic import AfterValidator, BaseModel, Field

from api.deps import ServicesDep
from api.http import conditional
from api.http.problems import Problem, contradiction
from api.routes.dashboard.ranges import Name, Range, milliseconds
from api.security.auth import TelemetryReader
from store.telemetry.buckets import BUCKET_SECONDS
from store.telemetry.metrics import STORED, Owner, StoredMetric
from store.telemetry.windows import (
    Selection,
    bins,
    bounded,
    lacks_device,
    means,
    of_devices,
    of_ranks,
    peer_nodes,
    rank_count,
)

router = APIRouter(prefix="/api/v1", tags=["telemetry"])

# Windows of queries that name none. Chosen: 360 roll-ups of one series; of many devices what is now.
DEFAULT_WINDOW = timedelta(hours=1)
PEER_WINDOW = timedelta(minutes=5)

# Roll-ups that one series may take with its band. Chosen: a second of the database's time.
MAX_ROWS = 500_000
_DEVICE: dict[Owner, str] = {"gpu": "GPU", "nic": "port", "host": "instance"}
# Devices of one kind on a node, for the estimate of what a band takes.
_PER_NODE = 8


def _known(name: str) -> str:
    if name not in STORED:
        raise ValueError(f"no roll-up has the metric {name[:64]!r}")
    return name


MetricName = Annotated[
    str,
    AfterValidator(_known),
    Field(description="A stored metric.", json_schema_extra=lambda s: s.update(enum=sorted(STORED))),
]


class SubjectQuery(Range):
    """Whose series: a device by `node` (and `instance`), or ranks by `job_id` (and `rank`)."""

    metric: MetricName
    cluster: Annotated[str, Field(min_length=1, max_length=128)]
    node: Name | None = None
    instance: Name | None = Field(default=None, description="GPU index, or `device/port` of a NIC.")
    job_id: Name | None = None
    attempt: int | None = Field(default=None, ge=0, le=2**31 - 1)
    rank: int | None = Field(default=None, ge=0, le=2**31 - 1)


class SeriesQuery(SubjectQuery):
    """A series."""

    max_points: int = Field(default=800, ge=1, le=2000)
    band: Literal["auto", "none"] = Field(
        default="auto",
        description="`auto`: quantiles of the peers where the window is short enough.",
    )


_SERIES: dict[str, Any] = {
    "metric": "gpu.clock.sm_hz",
    "unit": "Hz",
    "aggregate": "mean",
    "bin_ms": 10000,
    "t": [1795160550000, 1795160560000],
    "y": [1755000000.0, 1095000000.0],
    "lo": [1755000000.0, 1095000000.0],
    "hi": [1755000000.0, 1095000000.0],
    "band": True,
    "n": [511, 511],
    "p05": [1740000000.0, 1740000000.0],
    "median": [1755000000.0, 1755000000.0],
    "p95": [1770000000.0, 1770000000.0],
}


class Series(BaseModel, json_schema_extra={"examples": [_SERIES]}):
    """A series in columns: one value for each time in ``t``."""

    metric: str
    unit: str
    aggregate: str = Field(description="How the 10 s of a roll-up became one value.")
    bin_ms: int
    t: list[int] = Field(description="Starts of the bins, epoch milliseconds; empty bins are left out.")
    y: list[float | None] = Field(description="Mean; null where only peers have values.")
    lo: list[float | None] = Field(description="Smallest roll-up of the bin.")
    hi: list[float | None]
    band: bool = Field(description="Whether the peers were read.")
    n: list[int] = Field(description="Roll-ups of peers in the bin.")
    p05: list[float | None]
    median: list[float | None]
    p95: list[float | None]


class PeerMeans(BaseModel):
    """The means of all series over a window."""

    metric: str
    unit: str
    start: int
    end: int
    n: int
    p05: float | None = None
    median: float | None = None
    p95: float | None = None
    subject: float | None = None
    values: list[float] = Field(description="Of the peers, sorted; of more than 256 every k-th.")


@router.get("/series", responses={200: {"model": Series}, 304: {"description": "Unchanged."}})
def read_series(
    request: Request,
    services: ServicesDep,
    principal: TelemetryReader,
    query: Annotated[SeriesQuery, Query()],
) -> Response:
    """Return a metric over time in bins of mean, minimum and maximum, and the quantiles of its peers."""
    starts, ends = query.window(services.now(), DEFAULT_WINDOW)
    metric, step = STORED[query.metric], step_of(starts, ends, query.max_points)
    found = []
    with services.pool.connection() as conn, bounded(conn):
        chosen, band = _selection(conn, query, metric, starts, ends)
        if principal.may_see(query.cluster):
            found = bins(conn, metric, chosen, cluster=query.cluster, starts=starts, ends=ends, step=step)
            if all(row.value is None for row in found):
                _check_device(conn, query, metric)
    shown: dict[str, Any] = {
        "metric": metric.name,
        "unit": metric.unit,
        "aggregate": metric.aggregate,
        "bin_ms": round(step.total_seconds() * 1000),
        "t": [round(row.at * 1000) for row in found],
        "y": [row.value for row in found],
        "band": band,
    }
    names = ("lo", "hi", "n", "p05", "median", "p95")
    return conditional.answer(
        request, shown | {name: [getattr(row, name) for row in found] for name in names}
    )


@router.get("/peers", responses={200: {"model": PeerMeans}, 304: {"description": "Unchanged."}})
def read_peers(
    request: Request,
    services: ServicesDep,
    principal: TelemetryReader,
    query: Annotated[SubjectQuery, Query()],
) -> Response:
    """Return the distribution of the peers over a window (default: five minutes), and the subject in it."""
    starts, ends = query.window(services.now(), PEER_WINDOW)
    metric = STORED[query.metric]
    own: list[float] = []
    peers: list[float] = []
    with services.pool.connection() as conn, bounded(conn):
        chosen, band = _selection(conn, query, metric, starts, ends)
        if not band:
            raise contradiction("#/query/from", "the peers of so long a window are too many; ask for less")
        if principal.may_see(query.cluster):
            own, peers = means(conn, metric, chosen, cluster=query.cluster, starts=starts, ends=ends)
            if not own:
                _check_device(conn, query, metric)
    shown: dict[str, Any] = {"metric": metric.name, "unit": metric.unit, "n": len(peers)}
    shown |= {"start": milliseconds(starts), "end": milliseconds(ends), "values": _thinned(peers)}
    if peers:
        last = len(peers) - 1
        shown |= {name: peers[round(q * last)] for name, q in (("p05", 0.05), ("median", 0.5), ("p95", 0.95))}
    return conditional.answer(request, shown | ({"subject": sum(own) / len(own)} if own else {}))


def step_of(starts: datetime, ends: datetime, most: int) -> timedelta:
    """Return the width of at most ``most`` bins over a window: a multiple of a roll-up."""
    buckets = -int(-(ends - starts).total_seconds() // BUCKET_SECONDS)
    # One bin less, as the first may begin before the window.
    return timedelta(seconds=BUCKET_SECONDS * max(1, -(-buckets // max(1, most - 1))))


def _selection(
    conn: Connection[Any], query: SubjectQuery, metric: StoredMetric, starts: datetime, ends: datetime
) -> tuple[Selection, bool]:
    """Return whose rows to read, and whether peers are among them. Raises the 409 problem of no subject."""
    buckets = (ends - starts).total_seconds() / BUCKET_SECONDS
    wanted = getattr(query, "band", "auto") == "auto"
    if metric.owner == "rank":
        if query.job_id is None:
            raise contradiction("#/query/job_id", f"{metric.name} is of ranks; give job_id, and rank for one")
        own = [query.rank] if query.rank is not None else query.node
        ranks = rank_count(conn, query.cluster, query.job_id)
        band = wanted and buckets * ranks <= MAX_ROWS
        return of_ranks(query.job_id, attempt=query.attempt, own=own, peers=band), band
    if query.node is None:
        raise contradiction("#/query/node", f"{metric.name} is of devices; give node, and instance for one")
    nodes = peer_nodes(conn, query.cluster, query.node, job_id=query.job_id, since=starts)
    affordable = int(MAX_ROWS / max(1.0, buckets * _PER_NODE))
    band = wanted and affordable >= 1
    chosen = nodes[: max(1, affordable)] if band else nodes[:1]
    return of_devices(chosen, node=query.node, instance=query.instance, peers=band), band


def _check_device(conn: Connection[Any], query: SubjectQuery, metric: StoredMetric) -> None:
    """Raise the 404 problem where the node has no such device; one that is silent is none."""
    if metric.owner == "rank" or query.node is None or query.instance is None:
        return
    if lacks_device(conn, metric, query.cluster, query.node, query.instance):
        device = f"{_DEVICE[metric.owner]} {query.instance[:80]!r}"
        raise Problem(404, "not-found", f"node {query.node[:80]!r} has no {device} with {metric.name}")


def _thinned(values: list[float], most: int = 256) -> list[float]:
    """Return at most ``most`` of sorted values, the smallest and the largest among them."""
    if len(values) <= most:
        return values
    return [values[round(i * (len(values) - 1) / (most - 1))] for i in range(most)]
