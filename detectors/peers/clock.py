"""The clock of a job: whether its ranks go by one, and how coarse times are.

Ranks that wait for each other in every step share a wall clock: steps take as long on all of them, however
much their work differs.
"""

import numpy as np
import numpy.typing as npt

from detectors.robust import nan_mean, nan_median

Floats = npt.NDArray[np.float64]

# Coefficient of variation of step times over ranks above which the ranks do not share a wall clock. Chosen:
# below the 0.5 % by which the compute of recorded ranks differs in a step.
_ASYNCHRONOUS = 0.003

# The same where compute times are given too. Chosen: step times differ a little by where they are measured.
_ASYNCHRONOUS_WORK = 0.02


def is_asynchronous(step: Floats, compute: Floats | None) -> bool:
    """Return whether ranks do not wait for each other: their ``step`` times differ, or, where ``compute`` is
    known, do so nearly as that does; both [steps, ranks]."""
    steps = _variation(step)
    if compute is None:
        return steps >= _ASYNCHRONOUS
    # On one clock steps take as long on all ranks, however much work differs; else they differ too.
    return steps >= max(_ASYNCHRONOUS_WORK, 0.5 * _variation(compute))


def resolution(seconds: Floats) -> float | None:
    """Return how coarse ``seconds`` [steps, ranks] are: the least difference of two, as a share of the usual
    one; None where none differ."""
    times = np.unique(seconds[np.isfinite(seconds)])
    return float(np.diff(times).min() / np.median(times)) if times.size > 1 else None


def _variation(seconds: Floats) -> float:
    """Return the usual coefficient of variation over ranks of ``seconds`` [steps, ranks]; NaN of zeros."""
    mean = nan_mean(seconds, axis=1)
    mean = np.where(mean > 0, mean, np.nan)
    deviation = np.sqrt(nan_mean((seconds - mean[:, None]) ** 2, axis=1))
    return float(nan_median(deviation / mean))
