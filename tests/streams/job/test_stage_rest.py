"""JobStage on what ranks do besides what they name, and on jobs whose slowness goes from rank to rank."""

import dataclasses

import numpy as np
import pytest

from benchmarks.detection.step_jobs import synchronous
from tests.streams.job.job_tables import (
    believed,
    healthy,
    job_level,
    layout,
    run,
    steps_between,
)

OVERHEAD = 0.02


def stalled(rank, seconds, *, since=90):
    """Return a job of which a rank is busy besides its compute, and the others wait for it."""
    work = healthy()
    own = work.copy()
    own[since:, rank] += seconds
    return dataclasses.replace(synchronous(own, overhead=OVERHEAD), compute=work)


def transferring(ranks, *, reported, seconds=1.0, jitter=0.05):
    """Return a job of 24 ranks, some of which transfer for longer than the others from step 90 on."""
    work = healthy(ranks=24)
    comm = 0.2 * np.exp(np.random.default_rng(1).normal(0, jitter, work.shape))
    comm[90:, ranks] += seconds
    table = synchronous(work + comm, overhead=OVERHEAD)
    return dataclasses.replace(table, compute=work, comm=comm if reported else None)


@pytest.mark.parametrize("jitter", [0.05, 0.3])
@pytest.mark.parametrize("ranks", [[5], list(range(8, 16))], ids=["rank", "node"])
@pytest.mark.parametrize("reported", [True, False])
def test_long_transfers_of_those_who_wait_least_are_found(reported, ranks, jitter):
    """Whether or not transfers have a column of their own: reporting them hides no one."""
    found = believed(run(transferring(ranks, reported=reported, jitter=jitter)))
    assert set(found) == set(ranks)
    one = found[ranks[0]]
    assert one.job_slowdown_ratio > 1.5
    assert ("transfers" in one.note) == reported
    assert ("comm_seconds" in {e.metric for e in one.evidence}) == reported


def test_transfers_that_vary_are_no_fault():
    """By a third in each step, on healthy ranks."""
    assert not believed(run(transferring([], reported=True, jitter=0.3)))


def test_transfers_that_contain_the_waiting_are_no_fault():
    """Without a column for waits the others' transfers take longer, not the culprit's."""
    table = transferring([5], reported=True)
    waiting = dataclasses.replace(table, comm=table.comm + table.wait, wait=None)
    assert not believed(run(waiting))


@pytest.mark.parametrize("seconds", [0.05, 0.3, 1.0])
def test_a_rank_busy_outside_of_its_compute_is_named(seconds):
    """Its compute is as ever, but it waits for no other, and what is left of its step is longer, for 20 steps
    and 20 s.
    """
    table = stalled(5, seconds)
    found = believed(run(table))
    assert set(found) == {5}
    assert found[5].kind == "straggler.fail_slow"
    assert found[5].evidence[0].metric == "rest_seconds"
    assert "besides computing" in found[5].note
    assert found[5].slowdown_ratio == pytest.approx(1 + seconds, abs=0.03)
    assert abs(steps_between(table, table.ts[90], found[5].onset)) <= 1
    assert 19 <= steps_between(table, table.ts[90], found[5].ts) <= 22


def test_a_stall_and_slow_compute_are_two_voices():
    """The end of one does not end the other, which still stands."""
    work = healthy(steps=400)
    own = work.copy()
    own[90:160, 5] += 0.3
    work[130:, 5] *= 1.3
    own[130:, 5] += work[130:, 5] - work[130:, 5] / 1.3
    table = dataclasses.replace(synchronous(own, overhead=OVERHEAD), compute=work)
    states = [(s.detector, s.state) for s in run(table) if s.subject.rank == 5 and s.state != "update"]
    assert ("peer_step.rest", "raise") in states
    assert ("peer_step.rest", "clear") in states
    assert ("peer_step", "raise") in states
    assert ("peer_step", "clear") not in states


