import numpy as np
import pytest

from detectors.imbalance import job_slowdown, stage_imbalance, workload_imbalance
from detectors.peers import PeerGroups

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
