"""Warns of step rows in a file that the detectors cannot evaluate.

No finding should mean that there is no fault. Where it may mean that the rows are too few, in wrong units or
incomplete, the reader of the result gets a warning.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from streams.columns import FloatArray

# Steps in which a rank is found that gets 10 % slower halfway; 40 suffice for 20 %.
FEW_STEPS = 60

# Chosen: a job that is resumed repeats a few steps, two jobs with one name repeat most.
REPEATED_SHARE = 0.1

# Range of the ratio of two durations of which one is in milliseconds: 1000, within a factor of two.
MILLI = (500.0, 2000.0)

# Ranks that a warning names. Chosen: enough to find the others.
_NAMED_RANKS = 4

# Range of the ratio of step durations to the time that passes; outside, one is in another unit. Chosen: wide
# below, as a trace of every hundredth step has far more time than steps.
TOO_FAST, TOO_SLOW = 10.0, 1 / 200


@dataclass(frozen=True, slots=True, kw_only=True)
class StepColumns:
    """The step rows of one job, [rows] each; seconds, NaN where missing; -1 for a node without a name."""

    attempt: npt.NDArray[np.int64]
    step: npt.NDArray[np.int64]
    rank: npt.NDArray[np.int64]
    node: npt.NDArray[np.int64]
    ts: FloatArray
    step_seconds: FloatArray
    compute_seconds: FloatArray
    wait_seconds: FloatArray
    comm_seconds: FloatArray


def doubts(rows: StepColumns, nodes: Sequence[str] = ()) -> Iterator[str]:
    """Yield a sentence for each reason why a job's rows cannot be evaluated in full.

    ``nodes``: the names of those that ``rows.node`` numbers.
    """
    if len(np.unique(rows.rank)) == 1:
        yield "there is one rank, and no other to compare it with"
    steps = len(np.unique(rows.step))
    if steps < FEW_STEPS:
        yield f"{steps} steps are few: {FEW_STEPS} show a rank that gets 10 % slower halfway, 40 one of 20 %"
    if all(np.isnan(own).all() for own in (rows.compute_seconds, rows.wait_seconds, rows.comm_seconds)):
        yield (
            "no row has compute_seconds, wait_seconds or comm_seconds: where ranks wait for each other, the "
            "slow one cannot be identified without these"
        )
    for name, values in (("compute_seconds", rows.compute_seconds), ("wait_seconds", rows.wait_seconds)):
        known = values[values == values]
        if len(known) and np.median(known) < 0:
            yield f"{name} is mostly negative"
        elif np.count_nonzero(values > 1.5 * rows.step_seconds) > len(known) / 2:
            yield f"{name} is mostly larger than step_seconds: both are seconds, and the step is the whole"
    repeated, (shared, pair) = _repeated(rows), _shared(rows)
    if len(shared) > REPEATED_SHARE * len(rows.step):
        first, *more = np.unique(shared).tolist()
        others = f" and so do{'es' if len(more) == 1 else ''} {ranks_in_words(more)}" if more else ""
        yield (
            f"rank {first} comes from nodes {nodes[pair[0]]} and {nodes[pair[1]]}{others}: is it the local "
            "rank? rank counts over all nodes of a job"
        )
    elif repeated > REPEATED_SHARE * len(rows.step):
        yield (
            f"{repeated} rows have the step and rank of another row but other values: two runs need "
            "different job_id or attempt"
        )
    yield from _of_time(rows, steps)


def zone_doubt(rows: int) -> str:
    """Return what was assumed of the times of so many rows that have no time zone."""
    return (
        f"ts of {rows} rows has no time zone and is taken as UTC: if it is local time, add its offset, as in "
        "2026-11-20T07:33:21+01:00, or it does not fit what other hosts send"
    )


def _repeated(rows: StepColumns) -> int:
    order = np.lexsort((rows.rank, rows.step, rows.attempt))
    same = _alike(order, rows.attempt, rows.step, rows.rank)
    return int(np.count_nonzero(same & ~_alike(order, rows.ts, rows.step_seconds)))


def _shared(rows: StepColumns) -> tuple[npt.NDArray[np.int64], tuple[int, int]]:
    """Return the rank of each row that another node sent as well, and two nodes that sent the lowest."""
    order = np.lexsort((rows.node, rows.rank, rows.step, rows.attempt))
    same = _alike(order, rows.attempt, rows.step, rows.rank) & ~_alike(order, rows.node)
    here = np.flatnonzero(same & (rows.node[order][:-1] >= 0))
    ranks = rows.rank[order][here]
    if not len(ranks):
        return ranks, (-1, -1)
    at = here[ranks.argmin()]
    return ranks, (int(rows.node[order][at]), int(rows.node[order][at + 1]))


def _alike(order: npt.NDArray[np.int64], *columns: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return which rows but the first have the values of the row before them in ``order``."""
    alike = np.full(len(order) - 1, True)
    for column in columns:
        alike &= column[order][1:] == column[order][:-1]
    return alike


