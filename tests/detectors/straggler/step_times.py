"""Steps of which only compute is reported."""

import numpy as np
import numpy.typing as npt

from detectors.peers.step_times import StepTimes


def of_compute(number: int, ts: float, work: npt.NDArray[np.float64]) -> StepTimes:
    """Return the step that ends at ``ts`` and takes as long as the slowest rank; ``work`` [ranks] in s."""
    ranks = work.size
    nan = np.full(ranks, np.nan)
    return StepTimes(
        number=number, ts=np.full(ranks, ts), step=np.full(ranks, work.max()), compute=work, wait=nan,
        data=nan, comm=nan, checkpoint=nan, tokens=nan,
    )  # fmt: skip
