"""Random work of every rank of one job in each step, with healthy noise and the condition of the hardware."""

import math

import numpy as np

from simulator.cluster.layout import ClusterSpec, FloatArray, JobSpec, Planned
from simulator.faults.condition import Condition
from simulator.jobs.noise import Noise
from simulator.jobs.step_schedule import Work

# Recorded jobs are slow for 10 to 20 steps: the first takes 2.5 times as long, the 20th one per cent longer.
WARM_UP_STEPS, WARM_UP_EXCESS = 4.0, 1.5
# CV of the length of generation between replicas. Assumption.
GENERATION_CV = 0.1
# Longer than any run.
NEVER_SECONDS = 1e9


class WorkSource:
    """The work of one job by step.

    Holds the job's drift and each rank's permanent speed; all randomness comes from ``rng``. Conditions are
    those of the job's own nodes.
    """

    def __init__(self, cluster: ClusterSpec, job: JobSpec, rng: np.random.Generator) -> None:
        self._job = job
        self._rng = rng
        self._shape = (job.pp, job.dp, job.tp)
        self._alone = job.world <= cluster.gpus
        rank = np.arange(job.world)
        self.node = rank // cluster.gpus
        self.gpu = rank % cluster.gpus
        self.nic = self.gpu * cluster.nics // cluster.gpus
        load = job.workload
        visits = job.micro_batches + job.pp - 1
        base = (job.step_seconds - load.comm_seconds - load.data_seconds) / visits
        # GPUs of one model differ a little permanently, which is no fault.
        lasting = np.exp(load.spread_cv * rng.standard_normal(self._shape))
        self._base = base * lasting
        if job.pp > 1:
            self._base[-1] *= load.last_stage
        self._noise = Noise(job, rng)

    def draw(
        self, step: int, t: float, *, start: Condition, transfer: Condition, slowdown: FloatArray
    ) -> Work:
        """Return the work of ``step`` that starts at ``t`` seconds.

        ``start`` is the condition at its start, ``transfer`` that while gradients are sent; compute takes
        ``slowdown`` [nodes, gpus] times as long.
        """
        load = self._job.workload
        scale = self._noise.shared(step, t) * self._noise.ranks() * self._of(slowdown)
        # Per micro-batch, such that the sum over a step has noise_cv.
        noise = load.noise_cv * np.sqrt(self._job.micro_batches)
        micro = 1.0 + noise * self._rng.standard_normal((self._job.micro_batches, *self._shape))
        ratio, stall = self._links(transfer)
        return Work(
            # Bounded below, so that work is positive for any noise_cv.
            compute=self._base * scale * np.maximum(micro, 0.1),
            data=load.data_seconds * self._jitter(0.1) + start.loader[self.node].reshape(self._shape),
            # Measured: all-gathers vary by 2 to 2.4 %.
            comm=load.comm_seconds * self._jitter(0.022) / ratio,
            stall=stall,
            pause=self._checkpoint(step, start),
        )

    def plan(self, change: Planned) -> None:
        """Add a planned change of all ranks' compute."""
        self._noise.plan(change)

    def generation(self, slowdown: FloatArray) -> FloatArray:
        """Return the seconds of generation of each rank of the replicas that roll out, [pp, dp, tp]."""
        replicas = self._job.rollout_dp
        length = np.exp(GENERATION_CV * self._rng.standard_normal((1, replicas, 1)))
        own = self._of(slowdown)[:, :replicas] * self._jitter(0.005)[:, :replicas]
        seconds: FloatArray = self._job.rollout_seconds * length * own
        return seconds

    def gap(self, step: int) -> float:
        """Return the seconds between the end of ``step`` and the next: an evaluation, if one is due."""
        load = self._job.workload
        if load.eval_every and step % load.eval_every == 0:
            return load.eval_seconds * float(self._rng.uniform(0.8, 1.2))
        return 0.0

    def warm_up(self, steps: int) -> float:
        """Return the factor of a step that follows ``steps`` others of its attempt."""
        return 1.0 + WARM_UP_EXCESS * math.exp(-steps / WARM_UP_STEPS)

    def _links(self, transfer: Condition) -> tuple[FloatArray, FloatArray]:
        """Return the share of bandwidth left to each rank, and its wait for a link that is down (seconds)."""
        if self._alone:
            return np.ones(self._shape), np.zeros(self._shape)
        ratio = transfer.link[self.node, self.nic].reshape(self._shape)
        stall = transfer.link_back[self.node, self.nic].reshape(self._shape)
        # A link that never returns breaks the job before a step of this length ends.
        return ratio, np.minimum(stall, NEVER_SECONDS)

    def _of(self, values: FloatArray) -> FloatArray:
        ranked: FloatArray = values[self.node, self.gpu].reshape(self._shape)
        return ranked

    def _jitter(self, cv: float) -> FloatArray:
        jitter: FloatArray = np.maximum(0.1, 1.0 + cv * self._rng.standard_normal(self._shape))
        return jitter

    def _checkpoint(self, step: int, start: Condition) -> float:
        load = self._job.workload
        if load.checkpoint_every and step % load.checkpoint_every == 0:
            slowest = float(start.storage[self.node].max())
            return load.checkpoint_seconds * float(self._rng.uniform(0.8, 1.2)) + slowest
        return 0.0
