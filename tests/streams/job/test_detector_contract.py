"""Contract of all job detectors, and a new one added by one line and driven end to end."""

from collections.abc import Mapping

import msgspec
import numpy as np
import pytest

from alerts.finding import Finding
from benchmarks.detection.step_jobs import records, synchronous
from slowrank.telemetry import Suspicion
from streams.config.detector_catalogue import NAMES
from streams.job.aspect import Aspect, Key
from streams.job.catalogue import JOB_DETECTORS
from streams.job.config import JobStageConfig
from streams.job.suspicions import WEIGHT_SLOW, about_job
from streams.pipeline import local_pipeline
from tests.streams.job.job_tables import SuspectingStage, healthy, layout

ASPECT = Aspect("toy")


class SlowSteps:
    """A detector of steps twice as long as the first one."""

    aspects = (ASPECT,)

    def __init__(self, config):
        self._first = None

    def restart(self, *, new_run):
        self._first = None

    def step(self, view, step):
        seconds = float(np.median(step.values[0]))
        self._first = self._first or seconds
        if seconds < 2 * self._first:
            return {}
        return {
            (ASPECT, -1): about_job(
                view,
                step.closed_at,
                catalogue_id="workload",
                subject=view.job(),
                hypotheses={"unmeasured": WEIGHT_SLOW},
                slowdown=seconds / self._first,
                since=(step.closed_at, step.closed_at),
                ratio=seconds / self._first,
                evidence=(),
                note="toy",
            )
        }


DETECTORS = [*JOB_DETECTORS, SlowSteps]


def job(*, slow_from=60, steps=120):
    """A job of two stages whose ranks all become three times as slow, and a rank that does so earlier."""
    work = healthy(steps, seed=2)
    work[slow_from:80] *= 3.0
    work[40:, 5] *= 1.3
    return synchronous(work, overhead=0.1, coords=layout(16, 2))


def spied(make, seen):
    """Return a detector whose steps are noted: the view's open suspicions, and what it returns."""

    class Spy:
        def __init__(self, config):
            self._inner = make(config)
            self.aspects = self._inner.aspects

        def restart(self, *, new_run):
            self._inner.restart(new_run=new_run)

        def step(self, view, step):
            before = view.standing(*self.aspects)
            standing = self._inner.step(view, step)
            assert view.standing(*self.aspects) == before, "a detector only reads what is open"
            seen.append((step.closed_at, standing))
            return standing

    return Spy


@pytest.mark.parametrize("make", DETECTORS, ids=lambda make: make.__name__)
def test_detector_returns_suspicions_of_its_own_aspects(make):
    """Keys are of the detector's aspects, suspicions of the job's cluster and time; it reads the open."""
    seen: list[tuple[float, Mapping[Key, Suspicion]]] = []
    stage = SuspectingStage(detectors=[*(d for d in JOB_DETECTORS if d is not make), spied(make, seen)])
    for record in records(job()):
        stage.process(record)
    assert len(seen) >= 100
    aspects = set(make(JobStageConfig()).aspects)
    for at, standing in seen:
        assert {aspect for aspect, _ in standing} <= aspects
        assert all(s.subject.job_id == "job" for s in standing.values())
        assert all(s.onset_lo <= s.onset and s.ts <= at for s in standing.values())
        assert {s.catalogue_id for s in standing.values()} <= NAMES


@pytest.mark.parametrize("make", DETECTORS, ids=lambda make: make.__name__)
def test_each_suspicion_has_one_beginning_and_one_end(make):
    """Alone in its stage, a detector's suspicions are raised, then updated, then cleared, with one onset."""
    stage = SuspectingStage(detectors=[make])
    last: dict[object, Suspicion] = {}
    for record in records(job()):
        for s in stage.process(record):
            key = (s.detector, s.kind, msgspec.json.encode(s.subject))
            before = last.get(key)
            assert (s.state == "raise") == (before is None or before.state == "clear")
            assert before is None or before.state == "clear" or s.onset == before.onset
            last[key] = s


@pytest.mark.parametrize("make", DETECTORS, ids=lambda make: make.__name__)
def test_detector_goes_on_after_a_restart(make):
    """A new attempt of the job is seen by the same detector, and nothing is raised on."""
    stage, table = SuspectingStage(detectors=[make]), job()
    for attempt in range(2):
        for record in records(table):
            stage.process(msgspec.structs.replace(record, attempt=attempt, ts=record.ts + 1000.0 * attempt))


def test_topics_belong_to_one_detector():
    """No two detectors raise and clear the same keys."""
    aspects = [aspect for make in DETECTORS for aspect in make(JobStageConfig()).aspects]
    assert len(aspects) == len(set(aspects)) == len({aspect.name for aspect in aspects})


@pytest.fixture
def one_more_line():
    JOB_DETECTORS.append(SlowSteps)
    yield
    JOB_DETECTORS.remove(SlowSteps)


@pytest.mark.usefixtures("one_more_line")
def test_a_detector_added_to_the_list_reaches_a_finding():
    """One class and one line of the list: step rows go in, and a finding comes out."""
    pipeline = local_pipeline()
    found: dict[str, Finding] = {}
    for record in records(job(slow_from=60)):
        found |= {f.id: f for f in pipeline.process(record)}
    found |= {f.id: f for f in pipeline.finish()}
    toys = [f for f in found.values() if f.cause is not None and f.cause.hypothesis == "unmeasured"]
    assert [(f.kind, f.subject.job_id) for f in toys] == [("straggler.job_wide", "job")]
