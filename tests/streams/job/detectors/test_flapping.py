"""Long transfers of a job, from what its core finds."""

import numpy as np
import pytest

from detectors.job.waits.flapping import Flapping
from detectors.straggler.core import StepResult
from streams.job.config import JobStageConfig
from streams.job.detectors.flapping import FlappingDetector
from streams.job.rows.step_aligner import Step
from tests.streams.job.job_tables import two_ranks


def standing(idling, *, world_size=2):
    """Return what stands about a job of which two ranks log."""
    found = Flapping(
        idling=idling,
        count=7,
        steps=120,
        ratio=4.0,
        seconds=0.8,
        lost=4.2,
        job_slowdown=1.1,
        onset_lo=90.0,
        onset=92.0,
    )
    view = two_ranks(StepResult(flapping=found), world_size=world_size)
    step = Step(7, frozenset({0, 1}), np.arange(2), np.full(2, 100.0), np.full((10, 2), np.nan))
    return list(FlappingDetector(JobStageConfig()).step(view, step).values())


@pytest.mark.parametrize(
    ("idling", "likeliest", "ratio", "metric"),
    [
        ("transfers", "congestion", 4.0, "comm_seconds"),
        ("waits", "congestion", 4.0, "comm_seconds"),
        ("rest", "unmeasured", 1.1, "step_seconds.rest"),
    ],
)
def test_long_transfers_are_told_with_how_often_and_how_long(idling, likeliest, ratio, metric):
    """Where no row has transfers, it is only known that no rank computes meanwhile."""
    [told] = standing(idling)
    assert (told.kind, told.subject.type) == ("straggler.job_wide", "job")
    assert max(told.hypotheses, key=lambda name: told.hypotheses[name]) == likeliest
    assert (told.slowdown_ratio, told.job_slowdown_ratio, told.onset) == (ratio, 1.1, 92.0)
    assert "again and again, 7 times in the last 120 steps" in told.note
    assert [(e.metric, e.value) for e in told.evidence] == [(metric, 0.8), (f"{metric}.long_steps", 7.0)]


@pytest.mark.parametrize(("idling", "many"), [("transfers", 1), ("waits", 0), ("rest", 0)])
def test_all_may_wait_for_a_rank_that_does_not_log(idling, many):
    """Only transfers without waits are known to be long themselves."""
    assert len(standing(idling, world_size=8)) == many
