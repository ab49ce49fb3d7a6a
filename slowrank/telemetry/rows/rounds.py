"""Rounds of readings: sample rows of a node that one pass over its devices stamps one by one.

A round is what comes of one time stamp, and of following ones that repeat no series, come from the same job
and sender, and begin within most of the time after which series repeat.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any

# Share of the usual time between two readings of a series that one round takes at most. Chosen: reading GPU
# by GPU may take most of it; what comes later is nearer to the next round.
_ROUND = 0.8
# The longest round where no series is read twice. Chosen: tools that read so seldom have milliseconds between
# devices.
_ONLY_ROUND_SECONDS = 0.5

# Fields of a row that name the source of its record.
_SENDER = ("job_id", "boot_id", "seq")

Row = Mapping[str, Any]

_Series = tuple[str, str]
"""Metric and instance."""


def rounds(times: Sequence[float], ticks: Sequence[Sequence[Row]]) -> Iterator[range]:
    """Yield which ``ticks`` of a node, the rows of each of its ascending ``times``, make each round.

    >>> rows = [[{"metric": "gpu.power_watts", "instance": gpu}] for gpu in "0101"]
    >>> list(rounds([0.0, 0.2, 5.0, 5.2], rows))
    [range(0, 2), range(2, 4)]
    """
    read = [_series(rows) for rows in ticks]
    longest = _longest_round(times, read)
    first, seen, sender = 0, set[_Series](), dict[str, set[str]]()
    for k, (ts, series, rows) in enumerate(zip(times, read, ticks, strict=True)):
        own = _sender(rows)
        differs = any(name in sender and sender[name] != values for name, values in own.items())
        if k > first and (ts - times[first] >= longest or differs or not seen.isdisjoint(series)):
            yield range(first, k)
            first, seen, sender = k, set(), {}
        seen, sender = seen | series, sender | own
    if ticks:
        yield range(first, len(ticks))


def labels_of(row: Row) -> tuple[tuple[str, str], ...]:
    """Return the labels that a row has, by name, without empty ones."""
    labels = row.get("labels")
    if not isinstance(labels, dict):
        return ()
    return tuple(sorted((str(name), str(value)) for name, value in labels.items() if value not in (None, "")))


def _series(rows: Iterable[Row]) -> set[_Series]:
    return {(str(row.get("metric")), str(row.get("instance", ""))) for row in rows}


def _sender(rows: Iterable[Row]) -> dict[str, set[str]]:
    """Return what the rows say of their job, boot and record, and the labels of their node."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for row in rows:
        for name in _SENDER:
            if row.get(name) not in (None, ""):
                found[name].add(str(row[name]))
        for name, value in labels_of(row):
            found[f"labels.{name}"].add(value)
    return dict(found)


def _longest_round(times: Sequence[float], read: Iterable[set[_Series]]) -> float:
    """Return the seconds that a round takes at most; ``read``: the series that were read at each of the
    ``times``."""
    last: dict[_Series, float] = {}
    between: list[float] = []
    for ts, series in zip(times, read, strict=True):
        between += [ts - last[one] for one in series & last.keys()]
        last |= dict.fromkeys(series, ts)
    return _ROUND * median(between) if between else _ONLY_ROUND_SECONDS