def _in_another_unit(rows: StepColumns) -> npt.NDArray[np.int64]:
    """Return the ranks whose steps are some thousand times as long as those of the others."""
    order = rows.rank.argsort(kind="stable")
    ranks, starts = np.unique(rows.rank[order], return_index=True)
    typical = np.array([float(np.median(part)) for part in np.split(rows.step_seconds[order], starts[1:])])
    some = typical > 0
    if np.count_nonzero(some) < 2:
        return ranks[:0]
    above = typical > np.sqrt(typical[some].min() * typical.max())
    least, most = MILLI
    if not above.any() or not least <= np.median(typical[above]) / np.median(typical[some & ~above]) <= most:
        return ranks[:0]
    return np.asarray(ranks[above], np.int64)


def ranks_in_words(ranks: Sequence[int]) -> str:
    """Return the first few of several ranks in words."""
    named = ", ".join(map(str, ranks[:_NAMED_RANKS]))
    more = f" and {len(ranks) - _NAMED_RANKS} more" if len(ranks) > _NAMED_RANKS else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {named}{more}"


def _of_time(rows: StepColumns, steps: int) -> Iterator[str]:
    if len(other := _in_another_unit(rows)):
        which = ranks_in_words(other.tolist())
        yield (
            f"step_seconds of {which} looks like milliseconds: some thousand times that of the others; "
            "divide by 1000"
        )
        return
    typical = float(np.median(rows.step_seconds))
    if typical == 0.0:
        yield "step_seconds is mostly 0"
        return
    if steps == 1:
        return
    _, numbers = np.unique(rows.step, return_inverse=True)
    ended = np.full(steps, -np.inf)
    np.maximum.at(ended, numbers, rows.ts)
    took, passed = typical * (steps - 1), _passed(ended)
    if not TOO_SLOW * passed <= took <= TOO_FAST * passed:
        yield (
            f"the steps take {_seconds(took)} by step_seconds and {_seconds(passed)} by ts: both count in "
            f"seconds, and ts is when the step ended{_in_milliseconds(took, passed)}"
        )


def _passed(ended: FloatArray) -> float:
    """Return how much time passes while the steps end, without pauses: a job may pause for days.

    Whole seconds stand still for most steps that are shorter: the typical time between two ends counts for
    each time that the clock has moved.
    """
    apart = np.diff(ended)
    moved = apart[apart > 0]
    return float(np.median(moved)) * len(moved) if len(moved) else 0.0


def _in_milliseconds(took: float, passed: float) -> str:
    least, most = MILLI
    for name, large, small in (("step_seconds", took, passed), ("ts", passed, took)):
        if least * small <= large <= most * small:
            return f"; {name} looks like milliseconds: divide by 1000"
    return ""


def _seconds(seconds: float) -> str:
    return f"{seconds:,.0f} s" if seconds >= 10.0 else f"{seconds:.3g} s"
