"""The loss and gradient norm a job reports: alike on every rank, whatever a single machine did to them."""

import math

import numpy as np

from simulator.faults.fault import Fault

# A fast fall and a long tail: what is left above the floor halves in 3 * LOSS_STEPS.
START_LOSS, FLOOR_LOSS, LOSS_STEPS = 8.0, 1.7, 800.0


class Losses:
    """The numbers of one job, step after step, with what its ``loss`` faults make of them."""

    def __init__(self, faults: list[Fault], rng: np.random.Generator) -> None:
        self._faults = [fault for fault in faults if fault.row.cause == "loss"]
        self._rng = rng

    def at(self, step: int, t: float) -> tuple[float, float]:
        """Return loss and gradient norm of ``step``, which ends at ``t``.

        A loss that runs away is no number any more, which its 32-bit column shows as infinity.
        """
        # Two numbers a step whatever goes wrong, so that a fault changes nothing but what it changes.
        wave, noise = self._rng.standard_normal(2)
        loss = FLOOR_LOSS + (START_LOSS - FLOOR_LOSS) / math.sqrt(1.0 + step / LOSS_STEPS) + 0.02 * wave
        norm = 0.6 * math.exp(0.15 * noise)
        for fault in self._faults:
            severity = fault.severity(t)
            if severity and fault.kind == "nan_loss":
                return math.inf, math.inf
            if severity:
                factor = 1.0 + (fault.magnitude - 1.0) * severity
                loss, norm = loss * factor, norm * factor
        return loss, norm
