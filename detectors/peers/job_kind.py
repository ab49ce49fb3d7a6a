"""What kind of work a job does: the same on every rank, or varying from rank to rank and step to step.

Decides how soon a difference between ranks means something. Packed, variable-length sequences make healthy
ranks differ by 10 % and more in one step; there only the same rank again and again is evidence.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from detectors.robust import nan_median

Floats = npt.NDArray[np.float64]

Kind = Literal["fixed", "between", "variable"]

# Ranks of one role with the same work lie within 2 % in a step of recorded jobs, those with packed sequences
# apart by 10 % and more; what lies between is treated with the caution of the second.
FIXED_DISPERSION = 0.02
VARIABLE_DISPERSION = 0.04

# Share of the spread that goes with the rank; above it the machines differ, and not the batches. Chosen:
# batches drawn anew in each of 50 steps leave about 0.03.
VARIABLE_PERSISTENCE = 0.3


@dataclass(frozen=True, slots=True)
class JobKind:
    """``dispersion`` D: robust spread of the ranks within a step.

    ``persistence`` R: the share of that spread which stays with the rank.
    """

    kind: Kind
    dispersion: float
    persistence: float


def classify(log_ratio: Floats) -> JobKind:
    """Classify from log ratios to same-role peers, [steps, ranks] of the last 20-50 steps, NaN = not read."""
    deviation = log_ratio[np.isfinite(log_ratio).any(axis=1)]
    if deviation.size == 0:
        return JobKind("between", float("nan"), float("nan"))
    dispersion = float(np.median(1.4826 * nan_median(np.abs(deviation), axis=1)))
    read = deviation[:, np.isfinite(deviation).any(axis=0)]
    persistent = float(np.var(nan_median(read)))
    total = float(np.nanvar(read))
    persistence = min(persistent / total, 1.0) if total > 0 else 0.0
    return JobKind(_kind(dispersion, persistence), dispersion, persistence)


def _kind(dispersion: float, persistence: float) -> Kind:
    if dispersion <= FIXED_DISPERSION:
        return "fixed"
    if dispersion > VARIABLE_DISPERSION and persistence < VARIABLE_PERSISTENCE:
        return "variable"
    return "between"
