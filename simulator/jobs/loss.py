"""The loss and gradient norm that a job reports, equal on all ranks."""

import math

import numpy as np

from simulator.faults.fault import Fault

# A power law: the excess over the floor halves in 3 * LOSS_STEPS. Assumption.
START_LOSS, FLOOR_LOSS, LOSS_STEPS = 8.0, 1.7, 800.0


class Losses:
    """The loss and gradient norm of one job by step, with its ``loss`` faults."""

    def __init__(self, faults: list[Fault], rng: np.random.Generator) -> None:
        self._faults: list[Fault] = []
        self._rng = rng
        for fault in faults:
            self.add(fault)

    def add(self, fault: Fault) -> None:
        """Add a fault, unless it is not one of the loss."""
        if fault.row.cause == "loss":
            self._faults.append(fault)

    def at(self, step: int, t: float) -> tuple[float, float]:
        """Return loss and gradient norm of ``step``, which ends at ``t``.

        A diverged loss is infinite, since a NaN in its column would mean "not reported".
        """
        # Two draws a step in every case, so that a fault does not change later draws.
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
