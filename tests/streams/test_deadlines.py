"""When to look at many times at all."""

from streams.deadlines import NextDeadline


def test_nothing_is_due_before_the_earliest_of_all():
    """Only once a time may have come is there anything to look at; later ones take its place."""
    due = NextDeadline()
    assert not due.reached(1e12)
    for time in (50.0, 30.0, 40.0):
        due.note(time)
    assert [due.reached(now) for now in (29.9, 30.0)] == [False, True]
    due.counted([40.0, 50.0])
    assert [due.reached(now) for now in (39.9, 40.0)] == [False, True]


def test_none_left_is_never_due():
    """Without times nothing is reached until one comes."""
    due = NextDeadline()
    due.note(10.0)
    due.counted([])
    assert not due.reached(1e12)
    due.note(20.0)
    assert due.reached(20.0)
