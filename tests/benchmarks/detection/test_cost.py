"""What findings say that trouble costs, beside what the simulator's own step times say that the job lost."""

from dataclasses import replace

import pytest

from benchmarks.detection.cost import CASES, ONSET, TOLERANCE, Runs, Steps, looks_at

BY_NAME = {case.name: case for case in CASES}
LASTING = ("hang", "stop, then the job ends", "port stops the job", "thermal ramp", "steady", "intermittent")
OPEN = ("hang", "XID stops the job", "thermal ramp", "steady")


@pytest.mark.slow
@pytest.mark.parametrize("name", OPEN)
def test_an_open_finding_reports_what_its_job_has_lost_so_far(name):
    """Ten minutes on, the sum over all accounts, as read from their last versions, is right within 5 %."""
    case = replace(BY_NAME[name], seconds=ONSET + 605.0, looks=(600,))
    look = looks_at(case, seed=0)[0]
    assert look.read == pytest.approx(look.true, rel=TOLERANCE)
    # What is stored lacks no more than what was lost since the last version, half a minute ago.
    assert look.reported == pytest.approx(look.true, rel=0.06)


@pytest.mark.slow
@pytest.mark.parametrize("name", LASTING)
def test_cost_is_right_while_a_finding_is_open_and_when_it_is_over(name):
    """At each look and at the end, for one seed (60 s in all)."""
    looks = looks_at(BY_NAME[name], seed=1)
    assert [look.read for look in looks] == [pytest.approx(look.true, rel=TOLERANCE) for look in looks]


def test_the_truth_counts_a_stop_up_to_now_and_to_the_end_of_the_job():
    """By hand: steps of 10 s until 20, then none; 360 GPUs lose 36 GPU-hours in 360 s, none once it ended."""
    healthy = Steps({k: 10.0 * k for k in range(100)}, 360)
    stopped = Steps({k: 10.0 * k for k in range(3)}, 360)
    assert Runs(stopped, healthy, onset=21.0).lost_until(380.0) == pytest.approx(36.0)
    assert Runs(stopped, healthy, onset=21.0, ends=110.0).lost_until(380.0) == pytest.approx(9.0)
    assert Runs(healthy, healthy, onset=21.0).lost_until(380.0) == 0.0
