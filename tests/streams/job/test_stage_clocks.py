"""JobStage where ranks share a wall clock, or none, or count steps by themselves."""

import dataclasses

import numpy as np
import pytest

from benchmarks.detection.step_jobs import START, StepTable, synchronous
from slowrank.telemetry.rows.json_rows import steps_record
from tests.streams.job.job_tables import SuspectingStage, believed, healthy, run


def own_counters(factor, *, related, seconds=1.0, ranks=16, seed=0):
    """Rows of workers that do not wait for each other, rank 5 slow from the middle on, in order of time; its
    onset.
    """
    rng, found = np.random.default_rng(seed), []
    onset = START + 150 * seconds
    for rank in range(ranks):
        first = 0 if related else int(rng.integers(10**6))
        at, step = START + rng.uniform(0, seconds), first
        while at < START + 300 * seconds:
            took = seconds * np.exp(rng.normal(0, 0.03)) * (factor if rank == 5 and at >= onset else 1.0)
            at, step = at + took, step + 1
            found.append(
                {"ts": at, "step": step, "rank": rank, "step_seconds": took, "node": f"n{rank // 8}"}
            )
    return sorted(found, key=lambda r: r["ts"]), onset


@pytest.mark.slow
@pytest.mark.parametrize("related", [True, False])
@pytest.mark.parametrize("seconds", [0.2, 10.0])
@pytest.mark.parametrize("factor", [1.0, 1.3, 2.0])
def test_workers_that_count_by_themselves(related, seconds, factor):
    """Among workers without common steps the slow one is named, and none where there is none."""
    results, onset = own_counters(factor, related=related, seconds=seconds)
    stage = SuspectingStage()
    found = [s for r in results for s in stage.process(steps_record([r]))]
    assert {s.subject.rank for s in found} == ({5} if factor > 1 else set())
    if factor > 1:
        assert abs(believed(found)[5].onset - onset) <= 6 * seconds
        assert believed(found)[5].ts - onset <= 40 * seconds


def test_step_times_alone_name_no_rank_when_all_ranks_share_them():
    """Wall clock is the same on every rank and does not show who is slow."""
    work = healthy()
    work[90:, 4] *= 1.5
    table = dataclasses.replace(synchronous(work), with_compute=False, wait=None)
    assert run(table) == []


def test_compute_is_derived_from_waits_where_it_is_not_given():
    """Step time without the wait is as good as compute time."""
    work = healthy()
    work[90:, 4] *= 1.2
    assert set(believed(run(dataclasses.replace(synchronous(work), with_compute=False)))) == {4}


def asynchronous(seed, *, slow=None):
    rng = np.random.default_rng(seed)
    noise = np.zeros((250, 10))
    for s in range(1, 250):
        noise[s] = 0.5 * noise[s - 1] + rng.normal(0, 0.02, 10)
    step = np.exp(rng.normal(0, 0.10, 10) + noise)
    if slow is not None:
        step[120:140, slow] *= 1.6
    ts = START + 10.0 * np.arange(250, dtype=np.float64)
    return StepTable(compute=step, step=step, numbers=np.arange(250), ts=ts, with_compute=False)


@pytest.mark.parametrize("seed", range(3))
def test_asynchronous_workers_of_different_speed_are_left_alone(seed):
    """A worker that always was slower has not become slow."""
    assert run(asynchronous(seed)) == []


def test_an_asynchronous_worker_that_changes_is_named_and_cleared():
    """A worker slower than its own past and its peers is found within a minute and cleared afterwards."""
    table = asynchronous(3, slow=6)
    suspicions = run(table)
    found = believed(suspicions)
    assert set(found) == {6}
    assert found[6].ts - table.ts[120] <= 60.0
    assert suspicions[-1].state == "clear"
