"""Who comes and goes: jobs one after the other on pairs of nodes, which leave in between and return."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import merge

import msgspec

from simulator import Cluster, ClusterSpec, Fault, JobSpec
from simulator.cluster.layout import Workload
from slowrank.telemetry import NodeEvent, Record
from streams.runtime.partitions.clock_offsets import shifted

# Of the exporters. Chosen: a fifth of the records for as many jobs, findings and seconds of event time.
SECONDS_A_SAMPLE = 5.0

STEP_SECONDS = 10.0
# A job makes steps from 20 s after the first sample of its nodes to 20 s before the last.
MARGIN_SECONDS = 20.0
AWAY, LONG_AWAY = 60.0, 900.0
# Every so many jobs have a hot GPU, and break off without a word.
FAULTY, BROKEN = 5, 7
HOT_NODE, HOT_GPU = 1, 3
# What a job needs for a hot GPU to be found: the detectors learn, then it heats up.
SHORTEST_SECONDS = 150.0

# The oldest record may be a day old when it is read; a younger one than this counts as live.
OLDEST_SECONDS, NEWEST_SECONDS = 86_000.0, 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """``jobs`` on ``pairs`` pairs of nodes within ``seconds`` of event time from Unix time ``start`` on.

    Raises ``ValueError`` where the jobs would be too short.
    """

    jobs: int
    pairs: int
    seconds: float
    start: float

    def __post_init__(self) -> None:
        if self.runs < SHORTEST_SECONDS:
            raise ValueError(
                f"{self.jobs} jobs on {self.pairs} pairs of nodes in {self.seconds / 3600:g} h would "
                f"run for {self.runs:.0f} s each, at least {SHORTEST_SECONDS:.0f} s: more pairs or fewer jobs"
            )

    @property
    def each(self) -> float:
        """Seconds from the beginning of a job to that of the next of its pair, but for long absences."""
        return self.seconds * self.pairs / self.jobs - LONG_AWAY / BROKEN

    @property
    def runs(self) -> float:
        """Seconds for which the nodes of a job send."""
        return self.each - AWAY

    @property
    def hot_after(self) -> float:
        """Seconds from the beginning of a job to its fault."""
        return self.each / 2

    def records(self) -> Iterator[Record]:
        """Yield the records of all pairs in order of event time."""
        recorded = {
            (faulty, broken): self._recorded(faulty=faulty, broken=broken)
            for faulty in (False, True)
            for broken in (False, True)
        }
        per_pair = [self._of_pair(recorded, pair) for pair in range(self.pairs)]
        return merge(*per_pair, key=lambda record: record.ts)

    def begun(self, pair: int) -> Iterator[tuple[int, float]]:
        """Yield the numbers of a pair's jobs, and after how many seconds each begins."""
        begins, number = pair * self.each / self.pairs, pair
        while begins < self.seconds:
            yield number, begins
            begins += self.each + (LONG_AWAY if number % BROKEN == 0 else 0.0)
            number += self.pairs

    def hot(self, *, whole: bool = True) -> dict[tuple[str, float], int]:
        """Return (node, Unix time) of each fault, and the GPU that is hot until its job ends.

        ``whole``: only faults of jobs that end within the run.
        """
        return {
            (_node(f"sim-{HOT_NODE:04}", pair), self.start + begins + self.hot_after): HOT_GPU
            for pair in range(self.pairs)
            for number, begins in self.begun(pair)
            if number % FAULTY == 0 and (begins + self.runs <= self.seconds or not whole)
        }

    def left(self) -> Iterator[tuple[str, float]]:
        """Yield each node that leaves, and the Unix time after which it sends no record."""
        for pair in range(self.pairs):
            for _, begins in self.begun(pair):
                for node in range(2):
                    yield _node(f"sim-{node:04}", pair), self.start + begins + self.runs

    def _recorded(self, *, faulty: bool, broken: bool) -> list[Record]:
        job = JobSpec(
            dp=2,
            tp=8,
            step_seconds=STEP_SECONDS,
            begins=MARGIN_SECONDS,
            ends=float("inf") if broken else self.runs - MARGIN_SECONDS,
            workload=Workload(announced=True),
        )
        spec = ClusterSpec(nodes=2, jobs=(job,), send_seconds=SECONDS_A_SAMPLE, name="soak", start=self.start)
        hot = Fault(kind="thermal_throttle", node=HOT_NODE, gpu=HOT_GPU, onset=self.hot_after, magnitude=1.4)
        return list(Cluster(spec, seed=3, faults=(hot,) if faulty else ()).run(self.runs))

    def _of_pair(self, recorded: Mapping[tuple[bool, bool], Sequence[Record]], pair: int) -> Iterator[Record]:
        for number, begins in self.begun(pair):
            for record in recorded[number % FAULTY == 0, number % BROKEN == 0]:
                if record.ts + begins >= self.start + self.seconds:
                    break
                yield _moved(record, begins, pair, f"job-{pair}-{number}")


def placed(plan: Plan, speed: float, now: float) -> Plan:
    """Return the plan at event times at which its records are neither refused nor taken for live ones.

    Raises ``ValueError`` where it lasts too long for that.
    """
    ahead = plan.seconds - plan.seconds / speed
    if ahead + NEWEST_SECONDS > OLDEST_SECONDS:
        raise ValueError(
            f"{plan.seconds / 3600:g} h at {speed:g} times the clock: the first records would be older than "
            "a day and are refused; take fewer --hours or less --speed"
        )
    return Plan(jobs=plan.jobs, pairs=plan.pairs, seconds=plan.seconds, start=now - ahead - NEWEST_SECONDS)


def _node(name: str, pair: int) -> str:
    return f"{name}-{pair}"


def _moved(record: Record, begins: float, pair: int, job: str) -> Record:
    names: dict[str, object] = {"node": _node(record.node, pair), "boot_id": f"boot-{job}"}
    if isinstance(record, NodeEvent):
        if "job_id" in record.subject:
            names["subject"] = record.subject | {"job_id": job}
    elif record.job_id is not None:
        names["job_id"] = job
    return msgspec.structs.replace(shifted(record, begins), **names)
