"""Draws what every rank of one job has to do in each step, healthy noise and hardware condition included."""

import numpy as np

from simulator.faults import Condition
from simulator.layout import ClusterSpec, FloatArray, JobSpec, coords
from simulator.schedule import Work

DRIFT_MEMORY = 0.9
"""Lag-1 of the shared drift; with the noise beside it, one rank's steps show the measured 0.7 to 0.8."""


class WorkSource:
    """The work of one job, step after step.

    Keeps the job's drift and each rank's lasting speed; all randomness comes from ``rng``.
    """

    def __init__(self, cluster: ClusterSpec, job: JobSpec, rng: np.random.Generator) -> None:
        self._job = job
        self._rng = rng
        self._shape = (job.pp, job.dp, job.tp)
        dp, pp, tp = coords(job)
        rank = np.arange(job.world)
        self.node = job.first_node + rank // cluster.gpus
        self.gpu = rank % cluster.gpus
        self.nic = self.gpu * cluster.nics // cluster.gpus
        self.coords = (dp, pp, tp)
        load = job.workload
        visits = job.micro_batches + job.pp - 1
        base = (job.step_seconds - load.comm_seconds - load.data_seconds) / visits
        lasting = np.exp(load.spread_cv * rng.standard_normal(self._shape))
        self._base = base * lasting
        if job.pp > 1:
            self._base[-1] *= load.last_stage
        self._drift = load.drift_cv * rng.standard_normal()

    def draw(self, step: int, t: float, compute: Condition, transfer: Condition) -> Work:
        """Return the work of ``step`` that starts at ``t`` seconds.

        ``compute`` is the hardware while it computes, ``transfer`` while gradients are sent.
        """
        load = self._job.workload
        scale = self._shared(step, t) * self._ranks(step) * self._of(compute.slowdown())
        noise = load.noise_cv * np.sqrt(self._job.micro_batches)
        micro = 1.0 + noise * self._rng.standard_normal((self._job.micro_batches, *self._shape))
        ratio = transfer.link[self.node, self.nic].reshape(self._shape)
        return Work(
            compute=self._base * scale * micro,
            data=load.data_seconds * self._jitter(0.1) + compute.loader[self.node].reshape(self._shape),
            comm=load.comm_seconds * self._jitter(0.02) / ratio,
            stall=transfer.link_back[self.node, self.nic].reshape(self._shape),
            pause=self._pause(step),
        )

    def _of(self, values: FloatArray) -> FloatArray:
        ranked: FloatArray = values[self.node, self.gpu].reshape(self._shape)
        return ranked

    def _shared(self, step: int, t: float) -> float:
        """What makes all ranks faster or slower together."""
        load = self._job.workload
        kick = load.drift_cv * np.sqrt(1.0 - DRIFT_MEMORY**2)
        self._drift = DRIFT_MEMORY * self._drift + kick * self._rng.standard_normal()
        factor = float(np.exp(self._drift))
        for change in load.planned:
            if t >= change.onset:
                ramp = max(change.ramp_seconds, 1e-9)
                factor *= 1.0 + (change.factor - 1.0) * min(1.0, (t - change.onset) / ramp)
        if load.spike_every and step % load.spike_every == 0:
            factor *= load.spike_factor
        return factor * (1.0 + load.alternation / 2 * (1 if step % 2 else -1))

    def _ranks(self, step: int) -> FloatArray:
        """What differs between ranks from step to step: packed sequences, garbage collection."""
        load = self._job.workload
        factor = np.ones(self._shape)
        if load.packing_cv:
            # Members of a tensor-parallel group work on the same sequences.
            factor *= np.exp(load.packing_cv * self._rng.standard_normal((*self._shape[:2], 1)))
        if self._rng.random() < load.gc_share:
            place = tuple(self._rng.integers(0, n) for n in self._shape)
            factor[place] *= self._rng.uniform(1.05, 1.5)
        return factor

    def _jitter(self, cv: float) -> FloatArray:
        jitter: FloatArray = np.maximum(0.1, 1.0 + cv * self._rng.standard_normal(self._shape))
        return jitter

    def _pause(self, step: int) -> float:
        load = self._job.workload
        if load.checkpoint_every and step % load.checkpoint_every == 0:
            return load.checkpoint_seconds * float(self._rng.uniform(0.8, 1.2))
        return 0.0
