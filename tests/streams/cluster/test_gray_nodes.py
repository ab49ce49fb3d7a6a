"""Nodes with several weak signs: what the minutes of a cluster's nodes show together."""

from functools import cache
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detectors.node.gray_envelope import Envelope
from simulator import Cluster, ClusterSpec, Fault, JobSpec
from slowrank.telemetry import MinuteMeans, NodeEvent, NodeSample
from streams.cluster.gray_model import fingerprint
from streams.cluster.gray_nodes import FORGET_SECONDS
from streams.config.gray_training import fit
from streams.config.settings import Configs, Layer, Tuning
from streams.config.stages import gray_nodes, node_stage
from streams.files.replay import as_ndjson, findings_of
from streams.gray_features import FEATURES
from streams.node.minute_means import MinuteSums
from streams.pipeline import local_pipeline
from tests.streams.cluster.weak_signs import REGION, SICK, T0, TUNING, samples


class Heard:
    """A finding stage that notes what it is given."""

    def __init__(self):
        self.said: list[Any] = []

    def process(self, record):
        self.said.append(record)
        return ()

    def tick(self, event_time):
        return ()


def minutes(records):
    """What the nodes tell of their minutes."""
    sums = MinuteSums()
    sums.take([r for r in records if isinstance(r, NodeSample)])
    return sums.tick(float("inf"))


def told(rows, tuning=TUNING, *, stage=None, until=T0 + 10_000.0):
    """What becomes of minutes that come when they are due."""
    heard = Heard()
    stage = stage or gray_nodes(heard, tuning)
    for row in rows:
        stage.tick(row.ts - 0.5)
        assert stage.process(row) == ()
    stage.tick(until)
    return heard.said


WEAK = minutes(samples(minutes=14))


def test_a_node_with_weak_signs_is_suspected_and_cleared():
    """After three minutes of five, from the first of them on; five well ones end it. It convicts nobody."""
    found = told(WEAK)
    assert {(s.kind, s.subject.node, s.onset - T0) for s in found} == {("gray.node", SICK, 120.0)}
    assert [(s.state, s.ts - T0) for s in found] == [("raise", 310.0), ("update", 370.0), ("clear", 670.0)]
    first = found[0]
    assert (first.overwhelming, first.severity, first.log_likelihood_ratio) == (False, "warning", 1.0)
    assert first.score > 1.0
    assert {e.metric for e in first.evidence} <= set(REGION.features)
    assert fingerprint(REGION) in first.evidence[0].note


def test_without_a_model_nothing_is_compared():
    """Minutes that some worker tells all the same are taken out, and lead to nothing."""
    assert told(WEAK, Tuning()) == []


def test_all_else_goes_on_at_once():
    """The stage within gets every other suspicion, in order."""
    heard = Heard()
    stage, other = gray_nodes(heard, TUNING), told(WEAK)[0]
    stage.process(other)
    assert heard.said == [other]


@settings(max_examples=25, deadline=None)
@given(order=st.randoms(use_true_random=False))
def test_order_and_repeats_change_nothing(order):
    """Minutes of different nodes come in any order until they are due, and some come twice."""
    rows = [row for row in WEAK for _ in range(order.choice((1, 1, 2)))]
    due = sorted({row.ts for row in rows})
    heard = Heard()
    stage = gray_nodes(heard, TUNING)
    for ts in due:
        now = [row for row in rows if row.ts == ts]
        order.shuffle(now)
        for row in now:
            stage.process(row)
        stage.tick(ts)
    assert heard.said == told(WEAK)


def test_of_two_minutes_of_a_node_the_fuller_counts():
    """A node that moved to another partition is told of by both."""
    part = [
        msgspec.structs.replace(row, samples=1, means={"host.load1": 1e6})
        for row in WEAK
        if row.node == "node-5"
    ]
    assert told(sorted([*WEAK, *part], key=lambda s: s.ts)) == told(WEAK)
    assert told(sorted([*part, *WEAK], key=lambda s: s.ts)) == told(WEAK)


