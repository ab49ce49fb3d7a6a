"""The cluster over time: jobs step, devices are read once a second, exporters send, in event-time order."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from simulator.devices import Activity, Devices
from simulator.events import events, link_losses
from simulator.faults import Condition, Fault, condition_at
from simulator.jobs import Rows, RunningJob
from simulator.layout import ClusterSpec
from simulator.truth import Truth, truths
from slowrank.telemetry import JobSteps, NodeEvent, NodeSample, Record


class Cluster:
    """A simulated cluster; the same spec, faults and seed give the same records byte for byte.

    ``truth`` says what goes wrong, ``run`` yields what the exporters would send.
    """

    def __init__(self, spec: ClusterSpec, *, seed: int, faults: Iterable[Fault] = ()) -> None:
        self.spec = spec
        self.faults = tuple(faults)
        rngs = np.random.default_rng(seed).spawn(2 + len(spec.jobs))
        for fault in self.faults:
            if not 0 <= fault.node < spec.nodes or not 0 <= (fault.gpu or 0) < spec.gpus:
                raise ValueError(f"fault {fault.kind}: no node {fault.node} with GPU {fault.gpu} here")
        self._devices = Devices(spec, rngs[0])
        # Each exporter ticks at its own moment within the second, and keeps to it.
        self._phase = np.sort(rngs[1].uniform(0.0, 0.9, spec.nodes)) * spec.send_seconds
        self._jobs = [
            RunningJob(spec, job, self.faults, rng) for job, rng in zip(spec.jobs, rngs[2:], strict=True)
        ]
        self._names = [spec.node_name(node) for node in range(spec.nodes)]
        self._labels = [spec.labels(node) for node in range(spec.nodes)]
        self._gpu_ids = tuple(str(gpu) for gpu in range(spec.gpus))
        self._nic_ids = tuple(f"mlx5_{nic}/1" for nic in range(spec.nics))
        self._unsent: list[list[Rows]] = [[] for _ in self._jobs]
        self._job_of: list[str | None] = [None] * spec.nodes
        for job in self._jobs:
            for node in _nodes(spec, job):
                self._job_of[node] = job.job.job_id

    @property
    def truth(self) -> tuple[Truth, ...]:
        """What was injected, fault by fault."""
        return truths(self.spec, self.faults)

    def run(self, duration: float) -> Iterator[Record]:
        """Yield the records of ``duration`` seconds in order of the true time they were sent at."""
        waiting = sorted(
            (e for fault in self.faults for e in events(self.spec, fault, duration)), key=lambda e: e.ts
        )
        for second in range(int(duration / self.spec.send_seconds)):
            start = second * self.spec.send_seconds
            until = self.spec.start + start + self.spec.send_seconds
            due = [event for event in waiting if event.ts < until]
            waiting = waiting[len(due) :]
            yield from self._tick(second, start, due)

    def _tick(self, second: int, start: float, due: Sequence[NodeEvent]) -> Iterator[Record]:
        held, self._unsent = self._unsent, [job.advance(start + self.spec.send_seconds) for job in self._jobs]
        condition = condition_at(self.spec, self.faults, start, self._phase)
        self._devices.read(self._activity(start), condition, self.spec.send_seconds, self._downs(start))
        sent: list[tuple[float, Record]] = [(event.ts - self.spec.start, event) for event in due]
        for node in np.flatnonzero(condition.reporting):
            moment = start + float(self._phase[node])
            skew = float(condition.skew[node])
            sent.append((moment, self._sample(int(node), second, moment + skew, condition)))
        for job, steps in zip(self._jobs, held, strict=True):
            sent.extend(self._flushes(job, steps, second, condition))
        yield from (record for _, record in sorted(sent, key=lambda pair: pair[0]))

    def _activity(self, t: float) -> Activity:
        gpus = (self.spec.nodes, self.spec.gpus)
        activity = Activity(
            compute=np.zeros(gpus),
            wait=np.zeros(gpus),
            running=np.zeros(gpus, np.bool_),
            sent=np.zeros((self.spec.nodes, self.spec.nics)),
        )
        for job in self._jobs:
            job.fill(activity, t + self.spec.send_seconds)
        return activity

    def _downs(self, start: float) -> npt.NDArray[np.int64]:
        downs = np.zeros((self.spec.nodes, self.spec.nics), np.int64)
        for fault in self.faults:
            if fault.kind == "nic_flap":
                moment = start + float(self._phase[fault.node])
                downs[fault.node, self.spec.nic_of(fault.gpu or 0)] += link_losses(fault, moment)
        return downs

    def _sample(self, node: int, second: int, t: float, condition: Condition) -> NodeSample:
        present = condition.present[node]
        whole = bool(present.all())
        return NodeSample(
            schema=1,
            cluster=self.spec.name,
            node=self._names[node],
            boot_id="sim-boot-1",
            seq=2 * second,
            ts=self.spec.start + t,
            job_id=self._job_of[node],
            labels=self._labels[node],
            gpu_ids=self._gpu_ids if whole else tuple(np.array(self._gpu_ids)[present].tolist()),
            nic_ids=self._nic_ids,
            gpu=self._devices.gpu.bytes(node, None if whole else present),
            nic=self._devices.nic.bytes(node),
            host=self._devices.host.bytes(node),
        )

    def _flushes(
        self, job: RunningJob, steps: list[Rows], second: int, condition: Condition
    ) -> Iterator[tuple[float, JobSteps]]:
        """Yield what each node of the job sends with its tick: the rows of the steps that ended before it."""
        if not steps:
            return
        for place, node in enumerate(_nodes(self.spec, job)):
            if not condition.reporting[node]:
                continue
            ranks = slice(place * self.spec.gpus, (place + 1) * self.spec.gpus)
            keys, values = (
                np.concatenate(part, axis=1) for part in zip(*(s.of(ranks) for s in steps), strict=True)
            )
            skew = float(condition.skew[node])
            moment = second * self.spec.send_seconds + float(self._phase[node])
            if skew:
                values = values + np.where(np.arange(len(values)) == 0, skew, 0.0)[:, None]
            yield (
                moment,
                JobSteps(
                    schema=1,
                    cluster=self.spec.name,
                    job_id=job.job.job_id,
                    node=self._names[node],
                    boot_id="sim-boot-1",
                    seq=2 * second + 1,
                    ts=self.spec.start + moment + skew,
                    world_size=job.job.world,
                    labels={"gpu_model": self.spec.gpu_model, "phase": "train"},
                    rows=keys.tobytes() + values.tobytes(),
                ),
            )


def _nodes(spec: ClusterSpec, job: RunningJob) -> range:
    return range(job.job.first_node, job.job.first_node + job.job.world // spec.gpus)
