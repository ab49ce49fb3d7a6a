from streams.runtime.monitoring.lag_age import LagAges

PLACE = ("node-samples", 0)


def test_what_is_read_to_its_end_has_no_age():
    """However old its last message is."""
    ages = LagAges()
    ages.took(PLACE, 100.0)
    assert ages.note(5000.0, {PLACE: 10}, {PLACE: 10}) == {PLACE: 0.0}


def test_a_wait_counts_from_its_first_message():
    """Not from the last one before it, which may be hours old."""
    ages = LagAges()
    ages.took(PLACE, 100.0)
    ages.note(5000.0, {PLACE: 10}, {PLACE: 10})
    assert ages.note(5001.0, {PLACE: 11}, {PLACE: 10}) == {PLACE: 0.0}
    assert ages.note(5007.0, {PLACE: 15}, {PLACE: 10}) == {PLACE: 6.0}
    # Those of 5007 are still to be taken.
    assert ages.note(5009.0, {PLACE: 20}, {PLACE: 12}) == {PLACE: 2.0}
    assert ages.note(5010.0, {PLACE: 20}, {PLACE: 20}) == {PLACE: 0.0}


def test_after_a_start_the_age_is_that_of_the_messages():
    """A worker that was away for an hour is not three seconds behind."""
    ages = LagAges()
    assert ages.note(7200.0, {PLACE: 9000}, {PLACE: 0}) == {PLACE: 0.0}
    ages.took(PLACE, 3600.0)
    assert ages.note(7203.0, {PLACE: 9010}, {PLACE: 1}) == {PLACE: 3603.0}
    ages.took(PLACE, 7000.0)
    assert ages.note(7210.0, {PLACE: 9040}, {PLACE: 8500}) == {PLACE: 210.0}


def test_a_partition_that_another_worker_has_is_dropped():
    """When it comes back, what was known of it no longer holds."""
    ages = LagAges()
    ages.note(100.0, {PLACE: 10}, {PLACE: 10})
    assert ages.note(101.0, {}, {}) == {}
    ages.took(PLACE, 150.0)
    assert ages.note(200.0, {PLACE: 90}, {PLACE: 20}) == {PLACE: 50.0}
