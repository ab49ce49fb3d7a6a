"""Whether ranks go by one clock, and how coarse it is."""

import numpy as np
import pytest

from detectors.peers.clock import is_asynchronous, resolution

NOISE = np.random.default_rng(1).normal(size=(20, 16))


@pytest.mark.parametrize(
    ("step", "compute", "expected"),
    [(0.001, None, False), (0.01, None, True), (0.01, 0.01, False), (0.05, 0.2, False), (0.05, 0.05, True)],
)
def test_ranks_that_do_not_wait_for_each_other_take_steps_as_long_as_their_work(step, compute, expected):
    """Without compute times it is the steps alone that tell."""
    work = None if compute is None else 1.5 * np.exp(compute * NOISE)
    assert is_asynchronous(2.0 * np.exp(step * NOISE), work) is expected


def test_resolution_is_the_least_difference_over_the_usual_time():
    seconds = np.array([[1.0, 1.25], [np.nan, 2.0]])
    assert resolution(seconds) == 0.2
    assert resolution(np.array([[1.0, np.nan]])) is None
