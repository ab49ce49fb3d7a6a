"""The seam of job detection: what a job detector is."""

from collections.abc import Mapping
from typing import Protocol

from slowrank.telemetry import Suspicion
from streams.job.aspect import Aspect, Key
from streams.job.config import JobStageConfig
from streams.job.rows.step_aligner import Step
from streams.job.view import JobView


class JobDetector(Protocol):
    """One detector of one job. While the job runs, it alone raises and clears what its ``aspects`` are about.

    Pure: it never blocks, never raises on a whole step, and reads no clock.
    """

    @property
    def aspects(self) -> tuple[Aspect, ...]:
        """What its suspicions are about."""
        ...

    def step(self, view: JobView, step: Step) -> Mapping[Key, Suspicion]:
        """Take the next whole step; return all suspicions that stand now, in the order of their emission.

        The job holds them against the open ones (``view.standing``): a new key is raised, another suspicion
        under an open key is an update, emitted when due, the same object leaves it as it is, and an open key
        that is missing is cleared.
        """
        ...

    def restart(self, *, new_run: bool) -> None:
        """Expect steps that are numbered anew: those of a ``new_run`` (attempt, resize or roll-back), or
        stretches of time instead of steps."""
        ...


class OfCore:
    """What detectors share that report what the decision core finds: the state is the core's."""

    def __init__(self, config: JobStageConfig) -> None:
        pass

    def restart(self, *, new_run: bool) -> None:
        """Leave open what is open: the core finds when it ends."""
