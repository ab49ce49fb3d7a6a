"""Warns of step rows in a file that the detectors cannot evaluate.

No finding should mean that there is no fault. Where it may mean that the rows are too few, in wrong units or
incomplete, the reader of the result gets a warning.
"""

from collections.abc import Iterator
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

# Range of the ratio of step durations to the time that passes; outside, one is in another unit. Chosen: wide
# below, as a trace of every hundredth step has far more time than steps.
TOO_FAST, TOO_SLOW = 10.0, 1 / 200


@dataclass(frozen=True, slots=True, kw_only=True)
class StepColumns:
    """The step rows of one job, [rows] each; seconds, NaN where missing."""

    attempt: npt.NDArray[np.int64]
    step: npt.NDArray[np.int64]
    rank: npt.NDArray[np.int64]
    ts: FloatArray
    step_seconds: FloatArray
    compute_seconds: FloatArray
    wait_seconds: FloatArray
    comm_seconds: FloatArray


def doubts(rows: StepColumns) -> Iterator[str]:
    """Yield a sentence for each reason why a job's rows cannot be evaluated in full."""
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
    repeated = _repeated(rows)
    if repeated > REPEATED_SHARE * len(rows.step):
        yield (
            f"{repeated} rows have the step and rank of another row but other values: two runs need "
            "different job_id or attempt"
        )
    yield from _of_time(rows, steps)


def _repeated(rows: StepColumns) -> int:
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
    # From step to step, as a job may pause for days and be resumed.
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
