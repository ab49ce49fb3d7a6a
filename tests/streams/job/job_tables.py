"""Step tables of whole jobs for the tests of JobStage, and how to read its suspicions."""

import numpy as np

from benchmarks.detection.step_jobs import records
from detectors.straggler.step_detector import StragglerDetector
from slowrank.telemetry import Suspicion
from streams.job.rows.step_rows import Identity
from streams.job.stage import JobStage
from streams.job.view import JobView
from streams.open_suspicions import OpenSuspicions
from streams.stage import Input


class SuspectingStage(JobStage):
    """A job stage without the paces of ranks."""

    def process(self, record: Input) -> list[Suspicion]:
        return [s for s in super().process(record) if isinstance(s, Suspicion)]


def healthy(steps=200, ranks=16, *, noise=0.005, seconds=1.0, seed=0):
    """Work of a tuned job: shared slow drift, small lasting differences, per-step noise."""
    rng = np.random.default_rng(seed)
    drift = np.zeros(steps)
    for s in range(1, steps):
        drift[s] = 0.8 * drift[s - 1] + rng.normal(0, 0.006)
    lasting = rng.normal(0, 0.002, ranks)
    return seconds * np.exp(drift[:, None] + lasting + rng.normal(0, noise, (steps, ranks)))


def packed(steps=200, ranks=16, *, seed=0):
    return np.exp(np.random.default_rng(seed).normal(0, 0.10, (steps, ranks)))


def layout(ranks, stages):
    per = ranks // stages
    return {"pp": [r // per for r in range(ranks)], "dp": [r % per for r in range(ranks)]}


def run(table, *, only=None):
    stage = SuspectingStage()
    return [s for record in records(table, only=only) for s in stage.process(record)]


def believed(suspicions):
    """Rank -> first suspicion that needs no second kind of evidence."""
    found: dict[int, Suspicion] = {}
    for s in suspicions:
        if s.overwhelming and s.subject.rank is not None and s.state != "clear":
            found.setdefault(s.subject.rank, s)
    return found


def job_level(suspicions):
    return [s for s in suspicions if s.subject.type == "job" and s.state == "raise" and s.kind != "hang.job"]


def steps_between(table, first, last):
    return int(np.searchsorted(table.ts, last - 1e-6) - np.searchsorted(table.ts, first - 1e-6))


def two_ranks(result, *, world_size=0):
    """The view of a job of two ranks after a step with this ``result``."""
    return JobView(
        cluster="c",
        job_id="job",
        attempt=0,
        roster=(0, 1),
        identities={rank: Identity("n", None, None, (), "") for rank in (0, 1)},
        core=StragglerDetector(2, None),
        open=OpenSuspicions(30.0),
        result=result,
        world_size=world_size,
    )