def test_no_rank_is_named_where_waiting_is_not_reported():
    """What is left of the step is then the waiting for whoever is slow."""
    assert not believed(run(dataclasses.replace(stalled(5, 0.3), wait=None)))


def test_saving_for_all_is_a_rank_s_part():
    """Eight steps in fifty, not declared: it ends before long."""
    work = healthy(steps=300)
    own = work.copy()
    own[100 + np.flatnonzero(np.arange(200) % 50 < 8), 0] += 0.5
    assert not believed(run(dataclasses.replace(synchronous(own, overhead=OVERHEAD), compute=work)))


def test_ranks_that_wait_within_what_they_do_not_report_are_not_named():
    """In a pipeline the mates of the culprit show the same; which one it was does not show."""
    work = healthy()
    own = work.copy()
    own[90:, [1, 5, 9, 13]] += 0.3
    assert not believed(run(dataclasses.replace(synchronous(own, overhead=OVERHEAD), compute=work)))


def test_a_whole_node_that_stalls_is_named():
    """Its host holds up all of its ranks."""
    work = healthy(ranks=24)
    own = work.copy()
    own[90:, 8:16] += 0.3
    found = believed(run(dataclasses.replace(synchronous(own, overhead=OVERHEAD), compute=work)))
    assert set(found) == set(range(8, 16))


def test_a_rank_that_stays_as_it_was_does_not_stall():
    """When the others begin to name more of what they do, less is left of their steps."""
    table = stalled(5, 0.0)
    table = dataclasses.replace(table, step=table.step + 0.2, data=np.full(table.step.shape, np.nan))
    table.data[90:] = 0.2
    table.data[:, 5] = np.nan
    assert not [rank for rank, found in believed(run(table)).items() if found.kind == "straggler.fail_slow"]


def test_a_rank_that_logs_for_all_is_not_slow():
    """What one does besides from the start is its part, and a step of it now and then is no change."""
    assert not believed(run(stalled(0, 0.3, since=0)))
    table = stalled(0, 0.0)
    table.wait[::10, 1:] += 0.5
    table.step[::10] += 0.5
    assert not believed(run(table))


def test_the_only_rank_of_its_stage_is_judged_by_its_own_past():
    """Without a peer in its role, at a lower weight; a stage that slows down has no uneven cut."""
    work = healthy(steps=200, ranks=8)
    work[120:, 3] *= 1.3
    suspicions = run(synchronous(work, overhead=OVERHEAD, coords=layout(8, 8)))
    found = believed(suspicions)
    assert set(found) == {3}
    assert "too few peers" in found[3].note
    assert found[3].log_likelihood_ratio < 5.0
    assert not job_level(suspicions)


def test_the_next_slow_rank_costs_what_the_job_loses_by_it():
    """Also where another one was slow before it, and the job was never well in between."""
    work = healthy(steps=300)
    work[80:160, 2] *= 1.2
    work[160:, 9] *= 1.2
    found = believed(run(synchronous(work, overhead=OVERHEAD)))
    assert set(found) == {2, 9}
    assert found[9].job_slowdown_ratio == pytest.approx(1.18, abs=0.03)


@pytest.mark.slow
def test_slowness_that_rotates_makes_few_ranks_suspect():
    """A hot part of the work makes each rank slow in its turn: after three of them the next have to be slow
    for longer, and who is, is named. Coming and going is the work's too.
    """
    rng = np.random.default_rng(4)
    work = healthy(steps=700, ranks=16)
    for turn, first in enumerate(range(100, 500, 8)):
        work[first : first + 8, rng.permutation(16)[turn % 16]] *= 1.12
    work[560:, 13] *= 1.12
    suspicions = run(synchronous(work, overhead=OVERHEAD))
    found = believed(suspicions)
    assert 13 in found
    assert len(found) <= 6
    assert not [s for s in suspicions if s.kind == "straggler.intermittent"]


