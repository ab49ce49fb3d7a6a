"""Saving that has become slow for all ranks of a job: when it is found, and which saves are as usual."""

import numpy as np
import pytest

from detectors.job.slow_saving import SlowSaving

EVERY, RANKS = 60.0, 8


def told(saves):
    """Feed the seconds of each save, of all ranks or of each; return at which it is found, and what last."""
    watch, found = SlowSaving(), []
    for number, seconds in enumerate(saves):
        watch.update(np.zeros(RANKS), ended=EVERY * number - 1.0, step_seconds=1.0)
        saving = np.broadcast_to(np.asarray(seconds, np.float64), RANKS)
        took = float(saving.max()) + 1.0
        watch.update(saving, ended=EVERY * number, step_seconds=took)
        if watch.found is not None:
            found.append(number)
    return found, watch.found


def test_saves_that_became_slow_are_told_with_the_third_and_what_they_lost():
    found, slow = told([3.0] * 5 + [12.0] * 6)
    assert found == [7, 8, 9, 10]
    assert (slow.seconds, slow.usual, slow.count, slow.lost) == (12.0, 3.0, 6, 54.0)
    assert (slow.onset_lo, slow.onset) == (5 * EVERY - 13.0, 5 * EVERY)
    assert slow.slowdown == pytest.approx(360.0 / (360.0 - 54.0))


def test_it_is_over_once_two_of_three_are_as_before_and_may_come_again():
    found, slow = told([3.0] * 5 + [12.0] * 4 + [3.0] * 8 + [12.0] * 3)
    assert found == [7, 8, 9, 19]
    assert (slow.count, slow.onset) == (3, 17 * EVERY)


@pytest.mark.parametrize(
    "saves",
    [
        [3.0] * 20,
        [12.0] * 20,
        [3.0, 3.0, 3.0, 3.0, 12.0] * 5,
        [3.0] * 5 + [12.0, 12.0] + [3.0] * 5,
        [3.0] * 5 + [4.4] * 8,
        [0.1] * 5 + [0.9] * 8,
        [1.0] * 5 + [3.5] * 8,
        [3.0] * 2 + [12.0] * 8,
        [3.0] * 5 + [[12.0, 12.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0]] * 8,
        [[3.0, 3.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]] * 5 + [[3.0, 12.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]] * 8,
    ],
    ids=[
        "as ever",
        "slow from the start",
        "every fifth is a full one",
        "twice",
        "a little longer",
        "less than a second",
        "costs little",
        "too few before",
        "of one machine",
        "of one of two writers",
    ],
)
def test_other_saves_are_not(saves):
    assert told(saves) == ([], None)


def test_it_is_over_once_no_save_comes_for_three_times_as_long_as_usual():
    watch = SlowSaving()
    for number in range(8):
        took = 3.0 if number < 5 else 12.0
        watch.update(np.full(RANKS, took), ended=EVERY * number, step_seconds=took + 1.0)
    ends = [EVERY * 7 + second for second in range(1, 400)]
    open_until = []
    for ended in ends:
        watch.update(np.zeros(RANKS), ended=ended, step_seconds=1.0)
        open_until += [ended] if watch.found is not None else []
    assert open_until[-1] == EVERY * 7 + 3 * EVERY


def test_what_is_saved_beside_the_steps_costs_no_more_than_they_take():
    """As in a column of milliseconds, or where saving goes on in the background."""
    watch = SlowSaving()
    for number in range(12):
        saving = 3_000.0 if number < 5 else 12_000.0
        watch.update(np.full(RANKS, saving), ended=EVERY * number, step_seconds=1.0)
        assert watch.found is None
