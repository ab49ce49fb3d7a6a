"""Measurements become one record of a node and round, however senders divide and delay them."""

import tracemalloc
from typing import Any

import pytest

from api.foreign import ticks
from api.foreign.measurement import Measurement
from api.foreign.ticks import SETTLE_SECONDS, UNKNOWN_SECONDS, Ticks, WriteScope
from slowrank.telemetry import NodeEvent, NodeSample
from slowrank.telemetry.columns import unpack
from slowrank.telemetry.schema import SAMPLE_SCHEMAS

NOW = 1795160400.0
SENDER = WriteScope("remote_write", "c")


def power(ts, value=400.0, gpu="0", **labels):
    return Measurement("DCGM_FI_DEV_POWER_USAGE", {"hostname": "n", "gpu": gpu, **labels}, ts, value)


def load(ts, value=1.0):
    return Measurement("node_load1", {"node": "n"}, ts, value)


def state(record):
    """The time of a sample, the power of its GPUs and the load of its host."""
    schema = SAMPLE_SCHEMAS[record.schema]
    gpus = [row["gpu.power_watts"] for row in unpack(schema.gpu, record.gpu)]
    host = next(unpack(schema.host, record.host), {})
    return record.ts - NOW, gpus, host.get("host.load1")


class Clock:
    """Sends measurements at their receive times and collects the records, second by second."""

    def __init__(self, *, sender=SENDER):
        self.ticks, self.sender, self.records, self.refused = Ticks(), sender, [], []

    def run(self, arrivals, until):
        """``arrivals``: (second, measurements); runs to second ``until``."""
        for second in range(until):
            now = NOW + second
            due = [m for at, measurements in arrivals if at == second for m in measurements]
            refused = self.ticks.add(due, self.sender, now)
            self.refused += refused.elements()
            records, bad = self.ticks.ready(now)
            assert not bad
            self.records += records
        return [state(record) for record in self.records if isinstance(record, NodeSample)]


def rounds(interval, count, make, delay=1):
    """A scrape every ``interval`` seconds, sent ``delay`` seconds later."""
    return [(n * interval + delay, make(NOW + n * interval)) for n in range(count)]


@pytest.mark.parametrize("interval", [5, 15, 30, 60])
def test_each_scrape_makes_one_record(interval):
    """At any interval; the resolution is learned from the times."""
    clock = Clock()

    found = clock.run(rounds(interval, 5, lambda ts: [power(ts), power(ts, 300.0, gpu="1")]), interval * 6)

    assert found == [(n * interval, [400.0, 300.0], None) for n in range(5)]
    (node,) = clock.ticks.nodes()
    assert (node.cluster, node.node, node.source, node.resolution) == ("c", "n", "remote_write", interval)


def test_requests_that_divide_a_scrape_are_put_together():
    """Each shard of a sender sends its own series, up to 5 s after the scrape."""
    arrivals = [
        *rounds(15, 4, lambda ts: [power(ts)], delay=1),
        *rounds(15, 4, lambda ts: [power(ts, 300.0, gpu="1")], delay=5),
    ]

    assert [gpus for _, gpus, _ in Clock().run(arrivals, 75)] == [[400.0, 300.0]] * 4


def test_two_exporters_of_a_node_make_one_record():
    """They are scraped at different moments of the interval; the record has the time of the later one."""
    arrivals = rounds(15, 4, lambda ts: [power(ts)]) + rounds(15, 4, lambda ts: [load(ts + 7.0)], delay=8)

    assert Clock().run(arrivals, 80) == [(n * 15 + 7.0, [400.0], 1.0) for n in range(4)]


def test_the_slower_exporter_sets_the_pace():
    """Else every second record would lack the GPUs, as if they were lost."""
    arrivals = rounds(30, 4, lambda ts: [power(ts)]) + rounds(15, 7, lambda ts: [load(ts)])

    found = Clock().run(arrivals, 150)

    assert [gpus for _, gpus, _ in found[1:]] == [[400.0]] * (len(found) - 1)
    assert len(found) >= 4


def test_a_lost_scrape_is_a_gap():
    """The rounds after it are whole again, and the resolution stays."""
    arrivals = rounds(15, 8, lambda ts: [power(ts), load(ts)])
    del arrivals[4]

    found = Clock().run(arrivals, 150)

    assert [ts for ts, _, _ in found] == [0, 15, 30, 45, 75, 90, 105]


def test_a_single_round_waits_for_a_second_one():
    """Without one it is sent after a minute, the longest usual interval."""
    clock = Clock()

    assert clock.run([(0, [power(NOW)])], int(UNKNOWN_SECONDS)) == []
    assert clock.run([], int(UNKNOWN_SECONDS) + 2) == [(0, [400.0], None)]


