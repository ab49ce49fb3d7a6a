"""One running job: runs its steps one after the other and builds the rows of its ranks."""

import math
from collections.abc import Iterable

import numpy as np

from simulator.cluster.activity import Activity
from simulator.cluster.layout import ClusterSpec, FloatArray, JobSpec, Planned
from simulator.faults.breaks import Break, breaks, first_in, repaired
from simulator.faults.events import job_event
from simulator.faults.fault import Fault
from simulator.faults.hardware import Hardware
from simulator.jobs.loss import Losses
from simulator.jobs.step_rows import Rows, StepRows
from simulator.jobs.step_schedule import StepTimes, after_rollout, run_step
from simulator.jobs.timeline import Segment, Timeline
from simulator.jobs.workload import WorkSource
from slowrank.telemetry import NodeEvent

# Time for which other ranks compute on after one has died, until they wait for it. Assumption.
VICTIMS_FOLLOW_SECONDS = 0.3
# Share of an evaluation in which a GPU computes. Assumption.
EVALUATION_SHARE = 0.5


class RunningJob:
    """The step clock of one job. ``advance`` runs it up to a time and returns the steps that ended by it."""

    def __init__(
        self, spec: ClusterSpec, job: JobSpec, faults: Iterable[Fault], rng: np.random.Generator
    ) -> None:
        self.job = job
        self.attempt = job.attempt
        self.nodes = spec.nodes_of_job(job)
        self._events: list[tuple[float, NodeEvent]] = []
        self._spec = spec
        self._hardware = Hardware(spec, faults, self.nodes)
        self._breaks = breaks(self._hardware, alone=len(self.nodes) == 1)
        self._source = WorkSource(spec, job, rng)
        self._rows = StepRows(spec, job, rng)
        self._losses = Losses(self._hardware.faults, rng.spawn(1)[0])
        self._timeline = Timeline(self.nodes)
        self._step = job.first_step
        self._warm: int | None = 0 if job.begins or job.attempt else None
        self._ended: Rows | None = None
        # A job that already runs is within a step at time 0.
        self._now = job.begins or -float(rng.uniform(0.0, job.step_seconds))
        self._timeline.add(Segment(self._now, 0.0, 0.0, running=False))
        if job.begins:
            self._announce(self._now, "job.start", f"attempt {self.attempt} on {len(self.nodes)} nodes")
        for change in job.workload.planned:
            self._announce_change(change)

    def inject(self, fault: Fault) -> None:
        """Add a fault while the job runs; a step that is planned already does not change by it."""
        self._hardware.add(fault)
        self._breaks = breaks(self._hardware, alone=len(self.nodes) == 1)
        self._losses.add(fault)

    def plan(self, change: Planned) -> None:
        """Add a planned change, announced as those of the workload are."""
        self._source.plan(change)
        self._announce_change(change)

    def advance(self, t: float) -> list[Rows]:
        """Run the job to ``t`` seconds since the start."""
        ended: list[Rows] = []
        while self._now <= t:
            if self._ended is not None:
                ended.append(self._ended)
                self._ended = None
            self._plan_next()
        return ended

    def fill(self, activity: Activity, moments: FloatArray) -> None:
        """Write the activity of the job's GPUs at ``moments`` [nodes of the cluster] into ``activity``."""
        self._timeline.fill(activity, moments)

    def events(self, until: float) -> list[tuple[float, NodeEvent]]:
        """Return the job's announcements before ``until`` with their times, each once."""
        due = [pair for pair in self._events if pair[0] < until]
        self._events = [pair for pair in self._events if pair[0] >= until]
        return due

    def labels(self, node: int) -> dict[str, str]:
        """Return the labels of the rows of ``node``."""
        rolls_out = node - self.nodes.start < self.job.rollout_dp * self.job.tp // self._spec.gpus
        return {"gpu_model": self._spec.gpu_model, "phase": "rollout" if rolls_out else "train"}

    def _plan_next(self) -> None:
        """Plan the next segments, up to the end of a step, of a repair or of the job."""
        begun = self._now
        if begun >= self.job.ends:
            self._end()
            return
        times, phase = self._draw(begun)
        end = begun + times.step_seconds
        broken = first_in(self._breaks, begun, min(end, self.job.ends))
        self._add_step(
            begun, times, phase, until=max(begun, broken.at) if broken else min(end, self.job.ends)
        )
        if broken is not None:
            self._break_off(max(begun, broken.at), broken)
        elif end > self.job.ends:
            self._now = self.job.ends
        else:
            self._complete(times, end)

    def _draw(self, begun: float) -> tuple[StepTimes, float]:
        """Return the times of the step that begins at ``begun``, and the seconds of the rollout before it."""
        start = self._hardware.at(begun)
        trained = begun + (self.job.rollout_seconds if self.job.rollout_dp else 0.0)
        slowdown = self._hardware.slowdown(trained, self.job.step_seconds)
        # Gradients are sent near the end of a step: the condition of the links is that of then.
        transfer = self._hardware.at(begun + 0.9 * self.job.step_seconds)
        work = self._source.draw(self._step, begun, start=start, transfer=transfer, slowdown=slowdown)
        if self._warm is not None:
            work.compute[...] *= self._source.warm_up(self._warm)
        if not self.job.rollout_dp:
            return run_step(work), 0.0
        for part in (work.compute, work.comm, work.stall):
            part[..., : self.job.rollout_dp, :] = 0.0
        rollout = self._hardware.slowdown(begun, self.job.rollout_seconds)
        generation = self._source.generation(rollout)
        return after_rollout(run_step(work), generation), float(generation.max())

    def _add_step(self, begun: float, times: StepTimes, phase: float, *, until: float) -> None:
        shape = (len(self.nodes), self._spec.gpus)
        generating = np.zeros(times.compute.shape, np.bool_)
        generating[:, : self.job.rollout_dp] = True
        generating = generating.reshape(shape)
        compute = times.compute.reshape(shape)
        if phase:
            # Generation is partly bound by memory; the trainers sleep and do not spin.
            self._timeline.add(Segment(min(begun + phase, until), np.where(generating, 0.9, 0.0), 0.0))
        active = times.step_seconds - times.pause - phase
        # Ranks that wait for others spin in a collective, and count as waiting while they transfer.
        waiting = ((times.wait + times.comm).reshape(shape) - phase) / active
        sent = (
            self.job.gradient_bytes * self._spec.gpus / self._spec.nics / active
            if len(self.nodes) > 1
            else 0.0
        )
        self._timeline.add(
            Segment(
                min(begun + phase + active, until),
                np.where(generating, 0.0, compute / active),
                np.where(generating, 0.0, np.maximum(waiting, 0.0)),
                sent=sent,
            )
        )
        if times.pause:
            # Ranks that have written their part spin in a barrier until the others have.
            self._timeline.add(Segment(min(begun + times.step_seconds, until), 0.0, 1.0))

    def _complete(self, times: StepTimes, end: float) -> None:
        loss = self._losses.at(self._step, end)
        self._ended = self._rows.of(self._step, times, end, attempt=self.attempt, loss=loss)
        if times.pause:
            self._announce(end - times.pause, "job.checkpoint", f"step {self._step}")
        gap = self._source.gap(self._step)
        if gap:
            # Forward passes only, and no gradients on the network.
            self._announce(end, "job.eval", f"step {self._step}")
            self._timeline.add(Segment(end + gap, EVALUATION_SHARE, 1.0 - EVALUATION_SHARE))
        self._now = end + gap
        self._step += 1
        # Recorded jobs are slow for their first 10 to 20 steps.
        self._warm = None if self._warm is None or self._warm >= 20 else self._warm + 1

    def _break_off(self, at: float, broken: Break) -> None:
        back = repaired(self._breaks, broken)
        alive = ~broken.exited
        spin = np.where(broken.still, 0.0, 1.0)
        busy = np.where(broken.still, 0.0, 0.9)
        gives_up = min(back, at + self.job.timeout_seconds) if broken.noticed else back
        ends = min(back + self.job.restart_seconds, self.job.ends)
        self._timeline.add(Segment(min(at + VICTIMS_FOLLOW_SECONDS, back), busy, 0.0, alive))
        self._timeline.add(Segment(min(gives_up, ends), 0.0, spin, alive))
        self._timeline.add(Segment(ends, 0.0, 0.0, np.zeros_like(alive)))
        self._now = ends
        self.attempt += 1
        self._warm = 0
        # Steps since the last checkpoint are lost and repeated.
        kept = self.job.workload.checkpoint_every
        self._step -= self._step % kept if kept else 0
        self._announce(ends, "job.start", f"attempt {self.attempt} from step {self._step}")

    def _end(self) -> None:
        self._announce(self.job.ends, "job.end", f"after step {self._step - 1}")
        self._timeline.add(Segment(math.inf, 0.0, 0.0, running=False))
        self._now = math.inf

    def _announce_change(self, change: Planned) -> None:
        self._announce(change.onset, "job.schedule", f"compute goes to {change.factor:g} times")

    def _announce(self, t: float, code: str, message: str) -> None:
        if self.job.workload.announced and math.isfinite(t):
            job = self.job.job_id
            event = job_event(self._spec, self.nodes.start, t, code=code, job_id=job, message=message)
            self._events.append((t, event))
