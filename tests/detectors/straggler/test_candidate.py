"""Suspected slowdowns, dated and measured."""

import numpy as np
import pytest

from detectors.peers.step_times import StepTimes
from detectors.robust import nan_median
from detectors.straggler.alternatives.waiting import waits_least
from detectors.straggler.candidate import candidate, candidates
from detectors.straggler.step_detector import StragglerDetector

RANKS = 24
NAN = np.full(RANKS, np.nan)


@pytest.fixture(scope="module")
def core():
    """A job of which six ranks become slow by different amounts at step 60 and 70, and rank 23 always was;
    some rows are lost."""
    rng = np.random.default_rng(3)
    compute = np.exp(0.01 * rng.normal(size=(90, RANKS)))
    compute[60:, :4] *= [1.05, 1.1, 1.2, 1.5]
    compute[70:, 4:6] *= 1.3
    compute[:, 23] *= 1.3
    compute[rng.random(compute.shape) < 0.02] = np.nan
    core = StragglerDetector(RANKS, np.zeros(RANKS, dtype=np.intp), nodes=np.arange(RANKS) // 8)
    for number, work in enumerate(compute):
        step = np.full(RANKS, np.nanmax(work) + 0.1)
        core.update(
            StepTimes(
                number=500 + number, ts=np.full(RANKS, 1e9 + 2.0 * number), step=step, compute=work,
                wait=step - work - 0.1, data=NAN, comm=NAN, checkpoint=NAN, tokens=NAN,
            )
        )  # fmt: skip
    return core


def same(one, other):
    """Assert that two candidates are equal in every bit."""
    for name in ("timing", "rank", "lasting", "onset", "sigma", "baseline", "spread"):
        assert getattr(one, name) == getattr(other, name), name
    np.testing.assert_array_equal(one.x, other.x)
    np.testing.assert_array_equal(one.effect, other.effect)


def test_many_candidates_are_measured_as_one_by_one(core):
    """In the order asked for, by evidence of change and lasting."""
    ranks, channel = [5, 0, 23, 3, 2, 1, 4, 12], core.channels["compute"]
    found = candidates(core.ratios, channel, "compute", ranks)
    assert [one.rank for one in found] == ranks
    for one in found:
        same(one, candidate(core.ratios, channel, "compute", one.rank))


def test_the_effect_is_the_median_of_the_deviations(core):
    """In every bit: ratios are put in order before what is usual is taken off."""
    for one in candidates(core.ratios, core.channels["compute"], "compute", list(range(RANKS))):
        np.testing.assert_array_equal(one.effect, nan_median(one.x))


def test_waits_are_held_against_those_of_all_mates(core):
    """By the median of all their steps, without those of the rank."""
    ratios = core.ratios
    for one in candidates(ratios, core.channels["compute"], "compute", list(range(6))):
        mates = np.arange(RANKS) != one.rank
        waits, seconds = (ratios.history.last(name, one.steps) for name in ("wait", "compute"))
        more = nan_median(waits[:, one.rank]) - nan_median(waits[:, mates].ravel())
        excess = one.excess * nan_median(seconds[:, mates].ravel())
        expected = False if more > 0.5 * excess else True if more < -0.3 * excess else None
        assert waits_least(ratios, one) is expected
