"""Onsets in event time."""

import numpy as np
import pytest

from detectors.changepoint.llr_cusum import Onset
from detectors.peers.ratios import Ratios
from detectors.peers.step_times import StepTimes
from detectors.straggler.config import StragglerConfig
from detectors.straggler.onset_time import date_onset

RANKS = 4


def seen(ends, seconds):
    """Ratios of a job whose steps took ``seconds`` and ended at ``ends``, the same on every rank."""
    ratios = Ratios(RANKS, np.zeros(RANKS, dtype=np.intp), StragglerConfig())
    missing = np.full(RANKS, np.nan)
    for number, (end, took) in enumerate(zip(ends, seconds, strict=True)):
        times = np.full(RANKS, took)
        ratios.observe(
            StepTimes(
                number=1000 + number, ts=np.full(RANKS, end), step=times, compute=times, wait=missing,
                data=missing, comm=missing, checkpoint=missing, tokens=missing,
            )
        )  # fmt: skip
    return ratios


def test_a_step_is_dated_within_itself():
    """The interval is the first slow step, start to end; the onset is half a usual step before its end."""
    seconds = np.array([1.0] * 10 + [1.5] * 5)
    dated = date_onset(seen(np.cumsum(seconds), seconds), 2, Onset(6, 6, 6), steps=11)
    assert (dated.lo, dated.at, dated.hi) == pytest.approx((10.0, 11.0, 11.5))


def test_the_range_of_likely_steps_is_the_interval():
    """It goes from the start of the earliest to the end of the latest step that may be the first."""
    seconds = np.ones(20)
    dated = date_onset(seen(np.cumsum(seconds), seconds), 0, Onset(5, 3, 8), steps=10)
    assert (dated.lo, dated.at, dated.hi) == pytest.approx((13.0, 15.5, 19.0))


def test_an_onset_is_never_far_ahead_of_the_row_that_shows_it():
    """With steps of half a minute the onset stands two seconds before the end of the first slow one."""
    seconds = np.full(12, 30.0)
    dated = date_onset(seen(np.cumsum(seconds), seconds), 0, Onset(2, 2, 2), steps=5)
    assert (dated.lo, dated.at, dated.hi) == pytest.approx((270.0, 298.0, 300.0))


def test_between_sampled_steps_it_may_have_begun_at_any_time():
    """The interval reaches back to the last row before, however long ago that was."""
    ends = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 60.0, 61.0])
    dated = date_onset(seen(ends, np.ones(7)), 1, Onset(1, 1, 1), steps=3)
    assert (dated.lo, dated.at, dated.hi) == pytest.approx((5.0, 59.5, 60.0))


def test_the_first_step_of_all_has_nothing_before_it():
    """Without an earlier row, the interval begins with the step itself; without its length, at its end."""
    ends = np.arange(1.0, 6.0)
    assert date_onset(seen(ends, np.ones(5)), 0, Onset(0, 0, 0), steps=5).lo == 0.0
    unread = date_onset(seen(ends, np.full(5, np.nan)), 0, Onset(0, 0, 0), steps=5)
    assert (unread.lo, unread.at, unread.hi) == (1.0, 1.0, 1.0)


def test_what_follows_the_onset_does_not_lengthen_the_usual_step():
    """Half a usual step is half of what steps took until then."""
    seconds = np.array([1.0, 1.0, 3.0, 3.0, 3.0])
    dated = date_onset(seen(np.cumsum(seconds), seconds), 0, Onset(1, 1, 1), steps=4)
    assert (dated.lo, dated.at, dated.hi) == pytest.approx((2.0, 4.5, 5.0))