def test_what_is_sent_twice_counts_once():
    """A sender repeats a request that it got no answer to."""
    arrivals = rounds(15, 3, lambda ts: [power(ts)]) + rounds(15, 3, lambda ts: [power(ts)], delay=3)

    assert len(Clock().run(arrivals, 60)) == 3


def test_an_xid_is_an_event_beside_the_sample():
    """The change of the gauge, at the time of its round."""
    clock = Clock()

    def make(ts):
        code = 79.0 if ts >= NOW + 30 else 0.0
        return [Measurement("DCGM_FI_DEV_XID_ERRORS", {"hostname": "n", "gpu": "5"}, ts, code), power(ts)]

    clock.run(rounds(15, 4, make), 75)

    (event,) = [record for record in clock.records if isinstance(record, NodeEvent)]
    assert (event.code, event.subject, event.ts) == ("xid.79", {"gpu_index": 5, "xid": 79}, NOW + 30)


def test_the_board_of_a_gpu_comes_from_labels():
    """UUID and serial number, as dcgm-exporter names them, are those of the GPU at its index."""
    clock = Clock()

    def make(ts):
        return [power(ts, uuid="GPU-8f1c", dcgm_fi_dev_serial="1654"), power(ts, gpu="1", uuid="GPU-9a00")]

    clock.run(rounds(15, 2, make), 60)

    assert clock.records[0].labels == {"gpu.0": "GPU-8f1c/1654", "gpu.1": "GPU-9a00"}


def test_job_and_location_come_from_labels():
    """A node that two jobs share belongs to none of them."""
    clock = Clock()
    labels = {"hpc_job": "4711", "rack": "r1", "switch": "s/1"}
    both = [power(NOW + 15, **labels), power(NOW + 15, gpu="1", **labels | {"hpc_job": "4712"})]

    clock.run([(1, [power(NOW, **labels)]), (16, both)], 90)

    assert [record.job_id for record in clock.records] == ["4711", None]
    assert clock.records[0].labels == {"rack": "r1", "switch": "s/1"}


@pytest.mark.parametrize(
    ("measurement", "reason"),
    [
        (Measurement("node_load1", {"job": "x"}, NOW, 1.0), "no_node"),
        (power(NOW, cluster="other"), "forbidden_cluster"),
        (power(NOW - 90_000), "bad_time"),
        (power(NOW + 400), "bad_time"),
    ],
)
def test_what_cannot_be_used_is_refused_by_reason(measurement, reason):
    """Others of the same request are used."""
    clock = Clock(sender=WriteScope("otlp", "c", ("c",)))

    clock.run([(0, [measurement, power(NOW)])], 1)

    assert clock.refused == [reason]


def test_a_measurement_of_a_round_that_is_over_is_refused():
    """Its record has been sent."""
    clock = Clock()
    clock.run(rounds(15, 3, lambda ts: [power(ts)]), 60)

    assert clock.ticks.add([power(NOW + 5, gpu="1")], SENDER, NOW + 60) == {"late": 1}


def test_what_fills_no_column_is_counted_and_no_error():
    """By reason, and unknown metrics by name up to a bound."""
    ticks.MAX_NAMES, kept = 2, ticks.MAX_NAMES
    try:
        clock = Clock()
        names = ["go_a", "go_b", "go_a", "go_c", "go_d"]
        sent = [Measurement(name, {"node": "n"}, NOW, 1.0) for name in names]
        clock.run([(0, [*sent, power(NOW, float("nan"))])], 1)
    finally:
        ticks.MAX_NAMES = kept

    assert clock.ticks.unknown == {"go_a": 2, "go_b": 1, "other": 2}
    assert clock.ticks.unused == {"unknown_metric": 5, "blank": 1}
    assert clock.refused == []


def test_memory_is_bounded(monkeypatch):
    """By nodes, and by what waits of one node; a node that left makes room."""
    monkeypatch.setattr(ticks, "MAX_NODES", 2)
    monkeypatch.setattr(ticks, "MAX_WAITING", 3)
    made = Ticks()
    nodes = [power(NOW, hostname=name) for name in ("a", "b", "c")]

    assert made.add(nodes, SENDER, NOW) == {"too_many_nodes": 1}
    assert made.add([power(NOW, gpu=str(n), hostname="a") for n in range(5)], SENDER, NOW) == {
        "too_many_waiting": 2
    }
    later = NOW + ticks.FORGET_SECONDS + 1
    assert made.add([power(later, hostname="c")], SENDER, later) == {}


