import random

import pytest

from streams.runtime.partitions.reorder_buffer import LONGEST_SECONDS, PATIENCE_SECONDS, ReorderBuffer


def played(log):
    """What comes out of (sender, ts, logged) in the order of the log: (sender, ts) with when it came."""
    order: ReorderBuffer[tuple[str, float]] = ReorderBuffer()
    out = []
    for sender, ts, logged in log:
        out += [(logged, *item) for item in order.take((sender, ts), sender=sender, ts=ts, logged=logged)]
    return order, out


def live(*senders, first=0, last=60, delay=0.3):
    return [
        (name, t + n * 0.01, t + n * 0.01 + delay)
        for t in range(first, last)
        for n, name in enumerate(senders)
    ]


def test_records_that_come_in_time_are_not_held_back():
    """Without delays everything passes at once, in the order of the log."""
    log = live("a", "b")
    order, out = played(log)
    assert out == [(logged, name, ts) for name, ts, logged in log]
    assert not order.holds(100.0 + PATIENCE_SECONDS)


def test_spools_that_drain_one_after_the_other_come_out_in_order_of_event_time():
    """After an outage of a minute the records of both senders are those of a log that nothing disturbed."""
    before, after = live("a", "b"), live("a", "b", first=135, last=160)
    gap = live("a", "b", first=60, last=135)
    drained = [("a", ts, 121 + n * 1e-3) for n, (name, ts, _) in enumerate(gap) if name == "a" and ts < 121]
    drained += [("a", ts, logged) for name, ts, logged in gap if name == "a" and ts >= 121]
    drained += [("b", ts, 135 + n * 1e-3) for n, (name, ts, _) in enumerate(gap) if name == "b"]
    order, out = played([*before, *sorted(drained, key=lambda r: r[2]), *after])
    assert not order.holds(100.0 + PATIENCE_SECONDS)
    assert [(name, ts) for _, name, ts in out] == [(name, ts) for name, ts, _ in [*before, *gap, *after]]


def test_the_pause_ends_with_the_last_late_record_and_its_patience():
    """Records are held no longer than somebody may still be draining."""
    _, out = played([*live("a"), ("a", 60.0, 100.0), *live("a", first=101, last=140)])
    released = {logged for logged, _, ts in out if 60 <= ts < 119}
    assert len(released) == 1
    assert released.pop() == pytest.approx(100 + PATIENCE_SECONDS, abs=1.0)


def test_a_clock_set_back_holds_its_partition_up_once():
    """A sender that is late for good is taken as it is after a minute, and nobody waits for it again."""
    late = live("a", first=60, last=600, delay=10.3)
    punctual = live("b", first=60, last=600)
    _, out = played([*live("a", "b"), *sorted([*late, *punctual], key=lambda r: r[2])])
    waits = [logged - ts for logged, name, ts in out if name == "b"]
    assert max(waits) < LONGEST_SECONDS + 1
    assert (
        max(wait for wait, ts in zip(waits, (o[2] for o in out if o[1] == "b"), strict=True) if ts > 140) < 1
    )


def test_nothing_is_lost_and_nothing_doubled_whatever_the_delays():
    """Every record comes out once, each sender's in order."""
    chance = random.Random(5)
    for _ in range(20):
        log = [
            (name, ts, ts + 0.3 + (chance.uniform(0, 90) if chance.random() < 0.02 else 0))
            for name, ts, _ in live("a", "b", "c")
        ]
        order, out = played(sorted(log, key=lambda r: r[2]))
        rest = order.reach(1e9)
        assert sorted([(n, t) for _, n, t in out] + rest) == sorted((n, t) for n, t, _ in log)


def test_the_wall_clock_ends_the_pause_of_a_log_that_has_ended():
    """When no message comes any more, ``reach`` gives out what is held back."""
    order, _ = played([*live("a"), ("a", 60.0, 100.0)])
    assert order.reach(100.0 + PATIENCE_SECONDS - 0.1) == []
    assert order.reach(100.0 + PATIENCE_SECONDS) == [("a", 60.0)]
    assert not order.holds(100.0 + PATIENCE_SECONDS)


@pytest.mark.parametrize(("late", "held"), [(2.9, False), (3.1, True)])
def test_three_seconds_beyond_what_is_usual_are_late(late, held):
    """What a sender always takes is not late, and neither is a little more."""
    order, _ = played([*live("a", delay=5.0), ("a", 60.0, 65.0 + late)])
    assert order.holds(1e9) == held


def test_senders_long_gone_are_forgotten():
    """A platform that names its nodes anew each hour leaves the delays of a day behind, not of all time."""
    order: ReorderBuffer[float] = ReorderBuffer()
    for hour in range(24 * 20):
        for n in range(100):
            order.take(0.0, sender=f"node-{hour}-{n}", ts=3600.0 * hour, logged=3600.0 * hour + 0.3)
    assert len(order._usual) < 3 * 2400 + 4096
    assert order.take(0.0, sender="node-479-0", ts=1_727_999.0, logged=1_728_003.0) == []


def test_a_pause_is_not_cut_short_by_a_record_that_came_late_before_it():
    """Where the log is read again, what is late in it is older than the pause of the reader."""
    order: ReorderBuffer[float] = ReorderBuffer()
    for _, ts, logged in live("a"):
        order.take(ts, sender="a", ts=ts, logged=logged)
    order.pause(100.0)
    read_again = [("a", 60.0, 65.0), *live("a", first=66, last=100)]
    assert [o for _, ts, logged in read_again for o in order.take(ts, sender="a", ts=ts, logged=logged)] == []
    assert order.reach(100.0 + PATIENCE_SECONDS) == [60.0, *map(float, range(66, 100))]
