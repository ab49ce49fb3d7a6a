from alerts.finding import Finding
from slowrank.telemetry import Heartbeat, NodeAnnounced, NodeEvent, Suspicion
from streams.cluster.stage import FindingStage
from streams.node.stage import NodeStage
from streams.runtime.partitions.partition import FindingClock, FindingPartition, PartitionState

START = 1000


def heartbeat(partition, second):
    return Heartbeat(cluster="c", ts=float(second), partition=partition)


def play(clock, beats):
    """Feed (lane, second, logged) and return how far the clock is."""
    for lane, second, logged in beats:
        clock.update(heartbeat(lane, second), logged)
    return clock.watermark.time


def xid(second):
    return NodeEvent(
        cluster="c",
        node="n",
        ts=float(second),
        source="kmsg",
        code="xid.79",
        boot_id="b",
        subject={"gpu_index": 1},
    )


def together(*lanes, first=START, last=START + 60, behind=0.5):
    return [(lane, s, s + behind) for s in range(first, last, 2) for lane in lanes]


def test_the_clock_is_that_of_the_slowest_lane():
    """Two lanes side by side: time goes as far as the one behind."""
    clock = FindingClock()
    assert play(clock, [*together("a", "b"), ("a", START + 60, START + 60.5)]) == START + 58


def test_a_lane_that_has_ended_is_left_out_after_fifteen_seconds():
    """When one lane reports no more, time stands for a while and then goes on with the others."""
    clock = FindingClock()
    play(clock, together("a", "b"))
    assert play(clock, together("a", first=START + 60, last=START + 72)) == START + 58
    assert play(clock, together("a", first=START + 72, last=START + 80)) == START + 78


def test_nobody_waits_for_the_last_events_of_a_lane():
    """A node loses a GPU; the events before it on that partition are minutes old."""
    clock, events, told = FindingClock(), PartitionState("x-node-events:3", NodeStage()), []
    for second in range(START, START + 300, 2):
        clock.update(heartbeat("x-node-samples:3", second), second + 0.5)
        if second % 60 == 0:
            beats = [o for o in events.process(xid(second), second + 0.6) if isinstance(o, Heartbeat)]
            told += [(beat.ts, clock.update(beat, second + 0.6)) for beat in beats]
        assert clock.watermark.time == second
    assert told


def test_where_there_are_only_events_they_tell_the_time():
    clock, events = FindingClock(), PartitionState("node-events:3", NodeStage())
    for second in range(START, START + 300, 2):
        for beat in events.process(xid(second), second + 0.6):
            if isinstance(beat, Heartbeat):
                clock.update(beat, second + 0.6)
    assert clock.watermark.time == START + 292


def test_lanes_that_catch_up_after_an_outage_are_waited_for():
    """After five minutes without any worker one lane is back first; what the other has to say counts too."""
    clock = FindingClock()
    play(clock, together("a", "b"))
    back = START + 360
    first = [("a", s, back + n * 0.01) for n, s in enumerate(range(START + 60, back, 2))]
    assert play(clock, first) == START + 58
    second = [("b", s, back + 10 + n * 0.01) for n, s in enumerate(range(START + 60, back, 2))]
    assert play(clock, second) == back - 2


def test_a_lane_ten_minutes_behind_is_not_waited_for():
    """A file sent at once does not make its findings wait for a node that fell silent in it."""
    clock = FindingClock()
    play(clock, [(lane, s, 5000.0) for lane, s, _ in together("a", "b")])
    rest = [("a", s, 5000.0) for s in range(START + 60, START + 4000, 2)]
    assert play(clock, rest) == START + 3998


def test_a_suspicion_whose_time_has_passed_is_weighed_at_once():
    """A fleet at rest sends no further heartbeat: what comes late must not wait for one."""
    lane = FindingPartition("suspicions:0", FindingStage())
    for second in range(START, START + 60, 2):
        lane.process(heartbeat("node-samples:0", second), second + 0.5)
    [late] = [s for s in NodeStage().process(xid(START + 20)) if isinstance(s, Suspicion)]
    [finding] = lane.process(late, START + 61.0)
    assert isinstance(finding, Finding)
    assert (finding.kind, finding.status) == ("xid.79", "open")


def test_announcements_of_a_fleet_whose_time_has_passed_wait_for_the_next_heartbeat():
    """Each would have two minutes of the cluster folded anew: a worker that is behind would stay so."""
    ticks = []

    class Counted(FindingStage):
        def tick(self, event_time):
            ticks.append(event_time)
            return super().tick(event_time)

    lane = FindingPartition("suspicions:0", Counted())
    for second in range(START, START + 60, 2):
        lane.process(heartbeat("node-samples:0", second), second + 0.5)
    before = len(ticks)
    for n in range(1000):
        lane.process(NodeAnnounced(cluster="c", node=f"n{n}", rack="r", ts=START + 20.0), START + 61.0)
    assert len(ticks) == before
    lane.process(heartbeat("node-samples:0", START + 60), START + 62.0)
    assert ticks[before:] == [START + 59.0, START + 60.0]
