"""Findings on a time axis: as bars, and as annotations in Grafana's form."""

from datetime import datetime, timedelta
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, Field

from api.deps import ServicesDep
from api.http import conditional
from api.http.hosts import HostList, hosts
from api.routes.dashboard.ranges import Name, Range, milliseconds, readable
from api.security.auth import FindingsReader, Principal
from store.dashboard.timeline import BarFilter, bars
from store.telemetry.windows import bounded

router = APIRouter(prefix="/api/v1", tags=["findings"])

# Window of a query that names none. Chosen: what happened since the shift of yesterday.
DEFAULT_WINDOW = timedelta(days=1)
Group = Literal["node", "job", "kind"]
_COLUMN = {"node": "node", "job": "job_id", "kind": "kind"}


class TimelineQuery(Range):
    """Which findings, and by what the bars are grouped."""

    cluster: Name | None = None
    node: list[HostList] = Field(default=[], max_length=50)
    kind: list[Annotated[str, Field(max_length=64)]] = Field(default=[], max_length=20)
    job_id: Name | None = None
    group: Group = "node"
    limit: int = Field(default=500, ge=1, le=1000)
    cursor: str | None = Field(default=None, max_length=1024)


class AnnotationQuery(Range):
    """Which findings."""

    cluster: Name | None = None
    node: list[HostList] = Field(default=[], max_length=50)
    kind: list[Annotated[str, Field(max_length=64)]] = Field(default=[], max_length=20)
    job_id: Name | None = None
    limit: int = Field(default=500, ge=1, le=1000)


_BAR: dict[str, Any] = {
    "id": "fnd_01JD7Q4Y6R8V2M3K5N9P0S1T2W",
    "cluster": "prod-a",
    "kind": "straggler.fail_slow",
    "severity": "critical",
    "status": "open",
    "title": "gpu-0423 GPU 5 (rank 3389) is 1.31x slower than 127 peers",
    "subject_type": "gpu",
    "node": "gpu-0423",
    "gpu_index": 5,
    "rank": 3389,
    "job_id": "812345",
    "group": "gpu-0423",
    "start": 1795160560000,
    "end": None,
    "gpu_hours_lost": 137.9,
}


class Bar(BaseModel, json_schema_extra={"examples": [_BAR]}):
    """A finding as a bar."""

    id: str
    cluster: str
    kind: str
    severity: str
    status: str
    title: str
    subject_type: str
    node: str | None = None
    gpu_index: int | None = None
    rank: int | None = None
    job_id: str | None = None
    group: str = Field(description="Its row: the node, job or kind; empty where it has none.")
    start: int = Field(description="Epoch milliseconds of the onset.")
    end: int | None = Field(default=None, description="Null while it is open.")
    gpu_hours_lost: float


class Timeline(BaseModel):
    """One page of bars, the latest onset first."""

    start: int = Field(description="Of the window, epoch milliseconds.")
    end: int
    items: list[Bar]
    next_cursor: str = Field(description="Empty on the last page.")


_ANNOTATION: dict[str, Any] = {
    "time": 1795160560000,
    "timeEnd": 1795161072000,
    "title": "gpu-0423 GPU 5 (rank 3389) is 1.31x slower than 127 peers",
    "text": "critical, 138 GPU-h lost: https://slowrank.example.org/findings/fnd_01JD7Q4Y6R8V2M3K5N9P0S1T2W",
    "tags": ["straggler.fail_slow", "critical", "prod-a", "gpu-0423"],
    "id": "fnd_01JD7Q4Y6R8V2M3K5N9P0S1T2W",
}


class Annotation(BaseModel, json_schema_extra={"examples": [_ANNOTATION]}):
    """An annotation as Grafana's Infinity data source reads it."""

    time: int = Field(description="Epoch milliseconds of the onset.")
    timeEnd: int = Field(description="Epoch milliseconds of the end; now while it is open.")
    title: str
    text: str
    tags: list[str]
    id: str


