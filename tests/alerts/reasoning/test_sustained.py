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


@pytest.mark.parametrize(("charged", "pages"), [(0.0, False), (5.9, False), (6.0, True), (1e6, True)])
def test_what_the_job_did_not_wait_for_pages_nobody(charged, pages):
    """A minute by its ratio: a tenth of it must be on its account, but with evidence of the machine."""
    slow = SlowTime().extended(0.0, 120.0, 1.5)
    assert worth_a_page(1.5, slow, "large", charged=charged) == pages
    assert worth_a_page(1.5, slow, "hardware", charged=charged)


def test_half_a_minute_of_the_job_pages_however_much_it_is_said_to_have_lost():
    slow = SlowTime().extended(0.0, 3600.0, 1.5)
    assert not worth_a_page(1.5, slow, "large", charged=29.0)
    assert worth_a_page(1.5, slow, "large", charged=30.0)


def test_without_a_measured_slowdown_nothing_pages():
    """Whatever a finding rests on."""
    assert not worth_a_page(None, SlowTime(), "hardware")
