"""Baselines with change points and verification, and with distances between machines.

Each takes one job's array and a parameter and returns (row, column) of every alarm; causal windows only.
"""

from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec

import numpy as np
import numpy.typing as npt

from benchmarks.quality.baselines.step_rules import alarms
from detectors.changepoint.bank import BocpdBank
from detectors.changepoint.bocpd import BocpdConfig

Floats = npt.NDArray[np.float64]

HAS_FAST_BOCPD = find_spec("fast_bocpd") is not None

# Rows from which a rule learns the healthy state. Chosen: our own baseline has as many.
LEARN = 60

# Window and continuity of Minder as published (Deng et al., NSDI 2025).
WINDOW_TICKS = 8
CONTINUITY_SECONDS = 240.0
# Least age of a run whose means are compared. Chosen: fewer steps are dominated by one outlier.
VERIFY = 5


def bocpd_verified(seconds: Floats, effect: float) -> list[tuple[int, int]]:
    """Plain BOCPD (H = 1/250, mass of new runs > 0.9) on a rank's log seconds, then means compared.

    A change counts when the rank is slower by more than ``effect`` than in the 10 steps before it
    (FALCON's verification, with 10 %).
    """
    if len(seconds) <= LEARN:
        return []
    z = _standardised(np.log(seconds))
    bank = BocpdBank(z.shape[1], config=BocpdConfig(hazard=1 / 250, slots=200))
    found = []
    for t, row in enumerate(z):
        raised = np.flatnonzero(bank.update(row) > 0.9)
        for rank, onset in bank.onsets(raised, least_age=VERIFY):
            born = t - onset.age + 1
            bank.accept(np.array([rank]), [z[born : t + 1, rank].tolist()])
            before, after = seconds[max(0, born - 10) : born, rank], seconds[born : t + 1, rank]
            if t >= LEARN and len(before) and np.nanmean(after) > (1 + effect) * np.nanmean(before):
                found.append((t, int(rank)))
    return found


def fast_bocpd(seconds: Floats, bayes_factor: float) -> list[tuple[int, int]]:
    """fast-bocpd's own online detector on each rank's log seconds; only changes to slower count."""
    library = import_module("fast_bocpd")
    if len(seconds) <= LEARN:
        return []
    z = np.nan_to_num(_standardised(np.log(seconds)))
    found = []
    for rank in range(z.shape[1]):
        model = library.BOCPD(library.GaussianNIG(0.0, 1.0, 1.0, 1.0), library.ConstantHazard(250.0), 200)
        detector = library.OnlineChangeDetector(model, bayes_factor=bayes_factor)
        for t, value in enumerate(z[:, rank].tolist()):
            changed = detector.update(value)
            if changed and t >= LEARN and value > np.median(z[max(0, t - 20) : t, rank]):
                found.append((t, rank))
    return found


def mahalanobis(values: Floats, limit: float) -> list[tuple[int, int]]:
    """Distance of a node from the mean of its job's nodes, by the covariance of the first minute's residuals.

    Above ``limit`` times the square root of the number of metrics, three ticks in a row.
    """
    metrics = values.shape[2]
    if len(values) <= LEARN:
        return []
    residual = values - _over_nodes(values)
    learnt = residual[:LEARN].reshape(-1, metrics)
    learnt = learnt[np.isfinite(learnt).all(axis=1)]
    if len(learnt) < 2 * metrics:
        return []
    level = np.abs(np.nanmean(values[:LEARN], axis=(0, 1)))
    scale = np.maximum(learnt.std(axis=0), 1e-3 * np.maximum(level, 1e-9))
    inverse = np.linalg.pinv(np.cov((learnt / scale).T) + 1e-3 * np.eye(metrics))
    z = np.nan_to_num(residual / scale)
    distance = np.sqrt(np.einsum("tnm,mk,tnk->tn", z, inverse, z) / metrics)
    holds = distance > limit
    holds[:LEARN] = False
    return alarms(_lasting(holds, 3), apart=120)


def minder(values: Floats, limit: float) -> list[tuple[int, int]]:
    """Minder's pairwise rule without its auto-encoders: windows of 8 ticks, min-max scaled, compared as read.

    The node with the largest sum of Euclidean distances is a candidate while its z among the nodes exceeds
    ``limit`` (at most (n-1)/sqrt(n) can occur); an alarm once one metric names one node for 4 minutes of 1 s
    ticks in a row.
    """
    ticks, nodes, metrics = values.shape
    if ticks < WINDOW_TICKS or nodes < 3:
        return []
    best = min(limit, 0.95 * (nodes - 1) / np.sqrt(nodes))
    found = set[tuple[int, int]]()
    for metric in range(metrics):
        holds = np.zeros((ticks, nodes), np.bool_)
        for t, distance in _pairwise(values[:, :, metric]):
            spread = distance.std()
            if spread > 0:
                top = int(distance.argmax())
                holds[t, top] = (distance[top] - distance.mean()) / spread > best
        found.update(alarms(_lasting(holds, int(CONTINUITY_SECONDS)), apart=600))
    return sorted(found)


def _pairwise(values: Floats) -> Iterator[tuple[int, Floats]]:
    low, high = np.nanmin(values[:LEARN]), np.nanmax(values[:LEARN])
    scaled = np.nan_to_num((values - low) / max(high - low, 1e-3 * abs(high), 1e-9))
    windows = np.lib.stride_tricks.sliding_window_view(scaled, WINDOW_TICKS, axis=0)
    for t, window in enumerate(windows):
        gaps = np.sqrt(((window[:, None] - window[None]) ** 2).sum(axis=-1))
        yield t + WINDOW_TICKS - 1, gaps.sum(axis=1)


def _over_nodes(values: Floats) -> Floats:
    filled = np.ma.masked_invalid(values).mean(axis=1, keepdims=True).filled(np.nan)
    mean: Floats = np.asarray(filled, np.float64)
    return mean


def _standardised(x: Floats) -> Floats:
    level = np.nanmedian(x[:LEARN], axis=0)
    scale = 1.4826 * np.nanmedian(np.abs(x[:LEARN] - level), axis=0)
    standard: Floats = (x - level) / np.maximum(scale, 0.005)
    return standard


def _lasting(holds: npt.NDArray[np.bool_], count: int) -> npt.NDArray[np.bool_]:
    """Return where a condition has held ``count`` rows in a row."""
    run, out = np.zeros(holds.shape[1], int), np.zeros_like(holds)
    for t, row in enumerate(holds):
        run = np.where(row, run + 1, 0)
        out[t] = run >= count
    return out
