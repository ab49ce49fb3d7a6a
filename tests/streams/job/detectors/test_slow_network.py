"""A slow network, from steps made by hand."""

import numpy as np
import pytest

from detectors.job.waits.slow_network import SlowNetwork
from detectors.straggler.core import StepResult
from detectors.straggler.step_detector import StragglerDetector
from slowrank.telemetry import Subject
from streams.job.config import JobStageConfig
from streams.job.detectors.slow_network import NETWORK, SlowNetworkDetector
from streams.job.rows.step_aligner import Step
from streams.job.rows.step_rows import Identity
from streams.job.suspicions import about_job
from streams.job.view import JobView
from streams.open_suspicions import OpenSuspicions
from tests.streams.job.job_tables import two_ranks

KEY = (NETWORK, -1)


@pytest.mark.parametrize(
    ("at", "recovered", "seen"), [(10.0, False, [0.0]), (40.0, False, [40.0]), (40.0, True, [])]
)
def test_a_network_that_stays_slow_is_seen_until_it_recovers(at, recovered, seen):
    """Found at 0 s and reported every 30 s from then on."""
    view = two_ranks(StepResult(network_recovered=recovered))
    slow = about_job(
        view,
        0.0,
        catalogue_id="congestion",
        subject=Subject(type="job", cluster="c", job_id="job"),
        hypotheses={},
        slowdown=1.2,
        since=(0.0, 0.0),
        ratio=2.5,
        evidence=(),
        note="",
    )
    view.open.put(KEY, slow)
    step = Step(7, frozenset({0, 1}), np.arange(2), np.full(2, at), np.full((10, 2), np.nan))
    standing = SlowNetworkDetector(JobStageConfig()).step(view, step)
    assert [s.ts for s in standing.values()] == seen


@pytest.mark.parametrize("reported", [True, False])
@pytest.mark.parametrize(
    ("members", "subject"),
    [(range(16, 32), {"pp": 1}), (range(3, 64, 8), {"tp": 3}), (range(19, 32, 8), None)],
    ids=["a stage", "a port of each machine", "one group, found by votes"],
)
def test_slow_rings_are_told_with_what_their_ranks_share(members, subject, reported):
    """Four stages of two replicas of eight: rings of one tensor position in one stage have peers there."""
    ranks = range(64)
    coords = {r: (("dp", r // 8 % 2), ("pp", r // 16), ("tp", r % 8)) for r in ranks}
    found = SlowNetwork(2.0, 1.2, 90.0, 92.0, 0.6, np.array(members), reported=reported)
    view = JobView(
        cluster="c",
        job_id="job",
        attempt=0,
        roster=tuple(ranks),
        identities={rank: Identity(f"n{rank // 8}", None, None, coords[rank], "") for rank in ranks},
        core=StragglerDetector(len(ranks), None),
        open=OpenSuspicions(30.0),
        result=StepResult(rings=found),
    )
    step = Step(7, frozenset(ranks), np.arange(64), np.full(64, 100.0), np.full((10, 64), np.nan))
    told = list(SlowNetworkDetector(JobStageConfig()).step(view, step).values())
    assert [s.subject.coords for s in told] == ([] if subject is None else [subject])
    assert {s.catalogue_id for s in told} <= {"congestion"}
    metric = "comm_seconds" if reported else "step_seconds.rest"
    assert {e.metric for s in told for e in s.evidence} <= {metric}
    causes = {"group"} if reported else {"unmeasured.part", "group"}
    assert all(set(s.hypotheses) == causes for s in told)
    assert [len(s.suspects) for s in told] == ([] if subject is None else [8])
