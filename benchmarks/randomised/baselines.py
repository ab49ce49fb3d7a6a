"""Two rules that need no product, on the same files: ratio to peers, and MAD z-score.

Both are given what they need: rows in the order of steps, roles where rows carry them, and every threshold of
a grid, so that the best setting is not at an edge.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks.randomised.layout import Floats

RATIOS = (1.02, 1.03, 1.05, 1.07, 1.10, 1.15, 1.20, 1.30, 1.50, 2.00)
DEVIATIONS = (3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0, 20.0, 30.0)
STEPS = 20
TIMES = 3

# Least scale of z, relative (chosen): healthy steps of one rank vary by 0.9-2.4 % (ST trace).
FLOOR = 0.01


class Timings(NamedTuple):
    """Compute seconds [steps, ranks], NaN where there is no row; ``ts`` of the steps; a role of each rank."""

    compute: Floats
    ts: Floats
    role: npt.NDArray[np.int64]


def read_timings(path: Path, job_id: str) -> Timings:
    """Return the compute times of a job's step rows; repeated rows count once."""
    cells: dict[tuple[int, int], dict[int, tuple[float, float]]] = {}
    roles: dict[int, str] = {}
    with gzip.open(path, "rt") as file:
        for line in file:
            row: dict[str, Any] = json.loads(line)
            if row["kind"] == "step" and row["job_id"] == job_id:
                cell = (row["ts"], row.get("compute_seconds", np.nan))
                cells.setdefault((row["attempt"], row["step"]), {})[row["rank"]] = cell
                roles[row["rank"]] = f"{row.get('coords', {}).get('pp', 0)} {row.get('labels', {})}"
    order, ranks = sorted(cells), max(roles) + 1
    compute = np.full((len(order), ranks), np.nan)
    for i, step in enumerate(order):
        for rank, (_, seconds) in cells[step].items():
            compute[i, rank] = seconds
    ts = np.array([max(at for at, _ in cells[step].values()) for step in order])
    numbers = {role: n for n, role in enumerate(sorted(set(roles.values())))}
    return Timings(compute, ts, np.array([numbers[roles[r]] if r in roles else -1 for r in range(ranks)]))


def ratio_scores(timings: Timings) -> Floats:
    """Return the median over the last 20 steps of each rank's ratio to the median of its peers."""
    ratio = _by_role(timings, lambda x: x / _other_median(x))
    for step in range(1, len(ratio)):  # a row that never came is as the one before
        ratio[step] = np.where(np.isnan(ratio[step]), ratio[step - 1], ratio[step])
    smooth = np.full_like(ratio, np.nan)
    if len(ratio) >= STEPS:
        windows = np.lib.stride_tricks.sliding_window_view(ratio, STEPS, axis=0)
        smooth[STEPS - 1 :] = np.median(windows, axis=2)
    return smooth


def deviation_scores(timings: Timings) -> Floats:
    """Return the least of each rank's last three MAD z-scores."""

    def z(x: Floats) -> Floats:
        middle = np.nanmedian(x, axis=1, keepdims=True)
        scale = 1.4826 * np.nanmedian(np.abs(x - middle), axis=1, keepdims=True)
        return np.asarray((x - middle) / np.maximum(scale, FLOOR * middle))

    score = _by_role(timings, z)
    least = np.full_like(score, np.nan)
    if len(score) >= TIMES:
        least[TIMES - 1 :] = np.min([score[i : len(score) - TIMES + 1 + i] for i in range(TIMES)], axis=0)
    return least


def accused(timings: Timings, scores: Floats, threshold: float) -> dict[int, float]:
    """Return which ranks ever score above ``threshold``, and when first."""
    over = np.nan_to_num(scores, nan=-np.inf) > threshold
    return {int(r): float(timings.ts[over[:, r].argmax()]) for r in np.flatnonzero(over.any(axis=0))}


def _by_role(timings: Timings, score: Callable[[Floats], Floats]) -> Floats:
    """Return ``score`` of each role with four ranks or more that send compute times, else NaN."""
    result = np.full_like(timings.compute, np.nan)
    sending = np.isfinite(timings.compute).any(axis=0)
    for role in np.unique(timings.role[timings.role >= 0]):
        ranks = np.flatnonzero((timings.role == role) & sending)
        if len(ranks) < 4:
            continue
        full = np.isfinite(timings.compute[:, ranks]).any(axis=1)
        block = timings.compute[np.ix_(full, ranks)]
        result[np.ix_(full, ranks)] = score(block)
    return result


def _other_median(x: Floats) -> Floats:
    """Return for each rank the median of the others of its row; beyond 16 ranks that of all is as good."""
    if x.shape[1] > 16:
        return np.asarray(np.nanmedian(x, axis=1, keepdims=True))
    others = [np.delete(x, i, axis=1) for i in range(x.shape[1])]
    kept = [np.where(np.isfinite(o).any(axis=1, keepdims=True), o, 1.0) for o in others]
    return np.stack([np.nanmedian(o, axis=1) for o in kept], axis=1)
