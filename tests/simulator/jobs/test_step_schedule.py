import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.jobs.step_schedule import Work, after_rollout, pipeline_finish, run_step


def even_work(pp=1, dp=4, tp=1, micro=8, seconds=1.0):
    shape = (pp, dp, tp)
    return Work(
        compute=np.full((micro, *shape), seconds / micro),
        data=np.zeros(shape),
        comm=np.full(shape, 0.1),
        stall=np.zeros(shape),
    )


def slowed(work, place, factor):
    work.compute[(slice(None), *place)] *= factor
    return work


def test_even_ranks_do_not_wait():
    """Data-parallel ranks with equal work do not wait, and the step is compute plus transfer."""
    times = run_step(even_work())
    assert times.step_seconds == pytest.approx(1.1)
    np.testing.assert_allclose(times.wait, 0.0, atol=1e-12)


def test_an_even_pipeline_pays_the_bubble_of_1f1b():
    """A pipeline of p even stages and m micro-batches takes (m + p - 1) visits."""
    micro = np.full((8, 4, 2), 0.25)
    np.testing.assert_allclose(pipeline_finish(micro, np.zeros((4, 2))), (8 + 4 - 1) * 0.25)


def test_a_slow_stage_sets_the_pace_of_its_pipeline():
    """With one stage twice as slow the pipeline takes its m visits plus one visit of every other stage."""
    micro = np.full((8, 4, 1), 0.25)
    micro[:, 2] *= 2
    np.testing.assert_allclose(pipeline_finish(micro, np.zeros((4, 1))), 8 * 0.5 + 3 * 0.25)


@pytest.mark.parametrize(("shape", "place"), [((1, 8, 1), (0, 3, 0)), ((4, 2, 4), (2, 1, 3))])
def test_the_culprit_waits_least_and_the_step_is_common(shape, place):
    """A slowed rank stretches everybody's step, computes longest and waits least of all."""
    pp, dp, tp = shape
    calm = run_step(even_work(pp, dp, tp))
    times = run_step(slowed(even_work(pp, dp, tp), place, 1.3))
    assert times.step_seconds > 1.15 * calm.step_seconds
    assert np.unravel_index(times.wait.argmin(), shape) == place
    assert np.unravel_index(times.compute.argmax(), shape) == place
    np.testing.assert_allclose(times.compute + times.wait + times.comm, times.step_seconds)


def test_a_tensor_parallel_group_runs_at_the_pace_of_its_slowest_member():
    """Members of the culprit's tensor-parallel group wait by exactly what it computes longer."""
    times = run_step(slowed(even_work(dp=1, tp=4), (0, 0, 2), 1.5))
    np.testing.assert_allclose(times.wait[0, 0, [0, 1, 3]], 0.5, atol=1e-12)


def test_a_slow_link_stretches_the_transfer_of_its_group_only():
    """Half the bandwidth on one rank doubles the transfer time of its data-parallel group; others wait."""
    work = even_work(pp=2, dp=4)
    work.comm[1, 2] *= 2
    times = run_step(work)
    np.testing.assert_allclose(times.comm[1], 0.2)
    np.testing.assert_allclose(times.comm[0], 0.1)
    assert times.wait[0].min() >= times.wait[1].min() + 0.1 - 1e-12


def test_what_a_step_takes_adds_up_for_every_rank():
    """Computing, waiting, loading, sending and pausing fill the step; a stalled link holds up its group."""
    rng = np.random.default_rng(2)
    shape = (2, 3, 2)
    work = Work(rng.random((4, *shape)), rng.random(shape), rng.random(shape), np.zeros(shape), pause=7.0)
    work.stall[1, 2, 0] = 5.0
    times = run_step(work)
    spent = times.compute + times.wait + times.data + times.comm + times.pause
    np.testing.assert_allclose(spent, times.step_seconds)
    assert (times.comm[1, :, 0] >= 5.0).all()
    assert (np.delete(times.comm.reshape(2, -1), [0, 2, 4], axis=1)[1] < 5.0).all()


def test_replicas_that_generate_have_no_part_in_the_training():
    """They compute before the step and wait for all of it; the others wait while they generate."""
    calm = run_step(even_work(dp=4))
    times = after_rollout(calm, np.array([[[2.0], [3.0]]]))
    assert times.step_seconds == pytest.approx(calm.step_seconds + 3.0)
    assert times.compute[0, :, 0].tolist() == pytest.approx([2.0, 3.0, 1.0, 1.0])
    assert times.comm[0, :, 0].tolist() == pytest.approx([0.0, 0.0, 0.1, 0.1])
    np.testing.assert_allclose(times.compute + times.wait + times.comm, times.step_seconds)


@given(st.integers(0, 99), st.integers(0, 3), st.integers(0, 2), st.floats(0, 9), st.permutations(range(3)))
def test_more_work_never_ends_a_pipeline_earlier(seed, micro, stage, more, order):
    """A longer visit delays, a later start moves all as much, and replicas do not know of each other."""
    work = np.random.default_rng(seed).random((4, 3, 3))
    start = np.random.default_rng(seed).random((3, 3))
    done, longer = pipeline_finish(work, start), work.copy()
    longer[micro, stage, 1] += more
    assert (pipeline_finish(longer, start) >= done).all()
    np.testing.assert_allclose(pipeline_finish(work, start + more), done + more)
    np.testing.assert_array_equal(pipeline_finish(work[..., order], start[:, order]), done[:, order])
