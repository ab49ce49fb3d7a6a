"""Heartbeats that wait for the lanes of which nothing is known."""

from hypothesis import given
from hypothesis import strategies as st

from slowrank.telemetry import Heartbeat, StageMessage, encode
from streams.runtime.partitions.heartbeats import PATIENCE_SECONDS, HeartbeatGate
from streams.suspicions import Claim, Location

SUSPICION = Claim(
    detector="d",
    catalogue_id="silence",
    family="silence",
    kind="node.silent",
    subject=Location("c", "n").whole_node(),
    weight=1.0,
).suspicion("raise", ts=5.0, onset=1.0)


def beats(lane, *seconds):
    return [Heartbeat(cluster="c", ts=float(second), partition=lane) for second in seconds]


def test_suspicions_never_wait():
    """Nothing is known yet: heartbeats wait, all else goes out."""
    told = HeartbeatGate()
    assert list(told.pass_on([*beats("a", 2, 4), SUSPICION])) == [SUSPICION]
    assert told.look([], 0.0) == beats("a", 2, 4)
    assert told.pass_on([*beats("a", 6), SUSPICION]) == [*beats("a", 6), SUSPICION]


def test_what_waited_goes_out_once_and_in_order_of_time():
    """However the lanes were read."""
    told = HeartbeatGate()
    told.pass_on(beats("b", 2, 4, 6))
    told.pass_on(beats("a", 4, 6))
    assert told.look(["c"], 0.0) == []
    assert [(s.ts, s.partition) for s in told.look([], 1.0)] == [
        (2, "b"),
        (4, "a"),
        (4, "b"),
        (6, "a"),
        (6, "b"),
    ]
    assert told.look([], 2.0) == []


def test_a_lane_that_never_tells_is_waited_for_so_long():
    """And again when another one comes later."""
    told = HeartbeatGate()
    told.pass_on(beats("a", 2))
    assert told.look(["b"], 100.0) == []
    assert told.look(["b"], 99.9 + PATIENCE_SECONDS) == []
    assert told.look(["b"], 100.0 + PATIENCE_SECONDS) == beats("a", 2)
    assert told.look([], 500.0) == []
    assert told.look(["d"], 501.0) == []
    assert told.held
    assert told.look(["d"], 501.0 + PATIENCE_SECONDS) == []
    assert not told.held


@given(st.lists(st.tuples(st.integers(0, 50), st.booleans()), max_size=40))
def test_nothing_is_lost_and_nothing_told_twice(moves):
    """Whatever waits for whom, and for how long."""
    told = HeartbeatGate()
    out: list[StageMessage] = []
    sent: list[StageMessage] = []
    for now, (second, untold) in enumerate(moves):
        said = [*beats(f"l{now}", second), SUSPICION]
        sent += said
        out += told.pass_on(said)
        out += told.look(["x"] * untold, float(now))
    out += told.look([], 1000.0)
    assert [s for s in out if not isinstance(s, Heartbeat)] == [SUSPICION] * len(moves)
    assert sorted(map(encode, out)) == sorted(map(encode, sent))
