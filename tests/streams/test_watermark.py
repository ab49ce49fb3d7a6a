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


def test_a_long_pause_is_passed_in_at_most_ten_minutes_of_ticks():
    """A gap of a day does not cost 86,400 ticks."""
    _, seconds = feed([*range(1000, 1010), *range(87400, 87410)])
    assert len(seconds) < 630
    assert seconds[-1] == 87406
