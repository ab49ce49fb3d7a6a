import random

from benchmarks.rig.relay import DelayLine


def test_frames_arrive_in_order_after_the_delay():
    """None before its time."""
    line = DelayLine(0.02, 0.0, random.Random(1))
    line.put(b"one", 10.0)
    line.put(b"two", 10.0)
    line.put(b"three", 10.01)

    assert line.due(10.019) == []
    assert line.next_due() == 10.02
    assert line.due(10.025) == [b"one", b"two"]
    assert line.due(11.0) == [b"three"]
    assert line.next_due() is None


def test_the_share_that_is_lost():
    """Each frame by itself, with the probability given."""
    line = DelayLine(0.0, 0.05, random.Random(1))
    for _ in range(10_000):
        line.put(b"", 1.0)
    assert abs(len(line.due(1.0)) - 9500) < 100