def test_a_late_minute_changes_no_verdict():
    """It is counted; the window was judged with those who had come."""
    heard = Heard()
    stage = gray_nodes(heard, TUNING)
    on_time = [row for row in WEAK if (row.node, row.start) != ("node-1", T0 + 240)]
    [late] = [row for row in WEAK if row not in on_time]
    told(on_time, stage=stage)
    before = list(heard.said)
    assert [s.state for s in before] == ["raise", "update", "clear"]
    assert stage.process(late) == ()
    stage.tick(T0 + 20_000.0)
    assert (heard.said, stage.ignored) == (before, {"late": 1})


def test_too_few_nodes_are_not_compared():
    """With seven nobody is told."""
    few = {f"node-{n}" for n in range(7)}
    assert told([row for row in WEAK if row.node in few]) == []


def spoilt(row, **changes):
    return msgspec.structs.replace(row, **changes)


HOSTILE = {
    "not a number": {"host.load1": float("nan")},
    "endless": {"host.load1": float("inf"), "host.run_queue": float("-inf")},
    "huge": {"host.load1": 1.7e308, "host.run_queue": -1.7e308},
    "strange": {"": 1.0, "'; DROP TABLE findings; --": 2.0, "gpu.power_watts\x00": 3.0},
    "empty": {},
}


@pytest.mark.parametrize("readings", HOSTILE.values(), ids=HOSTILE)
def test_strange_readings_are_not_read(readings):
    """Of one node in all its minutes: it is as usual, and the others are judged as before."""
    rows = [spoilt(row, means=readings) if row.node == "node-5" else row for row in WEAK]
    found = told(rows)
    assert {(s.subject.node, s.state) for s in found} == {(SICK, s) for s in ("raise", "update", "clear")}


def test_features_that_nobody_reads_are_as_usual():
    """All nodes alike are without some, or without any."""
    bare = [spoilt(row, means={}) for row in WEAK]
    assert told(bare) == []
    some = [spoilt(r, means={k: v for k, v in r.means.items() if k != "host.load1"}) for r in WEAK]
    assert {s.subject.node for s in told(some)} == {SICK}


def test_minutes_that_are_none_are_counted():
    """Between two minutes, or an hour ahead."""
    stage = gray_nodes(Heard(), TUNING)
    stage.tick(T0)
    for row in (
        spoilt(WEAK[0], start=T0 + 0.5),
        spoilt(WEAK[0], start=T0 + 36_000.0),
    ):
        assert stage.process(row) == ()
    stage.tick(T0 + 100_000.0)
    assert stage.ignored == {"malformed": 1, "early": 1}


def test_a_node_that_left_is_forgotten():
    """What it did an hour before it came back is not counted with what it does now."""
    later = 120.0 + FORGET_SECONDS
    early = [row for row in WEAK if row.start < T0 + 240]
    again = [spoilt(row, start=row.start + later, ts=row.ts + later) for row in WEAK if row.start == T0 + 240]
    rest = [
        spoilt(row, start=row.start + k * 60, ts=row.ts + k * 60)
        for k in range(int(later / 60))
        for row in WEAK
        if row.start == T0 + 240 and row.node != SICK
    ]
    assert told([*early, *rest, *again]) == []


def modes(**tables):
    return Tuning([Layer(where="f", modes={"gray": "shadow"}, **tables)], Configs(gray=REGION))


def test_modes_hold_for_what_it_says():
    """In shadow it is marked, off it says nothing but the end of what was said, by cluster."""
    assert [(s.shadow, s.state) for s in told(WEAK, modes())] == [
        (True, "raise"), (True, "update"), (False, "clear"),
    ]  # fmt: skip
    assert {s.shadow for s in told(WEAK, modes(cluster="d"))} == {False}
    off = Tuning([Layer(where="f", modes={"gray": "off"})], Configs(gray=REGION))
    assert {s.state for s in told(WEAK, off)} == {"clear"}


