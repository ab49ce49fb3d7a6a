"""The cluster over time: advance the jobs, read the devices once a tick, send records in event-time order."""

import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from simulator.cluster.activity import idle
from simulator.cluster.delivery import Delivery, Sent
from simulator.cluster.layout import ClusterSpec, Planned
from simulator.cluster.truth import Truth, planned_truths, truths
from simulator.devices.devices import Devices
from simulator.faults.condition import Condition
from simulator.faults.events import Incident, incidents
from simulator.faults.fault import Fault
from simulator.faults.hardware import Hardware
from simulator.jobs.job import RunningJob
from simulator.jobs.step_rows import Rows, packed
from slowrank.telemetry import JobSteps, NodeSample, Record
from slowrank.telemetry.schema import CURRENT_SAMPLE_SCHEMA, SAMPLE_SCHEMAS


class Cluster:
    """A simulated cluster; the same spec, faults and seed give the same records byte for byte.

    ``truth`` has the injected faults, ``planned`` the healthy behaviour that resembles faults; ``run`` yields
    the records of the exporters.
    """

    def __init__(self, spec: ClusterSpec, *, seed: int, faults: Iterable[Fault] = ()) -> None:
        self.spec = spec
        self.faults = tuple(faults)
        # A random stream for each part, so that a fault in one job does not change the draws of another.
        rngs = np.random.default_rng(seed).spawn(3 + len(spec.jobs))
        for fault in self.faults:
            self._check_place(fault)
        self._devices = Devices(spec, rngs[0])
        self._hardware = Hardware(spec, self.faults, range(spec.nodes))
        # Each exporter ticks at its own, constant phase of the second.
        self._phase = np.sort(rngs[1].uniform(0.0, 0.9, spec.nodes)) * spec.send_seconds
        self._jobs = [
            RunningJob(spec, job, self.faults, rng) for job, rng in zip(spec.jobs, rngs[2:-1], strict=True)
        ]
        self._names = [spec.node_name(node) for node in range(spec.nodes)]
        self._labels = [spec.labels(node) for node in range(spec.nodes)]
        self._gpu_ids = tuple(str(gpu) for gpu in range(spec.gpus))
        self._nic_ids = tuple(f"mlx5_{nic}/1" for nic in range(spec.nics))
        self._delivery = Delivery(spec, self.faults, rngs[-1])
        self._seq = [0] * spec.nodes
        self._boot = [1] * spec.nodes
        self._unsent: list[list[Rows]] = [[] for _ in self._jobs]
        self._incidents: deque[Incident] = deque()
        self._now = self._until = 0.0

    @property
    def truth(self) -> tuple[Truth, ...]:
        """The injected faults."""
        return truths(self.spec, self.faults)

    @property
    def planned(self) -> tuple[Truth, ...]:
        """Healthy behaviour of the jobs that resembles faults."""
        return planned_truths(self.spec)

    def inject(self, fault: Fault) -> None:
        """Add a fault while the cluster runs; its ``onset`` is seconds since the start, as always.

        Raises ``ValueError`` for a place that does not exist, and for an onset in the past.
        """
        self._check_place(fault)
        self._check_time(fault.onset)
        self.faults = (*self.faults, fault)
        self._hardware.add(fault)
        self._delivery.add(fault)
        for job in self._jobs:
            job.inject(fault)
        due = [*self._incidents, *incidents(self.spec, [fault], self._until)]
        self._incidents = deque(sorted(due, key=lambda incident: incident.t))

    def plan(self, job_id: str, change: Planned) -> None:
        """Add a planned change to a job while it runs. Raises ``ValueError`` as ``inject`` does."""
        self._check_time(change.onset)
        found = [job for job in self._jobs if job.job.job_id == job_id]
        if not found:
            raise ValueError(f"there is no job {job_id}")
        found[0].plan(change)

    def _check_place(self, fault: Fault) -> None:
        if not 0 <= fault.node < self.spec.nodes or not 0 <= (fault.gpu or 0) < self.spec.gpus:
            gpu = "" if fault.gpu is None else f" with GPU {fault.gpu}"
            raise ValueError(f"fault {fault.kind}: there is no node {fault.node}{gpu}")

    def _check_time(self, onset: float) -> None:
        if onset < self._now:
            raise ValueError(f"onset={onset:g}: the cluster has run to {self._now:g} s already")

    def run(self, duration: float) -> Iterator[Record]:
        """Yield the records of ``duration`` seconds in order of their true time of arrival."""
        self._until = duration
        self._incidents = deque(incidents(self.spec, self.faults, duration))
        uncounted: list[Incident] = []
        tick = self.spec.send_seconds
        for second in range(int(duration / tick)):
            start, until = second * tick, (second + 1) * tick
            due: list[Incident] = []
            while self._incidents and self._incidents[0].t < until:
                due.append(self._incidents.popleft())
            self._now = until
            # An incident after a node was read in this tick shows in its next sample.
            read = start + self._phase
            ripe = [i for i in uncounted + due if i.t <= read[i.node]]
            uncounted = [i for i in uncounted + due if i.t > read[i.node]]
            sent: list[Sent] = [(i.t, i.event) for i in due if i.event is not None]
            sent += self._tick(start, ripe)
            yield from self._delivery.arrivals(sent, until)

    def _tick(self, start: float, happened: Sequence[Incident]) -> Iterator[Sent]:
        until = start + self.spec.send_seconds
        # Steps that ended within this tick are sent with the exporter's next record.
        held, self._unsent = self._unsent, [job.advance(until) for job in self._jobs]
        condition = self._hardware.at(start, self._phase)
        activity, moments = idle(self.spec), start + self._phase
        for job in self._jobs:
            job.fill(activity, moments)
        self._devices.read(activity, condition, self.spec.send_seconds, happened)
        # Numbers of records count from zero in every boot, as the exporters' do.
        for incident in happened:
            if incident.reboots:
                self._boot[incident.node] += 1
                self._seq[incident.node] = 0
        yield from self._samples(start, condition)
        for job, steps in zip(self._jobs, held, strict=True):
            yield from self._flushes(job, steps, start, condition)
            yield from job.events(until)

    def _job_ids(self, t: float) -> list[str | None]:
        found: list[str | None] = [None] * self.spec.nodes
        for job in self.spec.jobs:
            if job.begins <= t < job.ends:
                nodes = self.spec.nodes_of_job(job)
                found[nodes.start : nodes.stop] = [job.job_id] * len(nodes)
        return found

    def _samples(self, start: float, condition: Condition) -> Iterator[Sent]:
        """Yield the sample of each node that reports."""
        jobs, devices = self._job_ids(start), self._devices
        schema = SAMPLE_SCHEMAS[CURRENT_SAMPLE_SCHEMA]
        whole = np.asarray(condition.present.all(axis=1))
        gpu, nic, host = (board.rows() for board in (devices.gpu, devices.nic, devices.host))
        for node in np.flatnonzero(condition.reporting).tolist():
            gpu_ids = self._gpu_ids
            if not whole[node]:
                present = condition.present[node]
                gpu_ids = tuple(np.array(gpu_ids)[present].tolist())
                gpu[node] = devices.gpu.part(node, present)
            moment = start + float(self._phase[node])
            sample = NodeSample(
                schema=schema.id,
                cluster=self.spec.name,
                node=self._names[node],
                boot_id=f"sim-boot-{self._boot[node]}",
                seq=self._next_seq(node),
                ts=self.spec.start + moment + float(condition.skew[node]),
                job_id=jobs[node],
                labels=self._labels[node],
                gpu_ids=gpu_ids,
                nic_ids=self._nic_ids,
                row_bytes=schema.row_bytes,
                gpu=gpu[node],
                nic=nic[node],
                host=host[node],
            )
            yield moment, sample

    def _next_seq(self, node: int) -> int:
        self._seq[node] += 1
        return self._seq[node] - 1

    def _flushes(
        self, job: RunningJob, steps: list[Rows], start: float, condition: Condition
    ) -> Iterator[Sent]:
        """Yield the records of each node of the job: the rows of the steps that ended before its tick."""
        for attempt, group in itertools.groupby(steps, key=lambda rows: rows.attempt):
            ended = list(group)
            for place, node in enumerate(job.nodes):
                if not condition.reporting[node]:
                    continue
                ranks = slice(place * self.spec.gpus, (place + 1) * self.spec.gpus)
                moment, skew = start + float(self._phase[node]), float(condition.skew[node])
                steps_of_node = JobSteps(
                    schema=1,
                    cluster=self.spec.name,
                    job_id=job.job.job_id,
                    attempt=attempt,
                    node=self._names[node],
                    boot_id=f"sim-boot-{self._boot[node]}",
                    seq=self._next_seq(node),
                    ts=self.spec.start + moment + skew,
                    world_size=job.job.world,
                    labels=job.labels(node),
                    rows=packed(ended, ranks, skew=skew),
                )
                yield moment, steps_of_node
