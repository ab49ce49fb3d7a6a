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


def test_the_rank_that_becomes_slow_as_another_recovers_may_have_its_work():
    """Machines seldom fail at the very step at which another recovers."""
    assert doubted((3, 100, 200), (14, 200, 320)) == {3: False, 14: True}
    assert doubted((3, 0, 100), (14, 100, 220)) == {3: False, 14: True}


def test_work_by_turns_ends_where_a_rank_stays_slow():
    """It is slow for longer than steps are held."""
    work = healthy(steps=1000, ranks=16, seed=8)
    for rank, first, last in ((3, 100, 250), (9, 300, 450), (14, 480, 1000)):
        work[first:last, rank] *= 1.4
    found = [s for s in run(synchronous(work, overhead=0.3)) if s.subject.rank == 14]
    steps = [(s.ts - found[0].ts) / 1.7 for s in found if "imbalance.workload" in s.hypotheses]
    assert 270 < steps[-1] < 330


def test_a_rank_after_one_other_is_slow_by_itself():
    assert doubted((3, 100, 200), (14, 260, 360)) == {3: False, 14: False}
