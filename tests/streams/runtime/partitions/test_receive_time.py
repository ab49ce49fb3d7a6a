"""How far event time follows the clock while nothing comes."""

from streams.runtime.partitions.receive_time import FIRST_SECONDS, IDLE_SECONDS, ReceiveTime


def first_move(receive, *, start=0, seconds=700):
    """The second of the clock at which event time begins to move."""
    return next((s for s in range(start, start + seconds) if receive.look(float(s), listening=True)), None)


def fed(*bursts):
    """A source that was heard at these seconds, looked at once a second until the last."""
    receive = ReceiveTime()
    for second in range(bursts[-1] + 1):
        receive.look(float(second), listening=True)
        if second in bursts:
            receive.received()
    return receive


def test_time_moves_after_half_a_minute_without_a_message():
    assert first_move(fed(*range(10)), start=10) == 9 + IDLE_SECONDS + 1


def test_after_one_burst_nobody_knows_when_the_next_is_due():
    assert first_move(fed(9), start=10) == 9 + FIRST_SECONDS + 1


def test_four_pauses_between_bursts_must_pass():
    """Bursts each minute; a pause is forgotten after ten of its lengths."""
    assert first_move(fed(0, 60, 120), start=121) == 120 + 240 + 1
    assert first_move(fed(0, 60, *range(61, 700)), start=700) == 699 + IDLE_SECONDS + 1


def test_seconds_in_which_nothing_was_read_do_not_count():
    """Nor does a round that took an hour count for more than two seconds."""
    receive = fed(*range(10))
    assert receive.look(3600.0, listening=True) == 0.0
    assert [receive.look(3600.0 + s, listening=False) for s in range(100)] == [0.0] * 100
    assert first_move(receive, start=3700) == 3699 + IDLE_SECONDS + 1
