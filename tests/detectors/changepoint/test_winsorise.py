"""Winsorising of spikes."""

import numpy as np
import pytest

from detectors.changepoint.winsorise import Winsoriser


def clip_all(values: list[float]) -> list[float]:
    winsorise = Winsoriser(1, limit=4.0, run=3)
    return [float(winsorise(np.array([z]))[0]) for z in values]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1, -3.9, 4.0], [1, -3.9, 4.0]),
        ([9, 0, -9], [4, 0, -4]),
        ([9, 9, 9, 9, 9], [4, 4, 4, 9, 9]),
        ([9, 9, 9, -9, -9, -9, -9], [4, 4, 4, -4, -4, -4, -9]),
        ([9, 9, 9, 0, 9], [4, 4, 4, 0, 4]),
    ],
)
def test_three_in_a_row_are_clipped_and_the_fourth_passes(values, expected):
    """Spikes are cut to the limit; a fourth sample beyond it on the same side passes."""
    assert clip_all(values) == expected


def test_missing_samples_do_not_break_a_streak():
    """A gap within a step counts neither for nor against it."""
    assert clip_all([9, np.nan, 9, 9, 9])[2:] == [4, 4, 9]


def test_counts_clipped_samples_per_series():
    """The count is of clipped samples only, per series."""
    winsorise = Winsoriser(2, limit=4.0, run=3)
    for _ in range(5):
        winsorise(np.array([9.0, 0.0]))

    assert winsorise.counts.tolist() == [3, 0]


def test_reset_forgets_the_streak():
    """After a reset the next three samples are clipped again."""
    winsorise = Winsoriser(1, limit=4.0, run=3)
    for _ in range(4):
        winsorise(np.array([9.0]))
    winsorise.reset(0)

    assert winsorise(np.array([9.0])).tolist() == [4.0]


@pytest.mark.parametrize("bad", [{"limit": 0.0, "run": 3}, {"limit": 4.0, "run": -1}])
def test_rejects_impossible_limits(bad):
    """A limit must be positive and a run not negative."""
    with pytest.raises(ValueError, match="need limit"):
        Winsoriser(1, **bad)