def test_long_labels_do_not_wait():
    """A request may have megabytes of them: what waits of a measurement is as large with them as without."""
    made = Ticks()
    tracemalloc.start()
    for n in range(20):
        made.add([power(NOW, pod=str(n) + 10**6 * "x", cpu=10**6 * "x")], SENDER, NOW)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert made.waiting == 20
    assert held < 10**6


def test_what_waits_is_counted():
    """Each measurement once, until its round is complete or its node is forgotten."""
    made = Ticks()
    for second in (0, 15, 30):
        made.add([power(NOW + second, gpu=str(n)) for n in range(4)] * 2, SENDER, NOW + second)
    assert made.waiting == 12
    made.ready(NOW + 37)
    assert made.waiting == sum(len(node.waiting) for node in made._nodes.values()) == 4
    made._forget(NOW + 4000)
    assert made.waiting == 0


class Scanned(dict[Any, Any]):
    """Counts how often it is read from one end to the other."""

    scans = 0

    def __iter__(self):
        self.scans += 1
        return super().__iter__()

    def values(self):
        self.scans += 1
        return super().values()


@pytest.mark.parametrize("count", [3, 60])
def test_a_node_that_catches_up_is_read_once_for_all_its_rounds(count):
    """Other senders wait meanwhile."""
    made = Ticks()
    for n in range(count):
        made.add([power(NOW - 900 + 15 * n, gpu=str(g)) for g in range(8)], SENDER, NOW)
    (node,) = made._nodes.values()
    node.waiting = waiting = Scanned(node.waiting)
    records, _ = made.ready(NOW + 10)
    assert [record.ts - NOW + 900 for record in records] == [15.0 * n for n in range(count - 1)]
    assert made.waiting == 8
    assert waiting.scans <= 2


def test_nodes_that_were_named_once_make_room_within_minutes(monkeypatch):
    """A request full of wrong names keeps no real node out for long, and those that go on sending stay."""
    monkeypatch.setattr(ticks, "MAX_NODES", 10)
    made = Ticks()
    for second in (0, 15):
        made.add([power(NOW + second, hostname="real")], SENDER, NOW + second)
    wrong = [power(NOW + 20, hostname=f"wrong{n}") for n in range(30)]
    assert made.add(wrong, SENDER, NOW + 20) == {"too_many_nodes": 21}
    assert made.add([power(NOW + 30, hostname="new")], SENDER, NOW + 30) == {"too_many_nodes": 1}
    for second in range(30, 390, 15):
        made.add([power(NOW + second, hostname="real")], SENDER, NOW + second)
        made.ready(NOW + second)
    assert made.add([power(NOW + 390, hostname="new")], SENDER, NOW + 390) == {}
    assert [node.node for node in made.nodes()] == ["new", "real"]


def test_a_node_of_the_longest_interval_keeps_its_place(monkeypatch):
    """Its second round comes in time, though the first is a record and others ask for its place meanwhile."""
    monkeypatch.setattr(ticks, "MAX_NODES", 1)
    made = Ticks()
    for second in (0, 300, 600):
        assert made.add([power(NOW + second)], SENDER, NOW + second + 5) == {}
        for later in range(second + 10, second + 300, 10):
            made.ready(NOW + later)
            assert made.add([power(NOW + later, hostname="new")], SENDER, NOW + later) == {
                "too_many_nodes": 1
            }
    assert [(node.node, node.resolution) for node in made.nodes()] == [("n", 300.0)]


def test_no_single_request_takes_all_the_room(monkeypatch):
    """What is refused of it comes again with the next scrape."""
    monkeypatch.setattr(ticks, "MAX_NEW_NODES", 4)
    made = Ticks()
    nodes = [power(NOW, hostname=f"n{n}") for n in range(6)]
    assert made.add(nodes, SENDER, NOW) == {"too_many_nodes": 2}
    assert made.add(nodes, SENDER, NOW) == {}
    assert len(made.nodes()) == 6


def test_refused_nodes_cost_little_while_there_is_no_room(monkeypatch):
    """All nodes are read once a second at most, and not for each measurement."""
    monkeypatch.setattr(ticks, "MAX_NODES", 100)
    searches = []
    monkeypatch.setattr(Ticks, "_forget", lambda made, now: searches.append(now))
    made = Ticks()
    made.add([power(NOW, hostname=f"n{n}") for n in range(200)], SENDER, NOW)
    assert len(searches) == 1


def test_a_round_that_makes_no_valid_record_is_counted():
    """Too many devices, here."""
    made = Ticks()
    made.add([power(NOW, gpu=str(n)) for n in range(600)], SENDER, NOW)

    records, refused = made.ready(NOW + UNKNOWN_SECONDS + SETTLE_SECONDS)

    assert (records, refused) == ([], {"too_many_instances": 1})
