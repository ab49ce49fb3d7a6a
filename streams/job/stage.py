"""JobStage: step rows of jobs in, suspicions out (key = job).

Works as if row by row in the order of the log; how rows were batched into records changes nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from slowrank.telemetry import JobEnded, JobSteps, Suspicion
from streams.job.catalogue import JOB_DETECTORS
from streams.job.config import JobStageConfig
from streams.job.detector import JobDetector
from streams.job.job import Job, OfJob, OpenOfJob, Out
from streams.job.memory import JobMemory, Shortage, bytes_needed
from streams.job.rows.step_aligner import Step
from streams.job.rows.step_rows import Rows, rows_of
from streams.job.table import JobKey, JobTable
from streams.stage import Input

# Some 2,600 jobs of 64 ranks on one partition: 170,000 GPUs (docs/operations.md).
DEFAULT_MEMORY_BYTES = 4 << 30

# Jobs let go of which something is open still. Chosen: at a few kB each tens of MB; what is open about the
# oldest then expires by itself.
MAX_LEFT_OPEN = 10_000


class JobStage:
    """Straggler, imbalance and progress detection over every job of a partition.

    ``name`` is what findings about the stage itself call it; ``memory_bytes`` bounds what its jobs need;
    ``detectors`` see the steps of every job.
    """

    def __init__(
        self,
        config: JobStageConfig | None = None,
        *,
        name: str = "job-steps",
        memory_bytes: int = DEFAULT_MEMORY_BYTES,
        detectors: Sequence[Callable[[JobStageConfig], JobDetector]] = JOB_DETECTORS,
    ) -> None:
        self.config = config or JobStageConfig()
        self._detectors = detectors
        self._jobs: JobTable[Job] = JobTable(memory_bytes)
        self._left_open: dict[JobKey, OpenOfJob] = {}
        self._shortage = Shortage(name)

    def process(self, record: Input) -> Sequence[OfJob]:
        """Take one record of step rows, or the end of a job; anything else is not for this stage."""
        if isinstance(record, JobEnded):
            return self._end((record.cluster, record.job_id), record.ts)
        if not isinstance(record, JobSteps):
            return ()
        key = (record.cluster, record.job_id)
        out: Out = []
        sent, taken, known = rows_of(record), 0, self._jobs.get(key)
        ahead = 0.0 if known is None or known.clocks is None else known.clocks.ahead(record.node)
        rows = sent.earlier(ahead) if ahead else sent
        while taken < len(sent):
            job = self._job(key, record, rows, taken, out)
            if job is None:
                break
            # These rows may be the ones that show a clock to be off: then they are read again, from what was
            # sent, so that no correction is added to another.
            if (off := job.clock_ahead(record.node, sent, taken)) != ahead:
                rows, ahead = sent.earlier(off), off
            stop = taken + job.aligner.together(rows, taken)
            part, taken = rows.part(taken, stop), stop
            job.advance(part, out, sent=record.ts - ahead)
            for step in job.aligner.add(part):
                self._fit_roster(key, job, step, out)
                job.step(step, out)
            job.check_numbers()
        job = self._jobs.get(key) if record.open else None
        if job is not None and record.attempt == job.attempt:
            job.note_open(record.open, record.ts - ahead)
        return out

    def tick(self, event_time: float) -> Sequence[Suspicion]:
        """Let time pass: only jobs that stopped reporting can notice."""
        out: list[Suspicion] = []
        for key, job, ended in self._jobs.let_go(event_time):
            self._leave(key, job, ended=ended)
        for _, job in self._jobs.live():
            job.tick(event_time, out)
        return out + self._shortage.look(event_time, self._reserved, self._jobs.refused_of)

    def resume(self, event_time: float) -> None:
        """Count stops of jobs from ``event_time`` on."""
        for _, job in self._jobs.live():
            job.resume(event_time)

    @property
    def late_rows(self) -> int:
        """Rows that came after their step was judged, over all jobs held."""
        return sum(job.aligner.late_rows for _, job in self._jobs.items())

    @property
    def memory(self) -> JobMemory:
        """The memory of the jobs held, counted anew."""
        return replace(self._reserved, held=sum(job.bytes_held for _, job in self._jobs.items()))

    @property
    def _reserved(self) -> JobMemory:
        jobs = self._jobs
        return JobMemory(reserved=jobs.reserved, limit=jobs.limit, jobs=len(jobs), refused=len(jobs.refused))

    def _job(self, key: JobKey, record: JobSteps, rows: Rows, k: int, out: Out) -> Job | None:
        """Return the job as row ``k`` finds it, or None where the record is of an attempt that has ended."""
        job = self._jobs.get(key) or self._admit(key, record, rows, k)
        if job is None or record.attempt < job.attempt:
            return None
        # The world size may come late; 0 is not known yet, and no resize.
        job.aligner.world_size = job.aligner.world_size or record.world_size
        if self._jobs.touch(key, rows.ts[k]):
            job.go_on(rows.ts[k])
        resized = record.world_size not in (0, job.aligner.world_size)
        if record.attempt > job.attempt or resized or job.aligner.rolled_back(rows, k):
            # What a stall had reached by then, whether or not a tick came in between.
            job.tick(rows.ts[k], out)
            job.restart(record)
            if resized:
                job.open.costs.resized()
        return job

    def _admit(self, key: JobKey, record: JobSteps, rows: Rows, k: int) -> Job | None:
        """Begin a job, where there is room for it; suspicions from before it was let go are still open."""
        seen = len(set(rows.ranks))
        need = bytes_needed(max(record.world_size, seen), self.config.straggler)
        for other, gone in self._jobs.room_for(need):
            self._leave(other, gone, ended=False)
        job = Job(key[0], record, self.config, self._detectors, self._left_open.get(key))
        if not self._jobs.admit(key, job, ts=rows.ts[k], need=need):
            return None
        # The ranks that it claims must fit as it begins, but only those that sent rows keep others out: a
        # claim may be wrong. Its first step shows how many there are.
        self._jobs.reserve(key, bytes_needed(seen, self.config.straggler))
        self._left_open.pop(key, None)
        return job

    def _leave(self, key: JobKey, job: Job, *, ended: bool) -> None:
        """Forget a job; of one that may come back, keep what it takes to end its open suspicions."""
        if not ended and len(job.open.suspicions):
            job.open.costs.let_go()
            self._left_open[key] = job.open
            # A dict keeps its order: the first is the one that left first.
            if len(self._left_open) > MAX_LEFT_OPEN:
                del self._left_open[next(iter(self._left_open))]

    def _end(self, key: JobKey, ts: float) -> list[Suspicion]:
        job = self._jobs.get(key)
        return [] if job is None or not self._jobs.end(key, ts) else job.end(ts)

    def _fit_roster(self, key: JobKey, job: Job, step: Step, out: Out) -> None:
        """Fit a job to the ranks of a step: what it needs, where it works; end the jobs that it has taken the
        last GPU of."""
        if job.fit_roster(step, out):
            self._jobs.reserve(key, bytes_needed(len(job.roster), self.config.straggler))
            since = float(step.ts.min())
            for other in self._jobs.work_at(key, job.places, since):
                out += self._end(other, since)
