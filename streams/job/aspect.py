"""Aspects of a job: what its suspicions are about."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Aspect:
    """An aspect of a job that suspicions are about, such as hangs or slow ranks, by ``name``.

    ``ends_with`` is what ends them besides their detector: the ``rank`` leaves the job, the set of ranks
    (``roster``) changes, or the ``job`` ends. The end of the job ends all but those that ``outlast_job``: no
    recovery of the machine has been seen then.
    ``cost`` is what slow steps are charged by: the excess of one ``rank``, the job's ``past``, or ``even``
    work; ``between``: the time between them, by the job's past; ``steps``: what single steps took longer;
    None: they cost nothing by themselves, or stop the job.
    """

    name: str
    ends_with: Literal["rank", "roster", "job"] = "job"
    outlast_job: bool = False
    cost: Literal["rank", "past", "even", "between", "steps"] | None = None


Key = tuple[Aspect, int]
"""The aspect that a suspicion of a job is about, and the rank or group concerned (-1 = the job)."""
