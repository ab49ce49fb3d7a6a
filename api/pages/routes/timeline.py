"""Findings as bars on a time axis, grouped by node, job or kind."""

from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from api.deps import ServicesDep
from api.http.times import parse_time, rfc3339
from api.pages.access import FindingsVisit
from api.pages.formats import SEVERITIES, query
from api.pages.render import page
from api.pages.route import PageRoute
from api.routes.dashboard.fleet import natural_key
from api.routes.dashboard.ranges import readable
from store.dashboard.timeline import BarFilter, bars
from store.telemetry.windows import bounded

router = APIRouter(include_in_schema=False, route_class=PageRoute)

WINDOWS = {"1h": "1 hour", "6h": "6 hours", "1d": "1 day", "7d": "7 days", "28d": "28 days"}

# Of the window that is chosen by itself: how long it is at most and at least, and its share before the first
# finding (chosen: a bar of a new finding is as wide as it is old, and not the whole axis).
LONGEST = "1d"
SHORTEST = timedelta(minutes=10)
MARGIN = 0.05

GROUPS = {"node": "node", "job": "job_id", "kind": "kind"}

# Findings in the picture, the latest first (chosen: more are no picture).
MAX_BARS = 1000
# Rows in the picture, the gravest and latest findings first (chosen: what one looks through by eye).
MAX_ROWS = 100
# Units of the time axis; a bar is at least two wide, so that a short one is seen.
WIDTH = 1000

# Chosen: more labels of the time axis run into each other on a narrow page.
TICKS = 6
_FIRST = datetime(2000, 1, 1, tzinfo=UTC)
_Row = tuple[str, list[dict[str, Any]]]
"""The name of a row and its bars."""


@router.get("/timeline")
def show_timeline(
    request: Request,
    services: ServicesDep,
    seen: FindingsVisit,
    since: Annotated[str, Query(pattern=f"^({'|'.join(WINDOWS)})?$")] = "",
    to: Annotated[str, Query(max_length=40)] = "",
    group: Annotated[str, Query(pattern=f"^({'|'.join(GROUPS)})$")] = "node",
    cluster: Annotated[str, Query(max_length=128)] = "",
) -> Response:
    """Show the findings that were open at some time of a window.

    Without one it is the last day, from shortly before the first finding where that is later.
    """
    now = services.now()
    ends = _end(to, now)
    starts = parse_time(f"-{since or LONGEST}", ends)
    clusters = readable(seen.principal, cluster or None)
    found: list[dict[str, Any]] = []
    if clusters is not None:
        wanted = BarFilter(starts=starts, ends=ends, clusters=clusters, limit=MAX_BARS)
        with services.pool.connection() as conn, bounded(conn):
            found = bars(conn, wanted)
    if not since and not to and found:
        starts = max(starts, _just_before(min(bar["onset"] for bar in found), ends))
    rows = _rows(found, GROUPS[group], (starts, ends))
    span = ends - starts
    here = {"group": group, "cluster": cluster, "since": since}
    return page(
        request,
        "timeline.html",
        viewer=seen.viewer,
        rows=_foremost(rows, MAX_ROWS),
        hidden=max(0, len(rows) - MAX_ROWS),
        ticks=[starts + span * i / TICKS for i in range(TICKS + 1)],
        width=WIDTH,
        earlier=query("/timeline", **here, to=rfc3339(starts)),
        later=query("/timeline", **here, to=rfc3339(ends + span)) if ends + span <= now else "",
        group=group,
        groups=list(GROUPS),
        since=since,
        windows=WINDOWS,
        cluster=cluster,
        to=to,
        now=now,
    )


def _just_before(first: datetime, ends: datetime) -> datetime:
    """Return the beginning of a window that ends at ``ends`` and shows where its first bar begins."""
    return ends - max(SHORTEST, (ends - first) * (1 + MARGIN))


def _end(text: str, now: datetime) -> datetime:
    try:
        asked = parse_time(text, now) if text else now
    except ValueError:
        return now
    # Neither to come nor so far back that no window fits before it.
    return asked if _FIRST <= asked <= now else now


def _rows(found: list[dict[str, Any]], column: str, window: tuple[datetime, datetime]) -> list[_Row]:
    """Return the bars by row; each has ``x`` and ``wide`` in units of the axis."""
    absent = f"no {column.removesuffix('_id')}"
    ordered = sorted(found, key=lambda row: (natural_key(row[column] or ""), row[column] or "", row["onset"]))
    return [
        (name, [row | _placed(row, window) for row in group])
        for name, group in groupby(ordered, key=lambda row: str(row[column] or absent))
    ]


def _foremost(rows: list[_Row], most: int) -> list[_Row]:
    """Return the ``most`` rows with the gravest and then latest finding, in the order of ``rows``."""

    def rank(row: _Row) -> tuple[int, datetime]:
        return max((SEVERITIES.index(bar["severity"]), bar["onset"]) for bar in row[1])

    if len(rows) <= most:
        return rows
    kept = {name for name, _ in sorted(rows, key=rank, reverse=True)[:most]}
    return [row for row in rows if row[0] in kept]


def _placed(row: dict[str, Any], window: tuple[datetime, datetime]) -> dict[str, Any]:
    starts, ends = window
    live = row["status"] in ("open", "acknowledged")
    until = ends if live else min(ends, row["resolved_at"] or row["last_seen_at"])
    since = max(starts, row["onset"])
    unit = (ends - starts) / timedelta(seconds=WIDTH)
    x, wide = ((since - starts) / timedelta(seconds=unit), (until - since) / timedelta(seconds=unit))
    return {"x": round(min(x, WIDTH - 2), 1), "wide": round(max(2.0, wide), 1), "until": until, "live": live}
