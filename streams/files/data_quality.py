"""What is doubtful about the step rows of a file: why nothing may be found in them.

That nothing was found should mean that all is well. Where it may mean that the rows cannot be judged, whoever
reads the file is told.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from streams.columns import FloatArray

FEW_STEPS = 60
"""So many steps show that a rank got 10 % slower halfway; forty show 20 %."""

TOLD_TWICE_SHARE = 0.1
"""A job that is resumed repeats some steps; two that share a name repeat most."""

MILLI = (500.0, 2000.0)
"""Times that are so many times too large are in milliseconds."""

TOO_FAST, TOO_SLOW = 10.0, 1 / 200
"""Steps that take so many times the time that passes are in another unit than it, or their times are no
times. A trace of every hundredth step has far more time than steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepColumns:
    """The step rows of one job, [rows] each; seconds, NaN where there is none."""

    attempt: npt.NDArray[np.int64]
    step: npt.NDArray[np.int64]
    rank: npt.NDArray[np.int64]
    ts: FloatArray
    step_seconds: FloatArray
    compute_seconds: FloatArray
    wait_seconds: FloatArray


def doubts(rows: StepColumns) -> Iterator[str]:
    """Yield what is doubtful about a job's rows, each in a sentence."""
    if len(np.unique(rows.rank)) == 1:
        yield "one rank, and nobody to compare it with"
    steps = len(np.unique(rows.step))
    if steps < FEW_STEPS:
        yield f"{steps} steps are few: {FEW_STEPS} show a rank that gets 10 % slower halfway, 40 one of 20 %"
    if np.isnan(rows.compute_seconds).all() and np.isnan(rows.wait_seconds).all():
        yield (
            "no row has compute_seconds or wait_seconds: of ranks that wait for each other, nobody can say "
            "which one is slow"
        )
    for name, values in (("compute_seconds", rows.compute_seconds), ("wait_seconds", rows.wait_seconds)):
        known = values[values == values]
        if len(known) and np.median(known) < 0:
            yield f"{name} is mostly negative"
        elif np.count_nonzero(values > 1.5 * rows.step_seconds) > len(known) / 2:
            yield f"{name} is mostly larger than step_seconds: both are seconds, and the step is the whole"
    twice = _told_twice(rows)
    if twice > TOLD_TWICE_SHARE * len(rows.step):
        yield (
            f"{twice} rows tell of a step and rank that another row tells of differently: two runs need a "
            "job_id, or an attempt, of their own"
        )
    yield from _of_time(rows, steps)


def _told_twice(rows: StepColumns) -> int:
    order = np.lexsort((rows.rank, rows.step, rows.attempt))

    def changes(column: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        return np.asarray(column[order][1:] != column[order][:-1])

    same = ~(changes(rows.attempt) | changes(rows.step) | changes(rows.rank))
    return int(np.count_nonzero(same & (changes(rows.ts) | changes(rows.step_seconds))))


def _of_time(rows: StepColumns, steps: int) -> Iterator[str]:
    typical = float(np.median(rows.step_seconds))
    if typical == 0.0:
        yield "step_seconds is mostly 0"
        return
    if steps == 1:
        return
    # From step to step, for a job may rest for days and be resumed.
    _, numbers = np.unique(rows.step, return_inverse=True)
    ended = np.full(steps, -np.inf)
    np.maximum.at(ended, numbers, rows.ts)
    took, passed = typical * (steps - 1), float(np.median(np.diff(ended))) * (steps - 1)
    if not TOO_SLOW * passed <= took <= TOO_FAST * passed:
        yield (
            f"the steps take {_seconds(took)} by step_seconds and {_seconds(passed)} by ts: both count in "
            f"seconds, and ts is when the step ended{_in_milliseconds(took, passed)}"
        )


def _in_milliseconds(took: float, passed: float) -> str:
    least, most = MILLI
    for name, large, small in (("step_seconds", took, passed), ("ts", passed, took)):
        if least * small <= large <= most * small:
            return f"; {name} looks like milliseconds: divide by 1000"
    return ""


def _seconds(seconds: float) -> str:
    return f"{seconds:,.0f} s" if seconds >= 10.0 else f"{seconds:.3g} s"
