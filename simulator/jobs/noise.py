"""Variation of the work of a healthy job from step to step: common to all ranks, and between them."""

import math

import numpy as np

from simulator.cluster.layout import FloatArray, JobSpec, Planned

# Lag-1 of the shared drift; with the noise added, a rank's steps have the measured 0.7 to 0.8.
DRIFT_MEMORY = 0.9
# Lag-1 of the effect of neighbours on shared hardware (measured: 0.52 to 0.59 with the noise added).
WANDER_MEMORY = 0.6

DAY_SECONDS = 86400.0

# The tails, as shares of steps and in units of the spread: very long sequences, delayed steps. Set so that
# simulated jobs match recorded ones (tests/simulator/test_calibration.py).
LONG_SHARE, LONG_EXCESS = 0.02, 8.0
JOLT_SHARE, JOLT_RANGE = 0.025, (2.8, 11.6)


class Noise:
    """Random factors of about 1 for the compute of a job's steps and ranks, by its ``Workload``."""

    def __init__(self, job: JobSpec, rng: np.random.Generator) -> None:
        self._load = job.workload
        self._planned = list(self._load.planned)
        self._rng = rng
        self._shape = (job.pp, job.dp, job.tp)
        self._drift = self._load.drift_cv * rng.standard_normal()
        self._wander = np.zeros(self._shape)

    def plan(self, change: Planned) -> None:
        """Add a planned change."""
        self._planned.append(change)

    def shared(self, step: int, t: float) -> float:
        """Return the common factor of all ranks in the step that starts at ``t``."""
        load = self._load
        # Such that the spread of the drift is drift_cv for any memory.
        kick = load.drift_cv * np.sqrt(1.0 - DRIFT_MEMORY**2)
        self._drift = DRIFT_MEMORY * self._drift + kick * self._rng.standard_normal()
        factor = float(np.exp(self._drift)) * self._jolt()
        for change in self._planned:
            if t >= change.onset:
                ramp = max(change.ramp_seconds, 1e-9)
                factor *= 1.0 + (change.factor - 1.0) * min(1.0, (t - change.onset) / ramp)
        if (load.spike_every and step % load.spike_every == 0) or step in load.recompiles:
            factor *= load.spike_factor
        if load.gc_every and step % load.gc_every == 0:
            factor *= load.gc_factor
        if load.alternate_every == 2:
            factor *= 1.0 + load.alternation / 2 * (1 if step % 2 else -1)
        elif step % load.alternate_every == 0:
            factor *= 1.0 + load.alternation
        return factor * (1.0 + load.diurnal * 0.5 * (1.0 - math.cos(2 * math.pi * t / DAY_SECONDS)))

    def _jolt(self) -> float:
        """Return the common noise of one step: normal, with a longer delay in some steps."""
        cv = self._load.jitter_cv
        if not cv:
            return 1.0
        delay = self._rng.uniform(*JOLT_RANGE) if self._rng.random() < JOLT_SHARE else 0.0
        return float(1.0 + cv * (self._rng.standard_normal() + delay))

    def ranks(self) -> FloatArray:
        """Return the factors of the ranks, [pp, dp, tp]: long sequences, neighbours, collections."""
        load = self._load
        factor = np.ones(self._shape)
        if load.packing_cv:
            # Members of a tensor-parallel group work on the same sequences.
            factor *= _packed(load.packing_cv, (*self._shape[:2], 1), self._rng)
        if load.wander_cv:
            kick = load.wander_cv * np.sqrt(1.0 - WANDER_MEMORY**2) * self._rng.standard_normal(self._shape)
            self._wander = WANDER_MEMORY * self._wander + kick
            factor *= np.exp(self._wander)
        if self._rng.random() < load.gc_share:
            place = tuple(self._rng.integers(0, n) for n in self._shape)
            factor[place] *= self._rng.uniform(1.05, 1.5)
        return factor


def _packed(cv: float, shape: tuple[int, ...], rng: np.random.Generator) -> FloatArray:
    """Return the factors of packed sequences: about 1, and up to twice as long for a few."""
    # The tail adds to the spread of the body, which is therefore smaller than cv.
    body = np.exp(0.85 * cv * rng.standard_normal(shape))
    long = rng.random(shape) < LONG_SHARE
    factor: FloatArray = body + np.where(long, rng.uniform(0.0, LONG_EXCESS * cv, shape), 0.0)
    return factor
