"""Changes of a job's level: how large each was, and what is known of that time that may explain it.

A level that all ranks share is no finding (decision 15); it is shown with what the job declared or went
through. Pure: the caller reads band, attempts, events and findings.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from api.routes.dashboard.ranges import milliseconds

What = Literal["restart", "resize", "schedule", "finding", "evaluation", "checkpoint"]

# Least distance of an explanation: the minute that detectors allow for a declared change, too.
REACH_MS = 60_000
# Share of the window within reach of evaluations or checkpoints from which they explain nothing (chosen: a
# change by chance falls beside one in at most a fifth of all cases).
MOST_PAUSED = 0.2
# Of one change (chosen: what is read at a glance; a job with hundreds of findings has one change).
MAX_EXPLANATIONS = 8

_WHAT: dict[str, What] = {
    "job.start": "restart",
    "job.restart": "restart",
    "job.schedule": "schedule",
    "job.eval": "evaluation",
    "job.checkpoint": "checkpoint",
}
# The likeliest first: what changes the work for good, then causes, then pauses.
_ORDER: tuple[What, ...] = ("resize", "restart", "schedule", "finding", "evaluation", "checkpoint")
_PAUSES = frozenset({"evaluation", "checkpoint"})


@dataclass(frozen=True, slots=True, order=True)
class Explanation:
    """What happened at ``at`` (epoch milliseconds), in words, and the finding that it is, if it is one."""

    at: int
    what: What
    text: str = ""
    finding_id: str | None = None


@dataclass(frozen=True, slots=True)
class Level:
    """The bins between two changes: their median value, and the median number of ranks."""

    value: float
    ranks: int


def levels(edges: Sequence[int], median: Sequence[float], ranks: Sequence[int]) -> list[Level]:
    """Return the levels that begin at bin 0 and at each of ``edges``; ``median`` and ``ranks`` by bin."""
    ends = [0, *edges, len(median)]
    return [Level(float(np.median(median[a:b])), int(np.median(ranks[a:b]))) for a, b in pairwise(ends)]


def restarts(attempts: Iterable[dict[str, Any]]) -> list[Explanation]:
    """Return the second and later attempts of a job, with another size as ``resize``."""
    found = sorted(attempts, key=lambda row: row["attempt"])
    return [
        Explanation(milliseconds(row["first_seen_at"]), *_restart(row["attempt"], *sizes))
        for before, row in pairwise(found)
        for sizes in [(before["world_size"], row["world_size"])]
    ]


def declared(events: Iterable[dict[str, Any]]) -> list[Explanation]:
    """Return what the job declared by events."""
    return [Explanation(milliseconds(row["at"]), _WHAT[row["code"]], row["message"]) for row in events]


def begun_or_ended(findings: Iterable[dict[str, Any]], starts: datetime, ends: datetime) -> list[Explanation]:
    """Return the onsets and the ends of findings about the job that lie in the window."""
    found = []
    for row in findings:
        for at, verb in ((row["onset"], "began"), (row["resolved_at"], "ended")):
            if at is not None and starts <= at <= ends:
                text = f"{row['title']} ({verb})"
                found.append(Explanation(milliseconds(at), "finding", text, row["id"]))
    return found


def changes(
    edges: Sequence[int],
    t: Sequence[int],
    median: Sequence[float],
    ranks: Sequence[int],
    *,
    bin_ms: int,
    known: Iterable[Explanation],
) -> list[dict[str, Any]]:
    """Return each change of level: ``edges`` are its bins, ``t`` their starts in epoch milliseconds.

    ``ratio`` is the level after it by that before it. An explanation lies in the minute (or the bin, if that
    is longer) before the bin in which the level changed, in that bin, or in the next: edges may be one off.
    """
    if not edges:
        return []
    reach = max(REACH_MS, bin_ms)
    events = sorted(_without_constant_pauses(known, t, bin_ms, reach))
    times = [one.at for one in events]
    made = []
    for edge, (before, after) in zip(edges, pairwise(levels(edges, median, ranks)), strict=True):
        first = bisect_right(times, t[edge] - reach - 1)
        near = events[first : bisect_right(times, t[edge] + 2 * bin_ms)]
        if before.ranks != after.ranks and not any(one.what == "resize" for one in near):
            near.append(Explanation(t[edge], "resize", _sizes(before.ranks, after.ranks)))
        near.sort(key=lambda one: (_ORDER.index(one.what), abs(one.at - t[edge])))
        shown = [_shown(one) for one in near[:MAX_EXPLANATIONS]]
        made.append(
            {
                "at": t[edge],
                "ratio": round(after.value / before.value, 4) if before.value else None,
                "before": before.value,
                "after": after.value,
                "explanations": shown,
            }
        )
    return made


def _without_constant_pauses(
    known: Iterable[Explanation], t: Sequence[int], bin_ms: int, reach: int
) -> list[Explanation]:
    """Leave out kinds of pauses that come so often that one lies beside any change."""
    events = list(known)
    span = t[-1] + bin_ms - t[0]
    for what in _PAUSES:
        count = sum(one.what == what and t[0] <= one.at <= t[0] + span for one in events)
        if count * (reach + 2 * bin_ms) > MOST_PAUSED * span:
            events = [one for one in events if one.what != what]
    return events


def _restart(attempt: int, before: int, after: int) -> tuple[What, str]:
    if before and after and before != after:
        return "resize", f"attempt {attempt}, {_sizes(before, after)}"
    return "restart", f"attempt {attempt}"


def _sizes(before: int, after: int) -> str:
    return f"from {before:,} to {after:,} ranks"


def _shown(one: Explanation) -> dict[str, Any]:
    return {"what": one.what, "at": one.at, "text": one.text, "finding_id": one.finding_id}
