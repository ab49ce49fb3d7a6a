"""Which break stops a job, and when it can go on."""

import numpy as np
import pytest

from simulator.faults.breaks import Break, first_in, repaired


def broken(*spans):
    nobody = np.zeros((1, 1), np.bool_)
    return [Break(at, end, exited=nobody, still=nobody, noticed=True) for at, end in spans]


@pytest.mark.parametrize(
    ("spans", "end"),
    [
        ([(10.0, 20.0)], 20.0),
        ([(10.0, 20.0), (15.0, 30.0), (30.0, 35.0)], 35.0),
        ([(10.0, 20.0), (12.0, 14.0)], 20.0),
        ([(10.0, 20.0), (20.5, 30.0)], 20.0),
        ([(5.0, 99.0), (10.0, 20.0)], 99.0),
    ],
    ids=["one", "each-in-the-last", "within", "after", "first-of-all"],
)
def test_a_job_goes_on_when_breaks_that_follow_each_other_are_over(spans, end):
    """What breaks before the last repair must be repaired as well; what breaks later is another stop."""
    found = broken(*spans)
    assert repaired(found, found[0]) == end


@pytest.mark.parametrize(
    ("begun", "until", "at"),
    [(0, 9, None), (0, 10, 10), (15, 18, 10), (20, 29, None), (20, 30, 30), (0, 99, 10)],
)
def test_the_first_break_of_a_step_is_on_at_some_time_in_it(begun, until, at):
    """One that was repaired when the step began is over, one that comes at its end breaks it."""
    found = first_in(broken((10, 20), (30, 40)), begun, until)
    assert (found.at if found else None) == at
