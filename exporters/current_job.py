"""The job that works on a node, by the steps that its ranks report."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from exporters.collector import StepRows
from slowrank.telemetry.columns import Value

# Seconds after its last step for which a job counts as running. Chosen: longer than most checkpoints; a job
# that has ended is attributed at most so many seconds of samples.
JOB_SECONDS = 60.0


@dataclass(slots=True)
class _Reports:
    first: float
    last: float
    places: set[Value] = field(default_factory=set)


class CurrentJob:
    """Follows which jobs report steps; times are seconds of one clock that never goes back."""

    def __init__(self) -> None:
        self._jobs: dict[str, _Reports] = {}

    def update(self, steps: Iterable[StepRows], seconds: float) -> None:
        """Record the rows of one tick."""
        for rows in steps:
            job = self._jobs.setdefault(rows.job_id, _Reports(seconds, seconds))
            job.last = seconds
            job.places.update(_place(row) for row in rows.rows)
        self._jobs = {name: job for name, job in self._jobs.items() if seconds - job.last < JOB_SECONDS}

    def job_id(self) -> str | None:
        """Return the only job of the node; none where several share it, or where no job runs."""
        running = [name for name, job in self._jobs.items() if not self._replaced(job)]
        return running[0] if len(running) == 1 else None

    def _replaced(self, job: _Reports) -> bool:
        """A GPU works for one job at a time: a job is over once a later one reports from the same place."""
        return any(other.first > job.last and other.places & job.places for other in self._jobs.values())


def _place(row: Mapping[str, Value]) -> Value:
    """Return the GPU of a row; on a host without GPUs its rank within the node."""
    return next((row[name] for name in ("gpu_index", "local_rank") if row.get(name) is not None), row["rank"])
