"""For how long a case has slowed its job."""

from alerts.cases.cost.slow_time import SlowTime


def test_each_report_adds_the_time_since_the_last():
    """At its own ratio: what was estimated before stays as it was."""
    slow = SlowTime().extended(10.0, 20.0, 1.5).extended(10.0, 50.0, 1.1)
    assert (slow.seconds, round(slow.cost, 6)) == (40.0, 8.0)


def test_time_between_two_spells_is_not_counted():
    """The second spell begins at its own onset."""
    slow = SlowTime().extended(10.0, 20.0, 1.5).extended(100.0, 110.0, 1.5)
    assert (slow.seconds, slow.cost) == (20.0, 10.0)


def test_two_sources_of_one_time_count_once():
    """Whichever reports later adds what is after the other's report."""
    slow = SlowTime().extended(10.0, 20.0, 1.5).extended(5.0, 20.0, 2.0).extended(10.0, 18.0, 1.5)
    assert (slow.seconds, slow.cost) == (10.0, 5.0)


def test_time_in_which_the_job_was_not_slowed_is_not_counted():
    """Where a machine was slow for long before it held up its job."""
    slow = SlowTime().passed(600.0).extended(10.0, 630.0, 1.5)
    assert (slow.seconds, slow.cost) == (30.0, 15.0)


def test_a_finding_that_opens_again_begins_anew():
    """And does not count again what was counted before."""
    slow = SlowTime().extended(10.0, 20.0, 1.5).anew()
    assert (slow.seconds, slow.cost, slow.until) == (0.0, 0.0, 20.0)
    assert slow.extended(15.0, 30.0, 1.5).seconds == 10.0


def test_a_job_at_its_pace_costs_nothing():
    """A ratio below 1 gives nothing back."""
    assert SlowTime().extended(0.0, 10.0, 0.9).cost == 0.0
