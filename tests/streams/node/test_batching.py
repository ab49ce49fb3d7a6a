import pytest

from slowrank.telemetry import NodeEvent, NodeSample, Suspicion, encode
from streams.node.batching import BatchBySecond
from streams.node.stage import NodeStage
from streams.runtime.partitions.partition import PartitionState
from tests.streams import traffic


class Log:
    """A stage that answers with what it was given, and in which call."""

    def __init__(self):
        self.calls = []

    def process(self, record):
        self.calls.append(("one", record.seq))
        return ()

    def process_many(self, records):
        self.calls.append(("many", *(r.seq for r in records)))
        return []

    def tick(self, event_time):
        self.calls.append(("tick", event_time))
        return ()


def sample(seq):
    return NodeSample(schema=1, cluster="c", node=f"n{seq}", boot_id="b", seq=seq, ts=float(seq))


def test_samples_wait_for_the_tick_and_events_do_not():
    """What was gathered is taken in its order before time passes, once."""
    log = Log()
    stage = BatchBySecond(log)
    stage.process(sample(1))
    stage.process(NodeEvent(cluster="c", node="n1", seq=2, ts=2.0, source="kmsg", code="xid.79"))
    stage.process(sample(3))
    stage.tick(3.0)
    stage.tick(4.0)

    assert log.calls == [("one", 2), ("many", 1, 3), ("tick", 3.0), ("tick", 4.0)]


def later(seq, node, ts):
    return NodeSample(schema=1, cluster="c", node=node, boot_id="b", seq=seq, ts=ts)


def test_a_sample_of_the_second_just_begun_waits_for_its_end_and_a_clock_ahead_for_nobody():
    """So a node comes once a second; one ahead of the others is taken as it comes, in its order, and at the
    end of the stream nothing is left."""
    log = Log()
    stage = BatchBySecond(log)
    for record in (later(1, "a", 9.9), later(2, "a", 10.2), later(3, "b", 10.5), later(4, "b", 11.5)):
        stage.process(record)
    stage.tick(10.0)
    stage.process(later(5, "a", 11.2))
    stage.tick(11.0)
    stage.flush()

    taken = [call for call in log.calls if call[0] != "tick"]
    assert taken == [("many", 1, 3, 4), ("many", 2), ("many", 5)]


@pytest.mark.parametrize("cut", [401, 620, 623, 799])
def test_a_lane_built_again_brings_out_what_was_waiting(cut):
    """Samples that were acknowledged while they waited are not lost with the worker: the lane that is built
    from the log, its outputs dropped, goes on where the other one stood."""
    records = list(traffic.nodes(count=4, seconds=200, low_clock=(1, 2, 130), ends=1_795_160_000.0))

    def run(lane, part):
        return [s for r in part for s in lane.process(r, r.ts)]

    before, rebuilt = (
        PartitionState("l", BatchBySecond(NodeStage())),
        PartitionState("l", BatchBySecond(NodeStage())),
    )
    said = run(before, records[:cut])
    run(rebuilt, records[:cut])
    said += run(rebuilt, records[cut:])

    assert said == run(PartitionState("l", BatchBySecond(NodeStage())), records)
    assert [s.kind for s in said if isinstance(s, Suspicion) and s.state == "raise"] == ["clock.low"]


@pytest.mark.parametrize("more", range(1, 8))
def test_what_a_rebuild_drops_had_come_out_before_it(more):
    """Time that passed without records is not in the log, so that a rebuilt state processes the first samples
    after a silence earlier: what it brings out with them was sent by the state that it replaces."""
    start = 1_795_160_000.0
    times = [*range(50), *(90.5 + n for n in range(more))]
    records = [later(n, "a", start + t) for n, t in enumerate(times)]
    before, rebuilt = (PartitionState("l", BatchBySecond(NodeStage())) for _ in range(2))

    sent = [s for r in records[:50] for s in before.process(r, r.ts)]
    sent += before.reach(start + 85.0)
    sent += [s for r in records[50:] for s in before.process(r, r.ts)]
    dropped = [s for r in records for s in rebuilt.process(r, r.ts)]

    assert {encode(s) for s in dropped if isinstance(s, Suspicion)} <= {
        encode(s) for s in sent if isinstance(s, Suspicion)
    }
