"""When a slowdown of a job is worth a page."""

import pytest

from alerts.cases.cost.slow_time import SlowTime
from alerts.reasoning.calibration import Basis
from alerts.reasoning.sustained import worth_a_page


@pytest.mark.parametrize(
    ("job_slowdown", "seconds", "alone", "with_hardware"),
    [
        (1.08, 299.0, False, False),
        (1.08, 300.0, True, True),
        (1.10, 5.0, False, True),
        (1.23, 120.0, False, True),
        (1.25, 120.0, True, True),
        (1.5, 15.0, False, True),
        (4.0, 9.0, False, True),
        (4.0, 10.0, True, True),
        (1.0, 299.0, False, False),
    ],
)
def test_a_slowdown_pages_once_it_has_cost_something(job_slowdown, seconds, alone, with_hardware):
    """By step times alone half a minute of the job, or after five minutes; with other evidence at once from
    a tenth on."""
    slow = SlowTime().extended(0.0, seconds, job_slowdown)
    bases: tuple[Basis, ...] = ("slows_job", "large", "other", "hardware", "stop")
    found = {basis: worth_a_page(job_slowdown, slow, basis) for basis in bases}
    assert found == dict.fromkeys(bases[:3], alone) | dict.fromkeys(bases[3:], with_hardware)


def test_without_a_measured_slowdown_nothing_pages():
    """Whatever a finding rests on."""
    assert not worth_a_page(None, SlowTime(), "hardware")
