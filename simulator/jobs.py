"""One running job: starts its steps one after the other and keeps the rows its ranks report."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from simulator.devices import Activity
from simulator.faults import Fault, condition_at
from simulator.layout import ClusterSpec, FloatArray, JobSpec
from simulator.schedule import StepTimes, run_step
from simulator.workload import WorkSource
from slowrank.telemetry.schema import MISSING_INT, STEP_SCHEMAS

_BLOCK = STEP_SCHEMAS[1].rows
_KEYS = [c.name for c in _BLOCK.columns if c.dtype == "<i8"]
_VALUES = [c.name for c in _BLOCK.columns if c.dtype == "<f8"]


@dataclass(slots=True)
class Rows:
    """The rows of one step for all ranks: keys [columns, world] and values [columns, world]."""

    end: float
    keys: npt.NDArray[np.int64]
    values: FloatArray

    def of(self, ranks: slice) -> tuple[npt.NDArray[np.int64], FloatArray]:
        """Return keys and values of some ranks."""
        return self.keys[:, ranks], self.values[:, ranks]


class RunningJob:
    """The step clock of one job. ``advance`` runs it up to a time and returns the steps that ended by it."""

    def __init__(self, spec: ClusterSpec, job: JobSpec, faults: tuple[Fault, ...], rng: np.random.Generator):
        self.job = job
        self._spec = spec
        self._faults = faults
        self._rng = rng
        self._source = WorkSource(spec, job, rng)
        self._calm = np.zeros(spec.nodes)
        self._nodes = slice(job.first_node, job.first_node + job.world // spec.gpus)
        self._step = job.first_step
        self._begun = -float(rng.uniform(0.0, job.step_seconds))
        self._times: StepTimes | None = None
        self.stopped_at: float | None = None
        self._keys = self._identities()

    def advance(self, t: float) -> list[Rows]:
        """Run the job to ``t`` seconds from the start; a job that is stopped stands still from then on."""
        ended: list[Rows] = []
        while self.stopped_at is None:
            if self._times is None:
                self._times = self._begin()
            end = self._begun + self._times.step_seconds
            stop = self._first_stop(self._begun, min(end, t))
            if stop is not None:
                self.stopped_at = stop
            elif end > t:
                break
            else:
                ended.append(self._rows(self._times, end))
                self._begun, self._times, self._step = end, None, self._step + 1
        return ended

    def fill(self, activity: Activity, t: float) -> None:
        """Write what the job's GPUs do at ``t`` into ``activity``: after a stop all spin, waiting."""
        shape = (-1, self._spec.gpus)
        activity.running[self._nodes] = True
        if self.stopped_at is not None and t >= self.stopped_at:
            activity.compute[self._nodes], activity.wait[self._nodes] = 0.0, 1.0
            return
        assert self._times is not None
        times = self._times
        activity.compute[self._nodes] = (times.compute / times.step_seconds).reshape(shape)
        activity.wait[self._nodes] = ((times.wait + times.comm) / times.step_seconds).reshape(shape)
        if self.job.dp > 1:
            gpus_per_nic = self._spec.gpus / self._spec.nics
            activity.sent[self._nodes] = self.job.gradient_bytes * gpus_per_nic / times.step_seconds

    def _begin(self) -> StepTimes:
        # Gradients leave near the end of a step; the links are taken as they will be then.
        sending = self._begun + 0.9 * self.job.step_seconds
        compute = condition_at(self._spec, self._faults, self._begun, self._calm)
        transfer = condition_at(self._spec, self._faults, sending, self._calm)
        return run_step(self._source.draw(self._step, self._begun, compute, transfer))

    def _first_stop(self, begun: float, until: float) -> float | None:
        """Return when a fault that no step survives came up on a node of the job in (begun, until]."""
        stops = [
            max(fault.onset, begun)
            for fault in self._faults
            if self._nodes.start <= fault.node < self._nodes.stop
            and fault.onset <= until
            and condition_at(self._spec, (fault,), fault.onset, self._calm).stopped.any()
        ]
        return min(stops, default=None)

    def _identities(self) -> npt.NDArray[np.int64]:
        keys = np.full((len(_KEYS), self.job.world), MISSING_INT, np.int64)
        dp, pp, tp = self._source.coords
        known = {
            "rank": np.arange(self.job.world),
            "local_rank": self._source.gpu,
            "gpu_index": self._source.gpu,
            "dp": dp,
            "pp": pp,
            "tp": tp,
        }
        for name, values in known.items():
            keys[_KEYS.index(name)] = values
        return keys

    def _rows(self, times: StepTimes, end: float) -> Rows:
        keys = self._keys.copy()
        keys[_KEYS.index("step")] = self._step
        values = np.full((len(_VALUES), self.job.world), np.nan)
        jitter = 1.0 + 2e-5 * self._rng.standard_normal(self.job.world)
        told: dict[str, npt.ArrayLike] = {
            "ts": self._spec.start + end,
            "step_seconds": times.step_seconds * jitter,
            "compute_seconds": times.compute.ravel(),
            "wait_seconds": np.maximum(times.wait, 0.0).ravel(),
            "data_seconds": times.data.ravel(),
            "comm_seconds": times.comm.ravel(),
            "tokens": self.job.tokens,
        }
        if times.pause:
            told["checkpoint_seconds"] = times.pause
        for name, given in told.items():
            values[_VALUES.index(name)] = given
        return Rows(end, keys, values)
