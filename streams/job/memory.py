"""The memory that jobs take: how much one needs, and the finding about its shortage."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from detectors.peers.ratios import window_bytes
from detectors.straggler.config import StragglerConfig
from slowrank.telemetry import Evidence, Subject, Suspicion
from streams.open_suspicions import OpenSuspicions

KIND = "self.job_memory"

# What a job takes by itself, for each step of its window, for each rank beside that window, and for each row
# that waits for the others of its step; measured with ``tracemalloc`` (tests/streams/job/test_memory.py holds
# them to it).
JOB_BYTES = 130_000
STEP_BYTES = 450
RANK_BYTES = 3_100
ROW_BYTES = 250

# Shares of the limit at which the finding begins and ends. Chosen: a tenth apart, so that one job more or
# less does not end it and begin it again; and a fifth before the limit, so that there is time to act.
NEAR, WELL = 0.8, 0.7

# Chosen: memory changes with jobs, which come and go by the minute.
UPDATE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class JobMemory:
    """Bytes ``held``, and ``reserved`` for when all windows are full, out of ``limit``; how many ``jobs`` are
    held and how many ``refused``.
    """

    held: int = 0
    reserved: int = 0
    limit: int = 0
    jobs: int = 0
    refused: int = 0

    def __add__(self, other: "JobMemory") -> "JobMemory":
        return JobMemory(
            self.held + other.held,
            self.reserved + other.reserved,
            self.limit + other.limit,
            self.jobs + other.jobs,
            self.refused + other.refused,
        )


def bytes_needed(ranks: int, config: StragglerConfig) -> int:
    """Return the bytes of a job whose window of steps is full."""
    return JOB_BYTES + STEP_BYTES * config.history + ranks * (RANK_BYTES + window_bytes(config))


class Shortage:
    """Raises, for each cluster of one stage (``name``), that the memory of jobs nears its limit."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._open: OpenSuspicions[str] = OpenSuspicions(UPDATE_SECONDS)

    def look(
        self, now: float, memory: JobMemory, refused_of: Callable[[], Mapping[str, int]]
    ) -> list[Suspicion]:
        """Return what is raised, updated or cleared at event time ``now``.

        ``refused_of`` counts the refused jobs of each cluster that has jobs here, held or refused.
        """
        short = bool(memory.refused) or memory.reserved >= (WELL if self._open else NEAR) * memory.limit
        if not short and not self._open:
            return []
        found = refused_of() if short else {}
        held = {cluster: self._suspicion(now, cluster, n, memory) for cluster, n in sorted(found.items())}
        out = [s for cluster, suspicion in held.items() for s in self._open.put(cluster, suspicion)]
        return out + [s for c in self._open if c not in found for s in self._open.clear(c, now)]

    def _suspicion(self, now: float, cluster: str, refused: int, memory: JobMemory) -> Suspicion:
        evidence = (
            Evidence(
                metric="slowrank.job_memory_bytes",
                unit="B",
                detector="job_memory",
                value=float(memory.reserved),
                note=f"needed once the windows of {memory.jobs} jobs are full, of {memory.limit} allowed",
            ),
            Evidence(
                metric="slowrank.jobs_refused",
                unit="1",
                detector="job_memory",
                value=float(refused),
                note="jobs of this cluster that send steps and are not analysed",
            ),
        )
        return Suspicion(
            cluster=cluster,
            detector="job_memory",
            family="telemetry",
            kind=KIND,
            state="raise",
            subject=Subject(type="telemetry", cluster=cluster, node=self._name),
            ts=now,
            onset=now,
            onset_lo=now,
            onset_hi=now,
            score=round(memory.reserved / max(memory.limit, 1), 4),
            log_likelihood_ratio=4.0,
            overwhelming=True,
            evidence=evidence,
            note=f"{refused} jobs are not analysed" if refused else "jobs that come now may not be analysed",
        )
