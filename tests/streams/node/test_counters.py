import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.speed.plain_counters import Counters
from slowrank.telemetry.schema import MISSING_INT
from streams.node.counters import CounterBank

THERE = np.ones((1, 2), np.bool_)


def rise(bank, ts, *readings, node=0, there=THERE):
    """Increases [instances] of the one counter."""
    return bank.update(np.array([node]), np.array([ts]), {"n": np.array([readings])}, there)


def bank(nodes=2):
    return CounterBank(nodes, ("n",), 2)


def test_increases_are_per_instance_and_per_event_time():
    """The first reading has none; a later one is measured from the one before, however long ago."""
    counters = bank()
    assert np.isnan(rise(counters, 1.0, 10, 20).of("n")).all()
    assert rise(counters, 4.0, 16, 20).rate("n").tolist() == [[2.0, 0.0]]


def test_a_reading_that_is_missing_is_bridged():
    """The next one is compared with the last that was read."""
    counters = bank()
    rise(counters, 1.0, 10, 20)
    assert np.isnan(rise(counters, 2.0, MISSING_INT, 21).of("n")).tolist() == [[True, False]]
    assert np.isnan(rise(counters, 3.0, 9223372036854775794, 21).of("n")).tolist() == [[True, False]]
    again = rise(counters, 5.0, 18, 21)
    assert (again.of("n").tolist(), again.seconds_of("n").tolist()) == ([[8.0, 0.0]], [[4.0, 2.0]])


def test_a_reset_is_no_increase():
    """A counter that goes back is unknown once, and counts from there."""
    counters = bank()
    rise(counters, 1.0, 900, 0)
    back = rise(counters, 2.0, 5, 0)
    assert np.isnan(back.of("n")).tolist() == [[True, False]]
    assert rise(counters, 3.0, 7, 0).of("n").tolist() == [[2.0, 0.0]]


def test_an_instance_that_was_away_starts_anew():
    """What it counted meanwhile is not known to have happened since."""
    counters = bank()
    rise(counters, 1.0, 10, 20)
    rise(counters, 2.0, MISSING_INT, 21, there=np.array([[False, True]]))
    assert np.isnan(rise(counters, 3.0, 99, 22).of("n")).tolist() == [[True, False]]


def test_nodes_know_nothing_of_each_other():
    """Each has its own last reading, and forgets alone."""
    counters = bank()
    rise(counters, 1.0, 10, 20)
    rise(counters, 5.0, 1000, 2000, node=1)
    counters.forget(0)
    assert np.isnan(rise(counters, 6.0, 11, 21).of("n")).all()
    assert rise(counters, 6.0, 1001, 2003, node=1).of("n").tolist() == [[1.0, 3.0]]


def test_increases_go_by_name_and_not_by_place():
    """Devices in another order are compared with themselves; a new one, or one back again, has no past."""
    counters = Counters()
    said = [
        counters.update(float(ts), ids, np.array([readings])).delta[0].tolist()
        for ts, (ids, readings) in enumerate(
            [(("a", "b"), [10, 20]), (("b", "a"), [23, 11]), (("b", "c"), [24, 5]), (("a", "c"), [19, 6])]
        )
    ]
    np.testing.assert_array_equal(said, [[np.nan, np.nan], [3.0, 1.0], [1.0, np.nan], [np.nan, 1.0]])


readings = st.sampled_from([MISSING_INT, 0, 1, 5, 900, 2**62, 9223372036854775794])


@given(st.lists(st.tuples(st.integers(1, 9), readings, readings), max_size=20))
def test_one_node_alone_counts_as_one_of_many(samples):
    """The counters of one node and the bank of all nodes give the same increases and rates."""
    one, many, ts = Counters(), bank(), 0.0
    for seconds, *values in samples:
        ts += seconds
        own, of_all = one.update(ts, ("a", "b"), np.array([values])), rise(many, ts, *values, node=1)
        np.testing.assert_array_equal(own.delta[0], of_all.of("n")[0])
        np.testing.assert_array_equal(own.delta[0] / own.seconds[0], of_all.rate("n")[0])