def test_each_cluster_has_its_model():
    """One that holds everything for healthy finds nothing; where there is none, nothing is compared."""
    wide = Envelope(REGION.features, REGION.center, REGION.precision, 1e6)
    layers = [Layer(where="f", cluster=name, knobs={"gray": r}) for name, r in (("c", wide), ("d", REGION))]
    both = sorted([*WEAK, *minutes(samples(minutes=14, cluster="d"))], key=lambda s: s.ts)
    assert {s.cluster for s in told(both, Tuning(layers))} == {"d"}
    assert {s.cluster for s in told(both, Tuning(layers).with_region(REGION))} == {"c", "d"}


def versions(records, tuning):
    """The last version of each finding, of what was only suspected, too."""
    pipeline = local_pipeline(tuning)
    last = {f.id: f for f in findings_of(records, pipeline)}
    assert not pipeline.set_aside
    return list(last.values())


def test_in_the_pipeline_it_suspects_and_opens_nothing():
    """Its suspicion goes the way of any other; without it the findings are the same to the last byte."""
    records = samples(minutes=12)
    found = versions(records, TUNING)
    assert [(f.kind, f.status, f.subject.node) for f in found] == [("gray.node", "suspected", SICK)]
    fault = NodeEvent(
        cluster="c",
        node="node-1",
        ts=T0 + 300,
        source="kmsg",
        code="xid.79",
        severity="critical",
        subject={"gpu_index": 1},
        message="x",
    )
    healthy = sorted([*samples(minutes=12, sick=(0, 0)), fault], key=lambda r: r.ts)
    found = versions(healthy, TUNING)
    assert [(f.kind, f.status, f.subject.node) for f in found] == [("xid.79", "open", "node-1")]
    assert as_ndjson(found) == as_ndjson(versions(healthy, Tuning()))


@pytest.mark.parametrize(
    ("modes", "region", "told"), [({}, None, 0), ({"gray": "off"}, REGION, 0), ({}, REGION, 30)]
)
def test_minutes_are_told_where_somebody_compares_them(modes, region, told):
    """Not without a model, and not where the detector is off."""
    stage = node_stage(Tuning([Layer(where="f", modes=modes)], Configs(gray=region)))
    said: list[Any] = []
    for record in samples(minutes=4):
        said += [*stage.process(record), *stage.tick(record.ts)]
    assert sum(isinstance(s, MinuteMeans) for s in said) == told


NODES = 12
SPEC = ClusterSpec(nodes=NODES, gpus=8, nics=2, send_seconds=10.0, jobs=(JobSpec(dp=NODES, tp=8),))
FAULT = Fault(kind="host_contention", node=4, onset=300.0, magnitude=1.5, duration=600.0)


def simulated(seed, *, minutes, fault=None):
    return list(Cluster(SPEC, seed=seed, faults=[fault] if fault else []).run(60.0 * minutes))


@cache
def learnt():
    pytest.importorskip("sklearn")
    return Tuning(base=Configs(gray=fit(simulated(1, minutes=40))))


@pytest.mark.slow
def test_a_busy_host_is_told_from_its_peers():
    """Under a learnt model, after three minutes, and until its signs end; beside its job it is found too."""
    all_found = told(minutes(simulated(7, minutes=22, fault=FAULT)), learnt())
    found = [s for s in all_found if s.catalogue_id == "gray"]
    assert {(s.kind, s.subject.node) for s in all_found if s not in found} == {
        ("host.cpu_contention", SPEC.node_name(4))
    }
    assert {(s.kind, s.subject.node) for s in found} == {("gray.node", SPEC.node_name(4))}
    assert [s.state for s in found if s.state != "update"] == ["raise", "clear"]
    assert SPEC.start + 240 <= found[0].onset <= SPEC.start + 360
    assert found[0].ts <= SPEC.start + 300 + 5 * 60
    assert found[0].evidence[0].metric in FEATURES


@pytest.mark.slow
def test_healthy_nodes_are_left_alone():
    """An hour of another healthy cluster gives nothing."""
    assert told(minutes(simulated(8, minutes=60)), learnt()) == []
