from hypothesis import given
from hypothesis import strategies as st

from streams.watermark import Watermark


def feed(times):
    mark = Watermark()
    seconds: list[int] = []
    for t in times:
        seconds += mark.advance(t)
    return mark, seconds


def test_every_whole_second_is_passed_once_and_in_order():
    """A steady source makes event time pass every second exactly once."""
    _, seconds = feed(100 + i / 3 for i in range(60))
    assert seconds == list(range(100, 119))


def test_a_clock_that_is_ahead_does_not_pull_the_others_along():
    """One of two nodes running 100 s ahead does not advance event time."""
    mark, _ = feed(t + 100 * (n % 2) for t in range(1000, 1050) for n in range(2))
    assert mark.time <= 1049


def test_late_records_do_not_turn_event_time_back():
    """Event time stands while old records pass and goes on after them."""
    mark, seconds = feed([*range(1000, 1020), *range(400, 440), *range(1020, 1040)])
    assert seconds == sorted(set(seconds))
    assert mark.time == 1036


def test_records_that_advance_within_time_passed_without_them_are_noted():
    """Until they have caught up with it, each second of theirs passes again."""
    mark, _ = feed(range(1000, 1010))
    mark.reach(1012.5)
    again = []
    for second in range(1010, 1020):
        mark.advance(second)
        again.append(mark.passed_again)
    # The records' time is three behind.
    assert again == [True] * 7 + [False] * 3
    assert mark.time == 1016


def test_a_long_pause_is_passed_in_at_most_ten_minutes_of_ticks():
    """A gap of a day does not cost 86,400 ticks."""
    _, seconds = feed([*range(1000, 1010), *range(87400, 87410)])
    assert len(seconds) < 630
    assert seconds[-1] == 87406


def test_a_leap_passes_its_last_ten_minutes():
    """Six hundred whole seconds, the last of them the one that was reached."""
    mark = Watermark()
    assert mark.reach(1000.25) == range(1000, 1001)
    assert mark.reach(1000.75) == range(1001, 1001)
    assert mark.reach(5000.5) == range(4401, 5001)
    assert mark.reach(4000.0) == range(0)


@given(st.lists(st.integers(0, 400_000), max_size=40), st.integers(-5, 5))
def test_seconds_pass_once_and_no_clock_of_one_source_moves_them(times, shift):
    """Event time never goes back, and counts from any zero."""
    mark, seconds = feed([t / 64 for t in times])
    _, shifted = feed([t / 64 + shift for t in times])
    assert seconds == sorted(set(seconds))
    assert shifted == [second + shift for second in seconds]
    assert mark.time <= max(times, default=0) / 64
