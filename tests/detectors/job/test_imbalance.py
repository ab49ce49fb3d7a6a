import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detectors.job.imbalance import job_slowdown, stage_imbalance, stage_ratio, workload_imbalance
from detectors.peers.peers import PeerGroups

RNG = np.random.default_rng(13)
STAGES = PeerGroups.of(np.repeat([0, 1, 2, 3], 4))


def work(noise):
    return np.exp(RNG.normal(0, noise, (40, 16)))


def test_job_slowdown_is_what_even_work_would_save():
    """Ranks of 1, 1, 1 and 2 seconds in a 2.5 s step cost 2.5 / (2.5 - 0.75)."""
    compute = np.tile([1.0, 1.0, 1.0, 2.0], (5, 1))
    assert job_slowdown(np.full(5, 2.5), compute) == pytest.approx(2.5 / 1.75)


def test_long_stage_is_found_with_its_ratio():
    """A stage 30 % longer in all members is a stage, whatever the noise."""
    compute = work(0.01)
    compute[:, 12:] *= 1.3
    found = stage_imbalance(compute.max(axis=1), compute, STAGES, dispersion=0.01)
    assert found is not None
    assert found.group == 3
    assert found.ratio == pytest.approx(1.3, abs=0.02)


@pytest.mark.parametrize("slow", [[12], [], [0, 4, 8, 12]])
def test_one_slow_member_or_balance_is_no_slow_stage(slow):
    """A rank slow in its stage, even stages, or one slow rank in each are no stage imbalance."""
    compute = work(0.01)
    compute[:, slow] *= 1.6
    assert stage_imbalance(compute.max(axis=1), compute, STAGES, dispersion=0.01) is None


def test_a_passing_long_stage_is_not_reported():
    """Half of the steps are not enough."""
    compute = work(0.01)
    compute[20:, 12:] *= 1.5
    assert stage_imbalance(compute.max(axis=1), compute, STAGES, dispersion=0.01) is None


def test_uneven_work_counts_without_the_lasting_part():
    """Scatter that costs the job 10 % is uneven work; one slow rank is not."""
    compute = work(0.10)
    ratio = np.log(compute)
    assert workload_imbalance(compute.max(axis=1), compute, ratio) == pytest.approx(1.19, abs=0.04)
    slow = work(0.002)
    slow[:, 3] *= 1.5
    assert workload_imbalance(slow.max(axis=1), slow, np.log(slow)) is None


@pytest.mark.parametrize(
    ("factor", "long_steps", "found"),
    [(1.08, 40, False), (1.12, 40, True), (1.3, 34, False), (1.3, 38, True)],
)
def test_a_stage_is_long_by_a_tenth_in_nine_of_ten_steps(factor, long_steps, found):
    """Less is no imbalance worth a repartition, and what passes is none of the layout."""
    compute = work(0.005)
    compute[:long_steps, 12:] *= factor
    results = stage_imbalance(compute.max(axis=1), compute, STAGES, dispersion=0.005)
    assert (results is not None) == found


@pytest.mark.parametrize(
    ("members", "dispersion", "found"),
    [
        ([1.6, 1.6, 1.0, 1.0], 0.01, False),
        ([1.28, 1.3, 1.3, 1.3], 0.01, True),
        ([1.25, 1.3, 1.3, 1.3], 0.01, False),
        ([1.25, 1.3, 1.3, 1.3], 0.03, True),
        ([1.20, 1.3, 1.3, 1.3], 0.03, False),
    ],
)
def test_members_of_a_long_stage_agree(members, dispersion, found):
    """Within 3 %, or twice what ranks differ by in a step: else some of its ranks are slow."""
    compute = np.ones((40, 16))
    compute[:, 12:] = members
    results = stage_imbalance(compute.max(axis=1), compute, STAGES, dispersion=dispersion)
    assert (results is not None) == found


@pytest.mark.parametrize(
    ("factor", "apart", "lasts"),
    [(1.08, 0.0, True), (1.12, 0.05, True), (1.04, 0.0, False), (1.3, 0.1, False)],
)
def test_a_stage_that_was_found_lasts_until_it_is_clearly_gone(factor, apart, lasts):
    """One that is near a bound neither comes and goes, nor does it keep another: half of each is enough."""
    compute = np.ones((40, 16))
    compute[:, 12:] = factor
    compute[:, 15] *= 1 + apart
    step = compute.max(axis=1)
    found = [stage_imbalance(step, compute, STAGES, dispersion=0.01, found=n) for n in (3, 2, None)]
    assert [f is not None for f in found] == [lasts, False, False]


def test_stages_are_compared_in_steps_in_which_all_were_read():
    """A stage without times in some steps is judged by the others; in all of them, by none."""
    compute = 3.0 * work(0.01)
    compute[:, 4:8] *= 1.3
    compute[::2, 12:] = np.nan
    found = stage_imbalance(np.nanmax(compute, axis=1), compute, STAGES, dispersion=0.01)
    assert found is not None
    assert found.group == 1
    assert found.ratio == pytest.approx(1.3, abs=0.02)
    assert np.isnan(stage_ratio(compute, STAGES, 1)).tolist() == [True, False] * 20
    assert np.median(stage_ratio(compute, STAGES, 1)[1::2]) == pytest.approx(1.3, abs=0.02)
    compute[:, 12:] = np.nan
    assert stage_imbalance(np.nanmax(compute, axis=1), compute, STAGES, dispersion=0.01) is None
    assert stage_imbalance(compute[:, 4], compute, PeerGroups.of([0] * 16), dispersion=0.01) is None


def test_a_rank_that_is_the_slowest_in_most_steps_is_no_uneven_work():
    """Though others take turns in the rest, and no step is even."""
    turns = np.zeros((40, 16))
    turns[np.arange(40), np.where(np.arange(40) < 18, 3, np.arange(40) % 3)] = 0.5
    one = turns.copy()
    one[34:], one[34:, 3] = -0.01, 0.0
    found = [workload_imbalance(np.exp(x).max(axis=1), np.exp(x), x) for x in (turns, one)]
    assert found == [pytest.approx(1.58, abs=0.01), None]


@given(
    st.lists(st.lists(st.floats(0.1, 10.0), min_size=4, max_size=4), min_size=1, max_size=9),
    st.floats(0.01, 100),
)
def test_job_slowdown_is_a_ratio(rows, unit):
    """At least one, at most ten, and the same in any unit and for any numbering of the ranks."""
    compute = np.array(rows)
    found = job_slowdown(compute.max(axis=1), compute)
    assert 1.0 <= found <= 10.0
    assert job_slowdown(unit * compute.max(axis=1), unit * compute[:, ::-1]) == pytest.approx(found)
    assert job_slowdown(np.full(len(rows), 0.01), np.tile([0.0, 8.0], (len(rows), 1))) == 10.0
