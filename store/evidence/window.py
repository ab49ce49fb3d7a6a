"""Takes the evidence of a finding that can be drawn: columns of numbers of the roll-ups around its onset.

Three plots share one time axis: the subject beside the band of its peers, the subject beside its own past,
and the metric of the suspected cause. ``strip`` is the distribution of the peers since the onset.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from psycopg import Connection

from slowrank.telemetry.records import Subject
from store.evidence.panels import Baseline, Chosen, PlotRole, cause_metric, chosen, main_metric
from store.telemetry.buckets import BUCKET_SECONDS
from store.telemetry.windows import Bin, bins, bounded, means

# Shown before and after the onset. Chosen: 30 roll-ups on each side, some 8 kB a finding.
HALF_WINDOW = timedelta(minutes=5)
# Peers in the strip. Chosen: more dots than fit side by side in a plot of 640 pixels.
STRIP_VALUES = 256
# Values before the onset for a baseline of its own. Chosen: a median of fewer depends on chance.
FEW = 5
# Robust standard deviations between a baseline's median and its limits, as in a Shewhart chart (1931).
LIMIT_SPREADS = 3.0
# Standard deviation of a normal distribution over its median absolute deviation.
_MAD_TO_SD = 1.4826
# Significant digits of a value: beyond what a plot resolves.
_DIGITS = 5


@dataclass(frozen=True, slots=True)
class Drawn:
    """A finding as its evidence needs it: its document and its times."""

    id: str
    doc: Mapping[str, Any]
    onset: datetime
    detected_at: datetime
    resolved_at: datetime | None = None

    @property
    def subject(self) -> Subject:
        """Its subject."""
        return Subject(**self.doc["subject"])

    def times(self) -> dict[str, Any]:
        """Return its times in epoch milliseconds, as they stand beside the plots."""
        interval = [milliseconds(datetime.fromisoformat(t)) for t in self.doc["onset_interval"]]
        shown = {
            "onset": milliseconds(self.onset),
            "onset_interval": interval,
            "detected_at": milliseconds(self.detected_at),
        }
        return shown | ({} if self.resolved_at is None else {"resolved_at": milliseconds(self.resolved_at)})


def taken(conn: Connection[Any], drawn: Drawn) -> dict[str, Any]:
    """Return the evidence of a finding as the roll-ups have it now; without telemetry it has no plots."""
    starts, ends = edges(drawn.onset)
    with bounded(conn):
        main, baseline, of_cause = _chosen(conn, drawn, starts)
        rows = [] if main is None else _read(conn, main, starts, ends)
        cause_rows = [] if of_cause is None else _read(conn, of_cause, starts, ends)
        strip = None if main is None or not rows else _strip(conn, main, drawn.onset, ends)
    plots: list[dict[str, Any]] = []
    if main is not None and rows:
        plots += [_banded("peers", main, rows, starts), _own(main, rows, starts, drawn.onset, baseline)]
    if of_cause is not None and cause_rows:
        plots.append(_banded("cause", of_cause, cause_rows, starts))
    return {
        "from": milliseconds(starts),
        "to": milliseconds(ends),
        "bucket_ms": round(BUCKET_SECONDS * 1000),
        "t": [milliseconds(starts) + round(BUCKET_SECONDS * 1000) * i for i in range(_COLUMNS)],
        "plots": plots,
    } | ({} if strip is None else {"strip": strip})


def edges(onset: datetime) -> tuple[datetime, datetime]:
    """Return the first and the last moment of the window around an onset, on the grid of the roll-ups."""
    middle = onset.timestamp() // BUCKET_SECONDS * BUCKET_SECONDS
    first = datetime.fromtimestamp(middle, UTC) - HALF_WINDOW
    return first, first + _COLUMNS * timedelta(seconds=BUCKET_SECONDS)


# One more than both halves have: the bucket of the onset itself.
_COLUMNS = round(2 * HALF_WINDOW.total_seconds() / BUCKET_SECONDS) + 1


def milliseconds(moment: datetime) -> int:
    """Return a time as epoch milliseconds."""
    return round(moment.timestamp() * 1000)


def rounded(value: float | None) -> float | None:
    """Return a value with five significant digits."""
    return None if value is None else float(f"{value:.{_DIGITS}g}")


def _chosen(
    conn: Connection[Any], drawn: Drawn, since: datetime
) -> tuple[Chosen | None, Baseline | None, Chosen | None]:
    main, baseline, first = None, None, None
    if (found := main_metric(drawn.doc)) is not None:
        first, baseline = found
        main = chosen(conn, first, drawn.subject, since=since)
    metric = cause_metric(drawn.doc, first)
    of_cause = None if metric is None else chosen(conn, metric, drawn.subject, since=since)
    return main, baseline, of_cause


def _read(conn: Connection[Any], one: Chosen, starts: datetime, ends: datetime) -> list[Bin]:
    step = timedelta(seconds=BUCKET_SECONDS)
    read = bins(conn, one.metric, one.selection, cluster=one.cluster, starts=starts, ends=ends, step=step)
    # Peers alone show nothing of the finding.
    return read if any(_line(one, row) is not None for row in read) else []


def _banded(role: PlotRole, one: Chosen, rows: Sequence[Bin], starts: datetime) -> dict[str, Any]:
    """Return the plot of the subject beside the quantiles of its peers."""
    return _head(role, one, rows, starts) | {
        "peers": one.peers,
        "n": max(row.n for row in rows),
        "p05": _column(rows, starts, "p05"),
        "median": _column(rows, starts, "median"),
        "p95": _column(rows, starts, "p95"),
    }


def _own(
    one: Chosen, rows: Sequence[Bin], starts: datetime, onset: datetime, given: Baseline | None
) -> dict[str, Any]:
    """Return the plot of the subject beside its own past: the median and limits of detector or window."""
    head, before = _head("baseline", one, rows, starts), onset.timestamp() - BUCKET_SECONDS
    past = [v for row in rows if row.at <= before and (v := _line(one, row)) is not None]
    if given is not None:
        median, mad, n = float(given["median"]), float(given["mad"]), int(given["n"])
    elif len(past) >= FEW:
        median, n = statistics.median(past), len(past)
        mad = statistics.median(abs(v - median) for v in past)
    else:
        return head
    limit = LIMIT_SPREADS * _MAD_TO_SD * mad
    of_past = {
        "median": rounded(median),
        "lo": rounded(median - limit),
        "hi": rounded(median + limit),
        "n": n,
    }
    return head | {"baseline": of_past | {"source": "window" if given is None else "detector"}}


def _head(role: PlotRole, one: Chosen, rows: Sequence[Bin], starts: datetime) -> dict[str, Any]:
    metric = one.metric
    return {
        "role": role,
        "metric": metric.name,
        "unit": metric.unit,
        "aggregate": metric.aggregate,
        "subject": one.subject,
        "y": _column(rows, starts, "value" if one.has_own else "median"),
    }


def _column(rows: Sequence[Bin], starts: datetime, name: str) -> list[float | None]:
    """Return one field of the bins on the common time axis, None where there is no bin."""
    column: list[float | None] = [None] * _COLUMNS
    for row in rows:
        column[round((row.at - starts.timestamp()) / BUCKET_SECONDS)] = rounded(getattr(row, name))
    return column


def _line(one: Chosen, row: Bin) -> float | None:
    return row.value if one.has_own else row.median


def _strip(conn: Connection[Any], one: Chosen, onset: datetime, ends: datetime) -> dict[str, Any] | None:
    """Return the distribution of the peers' means since the onset, at most ``STRIP_VALUES`` of them."""
    own, peers = means(conn, one.metric, one.selection, cluster=one.cluster, starts=onset, ends=ends)
    if not peers:
        return None
    kept = peers
    if len(peers) > STRIP_VALUES:
        last = len(peers) - 1
        kept = [peers[round(i * last / (STRIP_VALUES - 1))] for i in range(STRIP_VALUES)]
    p05, median, p95 = (peers[round(q * (len(peers) - 1))] for q in (0.05, 0.5, 0.95))
    return {
        "metric": one.metric.name,
        "unit": one.metric.unit,
        "n": len(peers),
        "values": [rounded(v) for v in kept],
        "p05": rounded(p05),
        "median": rounded(median),
        "p95": rounded(p95),
    } | ({"subject": rounded(statistics.fmean(own))} if own else {})