def outside(ranks, seconds, *, since=90, work=None):
    """Return a job of which some ranks load data before each step begins, and the others wait for them."""
    work = healthy(ranks=24) if work is None else work
    own = work.copy()
    own[since:, ranks] += seconds
    table = dataclasses.replace(synchronous(own, overhead=OVERHEAD), compute=work)
    table.step[since:, ranks] -= seconds
    return table


@pytest.mark.parametrize("seconds", [0.1, 0.3, 1.0])
@pytest.mark.parametrize("ranks", [[5], list(range(8, 16))], ids=["rank", "node"])
def test_what_a_rank_does_between_its_steps_is_named(ranks, seconds):
    """A loop that loads outside of its steps: the culprit's step is short, and the others' are long."""
    table = outside(ranks, seconds)
    found = believed(run(table))
    assert set(found) == set(ranks)
    one = found[ranks[0]]
    assert one.evidence[0].metric == "rest_seconds"
    assert one.slowdown_ratio == pytest.approx(1 + seconds, abs=0.05)
    assert abs(steps_between(table, table.ts[90], one.onset)) <= 1
    assert 19 <= steps_between(table, table.ts[90], one.ts) <= 22


@pytest.mark.parametrize("ranks", [[5], list(range(8, 16))], ids=["rank", "node"])
def test_a_rank_that_computes_a_little_slower_hides_nobody_who_loads_between_steps(ranks):
    """The others wait for it by a thirtieth of what they wait."""
    work = healthy(ranks=24)
    work[85:, 20] *= 1.01
    assert set(believed(run(outside(ranks, 0.3, work=work)))) == set(ranks)


def test_rows_that_are_lost_hide_nobody_who_loads_between_steps():
    """Without the row before it, a step shows nothing of what came in between."""
    table = outside(list(range(8, 16)), 0.3)
    only = np.random.default_rng(3).random(table.step.shape) > 0.1
    assert set(believed(run(table, only=only))) == set(range(8, 16))


def paused(table, seconds):
    """Return the job with so many seconds of pause before each step, on all ranks."""
    return dataclasses.replace(table, ts=table.ts + np.cumsum(seconds))


@pytest.mark.parametrize("every", [1, 10, 50])
def test_pauses_between_steps_that_all_ranks_share_accuse_nobody(every):
    """Evaluations, checkpoints and rollouts: whoever computes on, the others wait for no rank."""
    table = synchronous(healthy(ranks=24), overhead=OVERHEAD)
    seconds = np.where(np.arange(200) % every == 0, 3.0, 0.0)
    seconds[:60] = 0.0
    suspicions = run(paused(table, seconds))
    assert not believed(suspicions)
    assert not [s for s in suspicions if s.kind == "hang.job"]


def test_a_rank_that_saves_between_steps_does_its_part():
    """Eight steps in fifty, while the others wait in their next step: it ends before long."""
    work = healthy(steps=300, ranks=24)
    own = work.copy()
    saves = 100 + np.flatnonzero(np.arange(200) % 50 < 8)
    own[saves, 0] += 0.5
    table = dataclasses.replace(synchronous(own, overhead=OVERHEAD), compute=work)
    table.step[saves, 0] -= 0.5
    assert not believed(run(table))


@pytest.mark.parametrize("seconds", [0.1, 1.0, 10.0])
def test_coarse_times_accuse_nobody_and_hide_nobody(seconds):
    """Rounded, or those at which rows were written, many at once."""
    healthy_job = synchronous(healthy(ranks=24), overhead=OVERHEAD)
    coarse = dataclasses.replace(healthy_job, ts=np.ceil(healthy_job.ts / seconds) * seconds)
    assert not believed(run(coarse))
    table = stalled(5, 0.3)
    coarse = dataclasses.replace(table, ts=np.ceil(table.ts / seconds) * seconds)
    assert set(believed(run(coarse))) == {5}
