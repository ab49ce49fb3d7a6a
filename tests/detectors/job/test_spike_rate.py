import math

import numpy as np
import pytest

from detectors.job.spike_rate import MEMORY, SpikeRate

NONE, ALL = np.zeros(4, dtype=bool), np.ones(4, dtype=bool)
FIRST = np.array([True, False, False, False])


def after(*steps, slow=NONE, read=ALL):
    spikes = SpikeRate(4)
    for far in steps:
        spikes.update(far, read=read, slow=slow)
    return spikes


def test_healthy_steps_make_a_far_one_the_more_surprising():
    """Of 4 ranks, 100 steps without a far one: one far step is worth nearly ln(2 x 400)."""
    assert after(NONE).surprise == pytest.approx(math.log(2 * 5))
    assert after(*[NONE] * 100).surprise == pytest.approx(math.log(2 * 401), abs=0.1)


def test_far_steps_count_once_they_have_ended():
    """A run of far steps does not speak against itself; over, it counts in full."""
    quiet, under_way = after(*[NONE] * 100), after(*[NONE] * 100, *[FIRST] * 3)
    assert under_way.surprise == pytest.approx(quiet.surprise, abs=0.03)
    over = after(*[NONE] * 100, *[FIRST] * 3, NONE)
    assert quiet.surprise - over.surprise == pytest.approx(math.log(3.5 / 0.5), abs=0.05)


def test_a_long_run_of_far_steps_counts_as_one_slowdown_that_was_explained():
    """So long as one takes to develop, and no longer: else a stage that was slow for an hour would make far
    steps usual."""
    short, long = (after(*[NONE] * 100, *[FIRST] * run, *[NONE] * 8) for run in (32, 400))
    assert long.surprise >= short.surprise


def test_steps_of_slow_ranks_never_count():
    """What a slow rank did is no spike, not even after it is well again."""
    spikes = after(*[NONE] * 100, *[FIRST] * 3)
    before = spikes.surprise
    spikes.update(FIRST, read=ALL, slow=FIRST)
    spikes.update(NONE, read=ALL, slow=NONE)
    assert spikes.surprise == pytest.approx(before, abs=0.03)


def test_a_step_that_was_not_read_ends_nothing():
    """A rank without a row has done neither a healthy step nor a far one."""
    spikes = after(*[NONE] * 100, FIRST)
    before = spikes.surprise
    spikes.update(NONE, read=~FIRST, slow=NONE)
    assert spikes.surprise >= before - 0.01
    spikes.update(NONE, read=ALL, slow=NONE)
    assert spikes.surprise < before - 0.9


def test_spikes_of_long_ago_are_forgotten():
    """A job that has stopped to collect is as surprising as one that never did."""
    spikes = after(*[FIRST, NONE] * 20)
    common = spikes.surprise
    for _ in range(int(8 * MEMORY)):
        spikes.update(NONE, read=ALL, slow=NONE)
    assert common < 2.3
    assert spikes.surprise > math.log(2 * 4 * MEMORY) - 0.1


def test_a_far_step_is_seen_once_it_has_ended():
    """While it lasts it may be a fault, and one of a slow rank is one."""
    assert [after(*steps).any for steps in ([NONE], [FIRST], [FIRST, NONE])] == [False, False, True]
    assert not after(FIRST, NONE, slow=FIRST).any


def test_each_step_of_a_run_counts_as_one_step_that_was_seen():
    """Of 16 steps three were far off."""
    assert after(FIRST, FIRST, FIRST, NONE).surprise == pytest.approx(math.log(17 / 3.5), abs=0.01)
