"""Time per token and per squared length: takes out of a rank's time what its share of the work explains.

Packed batches give every rank another number of tokens in every step, and attention costs by the square of
each sequence's length; the line through time against both, fitted robustly over all ranks of a role, leaves
the part that the machine is responsible for.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from detectors.peers.job_kind import classify
from detectors.robust import nan_median

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

# 95 % efficient under normal noise (Huber, 1964); five rounds of reweighting settle the third digit.
_ROUNDS = 5
_HUBER = 1.345

# Chosen: with fewer points, or less variation than the noise has, a line through them is arbitrary.
_MIN_POINTS = 40
_MIN_SPREAD = 0.01

# Of two amounts, one that a rank reports less often than in this share of the steps of the other is left out.
# Chosen: it would leave that rank without an expectation in every tenth step.
_MIN_REPORTED = 0.9


# Amounts or replicas explain the work if the spread falls to this share. Chosen: any fit takes a little away.
_WORK_GAIN = 0.7

# Share by which another amount differs, and steps of ranks that have one. Chosen: what a fit needs.
_UNEVEN, _LEAST_UNEVEN = _MIN_SPREAD, _MIN_POINTS


@dataclass(frozen=True, slots=True)
class WorkModel:
    """Expected seconds = ``base`` + ``per_token`` * tokens + ``per_square`` * sum of squared lengths."""

    base: float
    per_token: float = 0.0
    per_square: float = 0.0

    def log_expected(self, tokens: Floats, squares: Floats) -> Floats:
        """Return log expected seconds; NaN where an amount that counts is unknown, or no time is expected."""
        expected = np.full(tokens.shape, self.base)
        for each, amount in ((self.per_token, tokens), (self.per_square, squares)):
            if each:
                expected += each * amount
        return np.log(np.where(expected > 0, expected, np.nan))


def fit_work(seconds: Floats, tokens: Floats, squares: Floats) -> WorkModel | None:
    """Fit by Huber's iteratively reweighted least squares on relative errors.

    All three are [steps, ranks], NaN = not read; ``squares`` are sums of the squared lengths of sequences.
    Only what varies counts, and of that only what takes longer the more there is of it. Returns None when
    nothing is left, or there are too few points.
    """
    timed = np.isfinite(seconds) & (seconds > 0)
    amounts = {"per_token": tokens, "per_square": squares}
    read = {name: timed & np.isfinite(amount) for name, amount in amounts.items()}
    counts = {name: read[name].sum(axis=0) for name in amounts if _varies(amounts[name][read[name]])}
    most = np.max([*counts.values()], axis=0, initial=0)
    names = [name for name, steps in counts.items() if (steps >= _MIN_REPORTED * most).all()]
    while names:
        known = np.logical_and.reduce([read[name] for name in names])
        if known.sum() < _MIN_POINTS:
            return None
        columns = [amounts[name][known] for name in names]
        scales = [column.mean() for column in columns]
        # In units of their mean, amounts keep the normal equations well conditioned.
        base, *slopes = _huber(seconds[known], [c / scale for c, scale in zip(columns, scales, strict=True)])
        if min(slopes) > 0:
            each = (float(slope / scale) for slope, scale in zip(slopes, scales, strict=True))
            return WorkModel(float(base), **dict(zip(names, each, strict=True)))
        del names[int(np.argmin(slopes))]
    return None


def explains(left: Floats, raw: Floats) -> bool:
    """Return whether the spread of log ratios [steps, ranks] falls from ``raw`` to what is ``left``."""
    return classify(left).dispersion <= _WORK_GAIN * classify(raw).dispersion


def explains_uneven(over_peers: Floats, left: Floats, raw: Floats) -> bool:
    """Return whether it falls where a rank has another amount than its peers, which may be few steps.

    ``over_peers`` [steps, ranks] are the logs of expected seconds over those of the peers.
    """
    known = (np.abs(over_peers) >= _UNEVEN) & np.isfinite(left) & np.isfinite(raw)
    if np.count_nonzero(known) < _LEAST_UNEVEN:
        return False
    return bool(np.median(np.abs(left[known])) <= _WORK_GAIN * np.median(np.abs(raw[known])))


def explains_changes(left: Floats, raw: Floats) -> bool:
    """Return whether the spread falls of what changes of each rank from step to step."""
    return explains(left - nan_median(left), raw - nan_median(raw))


def _varies(amount: Floats) -> bool:
    if amount.size < _MIN_POINTS:
        return False
    mean = amount.mean()
    return bool(mean > 0 and amount.std() >= _MIN_SPREAD * mean)


def _huber(y: Floats, amounts: Sequence[Floats]) -> Floats:
    """Return base and slopes of ``y`` [n] over ``amounts`` of [n] each."""
    # Divided by the time, residuals are relative: a slow batch weighs no more than a quick one.
    design = np.stack([np.ones_like(y), *amounts], axis=1) / y[:, None]
    target, weight = np.ones_like(y), np.ones_like(y)
    found = np.zeros(design.shape[1])
    for _ in range(_ROUNDS):
        weighted = design * weight[:, None]
        found = np.linalg.lstsq(weighted.T @ design, weighted.T @ target, rcond=None)[0].astype(np.float64)
        residual = np.abs(target - design @ found)
        sigma = max(1.4826 * float(np.median(residual)), 1e-4)
        weight = np.minimum(1.0, _HUBER * sigma / np.maximum(residual, 1e-12))
    return found
