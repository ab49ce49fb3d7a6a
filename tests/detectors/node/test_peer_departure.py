"""Departures from peers that are new and last."""

import doctest

import numpy as np
import pytest

import detectors.node.peer_departure
from detectors.node.peer_departure import LEAST_PAST, WINDOW, departures

FLOOR = np.array([0.1])


def test_examples():
    """The documented example holds."""
    assert doctest.testmod(detectors.node.peer_departure).failed == 0


def contrasts(minutes, units=4, noise=0.01, seed=1):
    return np.random.default_rng(seed).normal(0.0, noise, (minutes, units, 1))


def scores(past, recent, floors=FLOOR):
    return departures(past, recent, floors)[:, 0].tolist()


def test_what_always_was_so_is_no_departure():
    """A unit with a level of its own has it in the past too."""
    level = np.array([0.0, 5.0, 0.0, -3.0])[:, None]
    assert max(map(abs, scores(contrasts(20) + level, contrasts(WINDOW, seed=2) + level))) < 1


def test_one_of_the_minutes_as_usual_is_no_departure():
    """It must last; three minutes of four do not."""
    recent = contrasts(WINDOW, seed=2)
    recent[:, 2] += 1.0
    assert scores(contrasts(20), recent)[2] > 5
    recent[1, 2] -= 1.0
    assert abs(scores(contrasts(20), recent)[2]) < 1


def test_noise_of_the_job_sets_the_scale():
    """The same departure is far in a quiet job and nothing in a restless one."""
    recent = contrasts(WINDOW, seed=2)
    recent[:, 2] += 0.5
    assert scores(contrasts(20), recent)[2] > 4
    assert abs(scores(contrasts(20, noise=0.3), recent)[2]) < 1


def test_what_lasted_once_is_expected_again():
    """Another unit has departed as far before: evaluations on one node, a backup."""
    past, recent = contrasts(20), contrasts(WINDOW, seed=2)
    recent[:, 2] += 0.5
    past[5 : 5 + WINDOW, 0] += 0.5
    assert abs(scores(past, recent)[2]) < 1


@pytest.mark.parametrize(("read", "found"), [(LEAST_PAST - 1, False), (LEAST_PAST, True)])
def test_a_past_of_two_windows_is_needed(read, found):
    """A unit that was read too seldom has no score, and does not stand in the way of others."""
    past, recent = contrasts(20), contrasts(WINDOW, seed=2)
    recent[:, 1:3] += 1.0
    past[read:, 2] = np.nan
    one, two = scores(past, recent)[1:3]
    assert one > 5
    assert (two > 5) is found


def test_a_minute_that_was_not_read_is_no_departure():
    """Missing telemetry accuses nobody."""
    recent = contrasts(WINDOW, seed=2) + 1.0
    recent[2, 1] = np.nan
    assert np.isnan(scores(contrasts(20), recent)[1])


def test_a_feature_that_nobody_reads_has_no_score():
    """It gives no warning either."""
    nothing = np.full((20, 4, 1), np.nan)
    assert np.isnan(scores(nothing, nothing[:WINDOW])).all()