@router.get("/timeline", responses={200: {"model": Timeline}, 304: {"description": "Unchanged."}})
def read_timeline(
    request: Request,
    services: ServicesDep,
    principal: FindingsReader,
    query: Annotated[TimelineQuery, Query()],
) -> Response:
    """Return the findings that were open at some time of a window (default: a day) as bars."""
    now = services.now()
    starts, ends = query.window(now, DEFAULT_WINDOW)
    # Relative times move on from page to page; the cursor is bound to what was asked.
    bound = {"list": "timeline", "clusters": principal.clusters} | query.model_dump(
        exclude={"cursor", "limit"}
    )
    position = services.cursors.open(query.cursor, bound) if query.cursor else None
    after = None if position is None else (datetime.fromisoformat(position[0]), str(position[1]))
    wanted = _filter(query, principal, (starts, ends), after=after, limit=query.limit + 1)
    rows: list[dict[str, Any]] = []
    if wanted is not None:
        with services.pool.connection() as conn, bounded(conn):
            rows = bars(conn, wanted)
    more, page = len(rows) > query.limit, rows[: query.limit]
    cursor = services.cursors.seal([page[-1]["onset"].isoformat(), page[-1]["id"]], bound) if more else ""
    items = [_bar(row, query.group) for row in page]
    window = {"start": milliseconds(starts), "end": milliseconds(ends)}
    return conditional.answer(request, window | {"items": items, "next_cursor": cursor})


@router.get("/annotations", responses={200: {"model": list[Annotation]}, 304: {"description": "Unchanged."}})
def read_annotations(
    request: Request,
    services: ServicesDep,
    principal: FindingsReader,
    query: Annotated[AnnotationQuery, Query()],
) -> Response:
    """Return findings as annotations, the latest first; Grafana's `${__from}` and `${__to}` are accepted."""
    now = services.now()
    wanted = _filter(query, principal, query.window(now, DEFAULT_WINDOW), after=None, limit=query.limit)
    rows: list[dict[str, Any]] = []
    if wanted is not None:
        with services.pool.connection() as conn, bounded(conn):
            rows = bars(conn, wanted)
    public = services.settings.public_url.rstrip("/")
    return conditional.answer(request, [_annotation(row, now, public) for row in rows])


def _filter(
    query: TimelineQuery | AnnotationQuery,
    principal: Principal,
    window: tuple[datetime, datetime],
    *,
    after: tuple[datetime, str] | None,
    limit: int,
) -> BarFilter | None:
    clusters = readable(principal, query.cluster)
    if clusters is None:
        return None
    return BarFilter(
        starts=window[0],
        ends=window[1],
        clusters=clusters,
        nodes=hosts(query.node),
        kinds=tuple(query.kind),
        job_id=query.job_id,
        after=after,
        limit=limit,
    )


def _end(row: dict[str, Any]) -> datetime | None:
    if row["status"] in ("open", "acknowledged"):
        return None
    ended: datetime = row["resolved_at"] or row["last_seen_at"]
    return ended


def _bar(row: dict[str, Any], group: Group) -> dict[str, Any]:
    ended = _end(row)
    shown = {name: value for name, value in row.items() if name in Bar.model_fields and value is not None}
    shown |= {"group": row[_COLUMN[group]] or "", "start": milliseconds(row["onset"])}
    return shown | {"end": None if ended is None else milliseconds(ended)}


def _annotation(row: dict[str, Any], now: datetime, public: str) -> dict[str, Any]:
    return {
        "time": milliseconds(row["onset"]),
        "timeEnd": milliseconds(_end(row) or now),
        "title": row["title"],
        "text": f"{row['severity']}, {row['gpu_hours_lost']:.3g} GPU-h lost: {public}/findings/{row['id']}",
        "tags": [row["kind"], row["severity"], row["cluster"], *([row["node"]] if row["node"] else [])],
        "id": row["id"],
    }
