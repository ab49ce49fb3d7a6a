"""Offline segmentation as evidence in the suspicion of a slow rank."""

import numpy as np
import pytest

from benchmarks.detection.step_jobs import records, synchronous
from detectors.changepoint import offline_segmentation
from streams.job.detectors.slow_ranks import OFFLINE
from tests.streams.job.job_tables import SuspectingStage


def judged(work):
    """Return the suspicions about a job whose ranks work so many seconds."""
    stage, table = SuspectingStage(), synchronous(work, overhead=0.1)
    return [s for record in records(table) for s in stage.process(record)], table


def slowed(steps=200, *, since=100, factor=1.1):
    work = np.exp(np.random.default_rng(3).normal(0, 0.008, (steps, 16)))
    work[since:, 5] *= factor
    return work


def looks(suspicions):
    return [e for s in suspicions for e in s.evidence if e.detector == OFFLINE]


def test_a_confirmed_change_is_evidence_and_weight():
    """Once there are five steps to judge by, updates hold the change as seen in hindsight, and weigh more."""
    found, table = judged(slowed(factor=1.2))
    raised = next(s for s in found if s.state == "raise")
    believed = next(s for s in found if s.overwhelming and not looks([s]))
    update = next(s for s in found if s.overwhelming and looks([s]))
    (look,) = looks([update])
    assert (look.metric, look.note) == ("compute_seconds.ratio", "confirmed in hindsight")
    assert look.value == pytest.approx(1.2, abs=0.01)
    assert look.baseline.median == pytest.approx(1.0, abs=0.01)
    assert table.ts[99] <= look.change_at <= table.ts[100]
    assert update.log_likelihood_ratio == believed.log_likelihood_ratio + 1.0
    assert raised.log_likelihood_ratio < believed.log_likelihood_ratio
    assert update.onset == raised.onset


def test_the_first_word_does_not_wait_for_it():
    """A rank is found after three steps, too few to be segmented."""
    found, _ = judged(slowed(factor=1.5))
    raised = next(s for s in found if s.state == "raise")
    assert looks([raised]) == []


def test_a_rank_slow_from_the_start_has_no_change_to_judge():
    """Nothing is confirmed or denied about it."""
    found, _ = judged(slowed(since=0, factor=1.2))
    assert found
    assert looks(found) == []


def test_without_ruptures_only_the_look_is_missing(monkeypatch):
    """Which rank is slow, since when and at what time is the same."""
    found, _ = judged(slowed())
    monkeypatch.setattr(offline_segmentation, "_ruptures", lambda: None)
    bare, _ = judged(slowed())
    assert looks(bare) == []
    assert [(s.state, s.subject, s.onset, s.ts) for s in bare] == [
        (s.state, s.subject, s.onset, s.ts) for s in found
    ]
