"""Names the steps of a job in a file from which on all of its ranks take longer.

That is no finding, for rows do not distinguish a regression from work that is meant (decision 15); it is
printed beside the findings.
"""

import math
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from detectors.changepoint.offline_segmentation import MIN_STEPS, change_points
from detectors.robust import nan_median
from streams.columns import FloatArray
from streams.files.data_quality import StepColumns

# Chosen: what a job must lose for a wait that all ranks share to be a finding (``shared_wait``).
LEAST_RISE = 1.10

# Of the ranks, how many may be as before. Chosen: what fewer than nine of ten share may be a machine's.
_OTHERS = 0.1

# Steps that a level lasts. Chosen: as for what is slow in the job as a whole (``job_wide``).
_LASTS = 20

# Points that a job is segmented by. Chosen: the cost grows with their square, and is 10 ms here.
_POINTS = 500

# Chosen: who reads of three sees that the work changes as it goes.
_NAMED = 3


def level_rises(rows: StepColumns) -> Iterator[str]:
    """Yield a sentence for each step from which on nearly all ranks of the job take longer, by 10 % and more.

    By what they compute; by the whole step where no row has that. Nothing without ruptures.
    """
    own, verb = rows.compute_seconds, "its ranks compute"
    if np.isnan(own).all():
        own, verb = rows.step_seconds, "its steps take"
    steps, seconds = _least_by_step(rows, own)
    many = max(math.ceil(len(seconds) / _POINTS), 1)
    levels = np.array([np.median(seconds[a : a + many]) for a in range(0, len(seconds), many)])
    levels = np.where(levels > 0, levels, np.nan)
    if not _may_rise(levels):
        return
    edges = [0, *change_points(np.log(levels), math.log(LEAST_RISE)), len(levels)]
    parts = [(a * many, float(nan_median(levels[a:b])), (b - a) * many) for a, b in pairwise(edges)]
    rises = [
        (after / before, at)
        for (_, before, _), (at, after, lasts) in pairwise(parts)
        if after >= LEAST_RISE * before and lasts >= _LASTS
    ]
    for ratio, at in rises[:_NAMED]:
        yield (
            f"{verb} {ratio:.2f}x as long from step {steps[at]} on: a change that all ranks share is no "
            "finding, for the work may have changed"
        )
    if len(rises) > _NAMED:
        yield f"and again from each of {len(rises) - _NAMED} later steps on"


def _may_rise(levels: FloatArray) -> bool:
    """Whether a few points in a row are so far above some before them: the search itself imports much."""
    if len(levels) < 2 * MIN_STEPS:
        return False
    calm = nan_median(np.lib.stride_tricks.sliding_window_view(levels, MIN_STEPS), axis=1)
    lowest = np.fmin.accumulate(calm)
    return bool((calm[MIN_STEPS:] >= LEAST_RISE * lowest[:-MIN_STEPS]).any())


def _least_by_step(rows: StepColumns, own: FloatArray) -> tuple[npt.NDArray[np.int64], FloatArray]:
    """Return the steps in the order of attempts, and what nine of ten ranks take at least in each."""
    read = np.flatnonzero(np.isfinite(own))
    order = read[np.lexsort((own[read], rows.step[read], rows.attempt[read]))]
    step, attempt = rows.step[order], rows.attempt[order]
    starts = np.flatnonzero(np.append(order.size > 0, np.diff(attempt) | np.diff(step)))
    ranks = np.diff(np.append(starts, len(order)))
    return step[starts], own[order][starts + (ranks * _OTHERS).astype(np.intp)].astype(np.float64)
