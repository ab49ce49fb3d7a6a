"""Ranks that are slow for minutes, one after the other, as where experts are popular by turns."""

from benchmarks.detection.step_jobs import synchronous
from tests.streams.job.job_tables import healthy, run


def doubted(*slow):
    """Return the ranks found slow, and whether work may be why; ``slow``: (rank, first step, last)."""
    work = healthy(steps=600, ranks=16, seed=8)
    for rank, first, last in slow:
        work[first:last, rank] *= 1.4
    found = [s for s in run(synchronous(work, overhead=0.3)) if s.subject.rank is not None]
    return {s.subject.rank: "imbalance.workload" in s.hypotheses for s in found if s.state == "raise"}


def test_the_third_rank_that_is_slow_for_a_while_may_have_more_work():
    """Two may be two faults; it is found as soon as they."""
    assert doubted((3, 100, 200), (9, 260, 360), (14, 420, 520)) == {3: False, 9: False, 14: True}


def test_a_rank_after_one_other_is_slow_by_itself():
    assert doubted((3, 100, 200), (14, 260, 360)) == {3: False, 14: False}
