from typing import Any

import msgspec
import numpy as np
import pytest

from alerts.finding import Finding
from simulator import Cluster, ClusterSpec, Fault
from simulator.cluster.layout import JobSpec
from slowrank.telemetry import NodeEvent, NodeSample, Subject, Suspicion
from store.telemetry.buckets import NodeLatest, SampleRollup, StepRollup
from streams.files.replay import findings_of
from streams.node.batching import BatchBySecond
from streams.pipeline import Pipeline, local_pipeline
from streams.runtime.snapshots.state_codec import dumps, loads
from tests.roll_ups import unpacked
from tests.streams import traffic

T0 = 1_795_160_000.0


class Recorder:
    """A stage that notes what it is given."""

    def __init__(self, outputs=()):
        self.records, self.ticks, self._outputs = [], [], list(outputs)

    def process(self, record):
        self.records.append(record)
        return self._outputs

    def tick(self, event_time):
        self.ticks.append(event_time)
        return ()


class Broken(Recorder):
    def process(self, record):
        raise ZeroDivisionError

    def tick(self, event_time):
        raise KeyError


def event(ts, node="n"):
    return NodeEvent(cluster="c", node=node, ts=ts, source="kmsg", code="xid.79", subject={"gpu_index": 1})


def suspicion_about(record):
    subject = Subject(type="node", cluster=record.cluster, node=record.node)
    return Suspicion(
        cluster=record.cluster,
        detector="d",
        family="clocks",
        kind="clock.low",
        state="raise",
        subject=subject,
        ts=record.ts,
        onset=record.ts,
        onset_lo=record.ts,
        onset_hi=record.ts,
        score=1.0,
        log_likelihood_ratio=1.0,
    )


def test_each_record_goes_to_its_stage():
    """Samples and events to the node stage, steps to the job stage, suspicions to the finding stage."""
    node, job, finding = Recorder(), Recorder(), Recorder()
    pipeline = Pipeline(node=node, job=job, finding=finding)
    sample, step = next(traffic.nodes(count=1, seconds=1)), next(traffic.job(steps=1))
    for record in (sample, event(T0), step):
        pipeline.process(record)
    assert [type(r) for r in node.records] == [NodeSample, NodeEvent]
    assert job.records == [step]
    assert finding.records == []


def test_every_second_of_event_time_ticks_every_stage_once():
    """All stages see the same whole seconds, in order, without gaps."""
    node, job, finding = Recorder(), Recorder(), Recorder()
    pipeline = Pipeline(node=node, job=job, finding=finding)
    for i in range(100):
        pipeline.process(event(T0 + i / 3))
    pipeline.finish()
    assert node.ticks == [T0 + s for s in range(34)]
    assert node.ticks == job.ticks == finding.ticks


def test_what_is_kept_back_is_taken_at_the_end():
    """The last sample of a node ahead of the others belongs to a second that never passes."""

    class Taken(Recorder):
        def process_many(self, records):
            self.records += records
            return ()

    node = Taken()
    pipeline = Pipeline(node=BatchBySecond(node), job=Recorder(), finding=Recorder())
    samples = [
        NodeSample(schema=1, cluster="c", node=f"n{k}", boot_id="b", seq=second, ts=T0 + second + 0.3 * k)
        for second in range(10)
        for k in range(5)
    ]
    for sample in samples:
        pipeline.process(sample)
    pipeline.finish()
    assert sorted(node.records, key=lambda s: s.ts) == sorted(samples, key=lambda s: s.ts)


def test_what_comes_out_at_the_end_is_weighed_although_its_second_has_passed():
    """Of nodes that all send on the whole second, the later ones are kept back when it has passed already."""

    class Suspicious(Recorder):
        def process_many(self, records):
            return [suspicion_about(r) for r in records]

    weighed, heard = [], []

    class Weighing(Recorder):
        def process(self, record):
            heard.append(record.subject.node)
            return ()

        def tick(self, event_time):
            weighed.append(list(heard))
            return ()

    pipeline = Pipeline(node=BatchBySecond(Suspicious()), job=Recorder(), finding=Weighing())
    for second in (100.0, 101.0):
        for k in range(8):
            pipeline.process(
                NodeSample(schema=1, cluster="c", node=f"n{k}", boot_id="b", seq=int(second), ts=second)
            )
    pipeline.finish()
    assert sorted(weighed[-1]) == sorted(2 * [f"n{k}" for k in range(8)])


def test_a_lone_source_that_goes_on_ends_the_stream_at_its_last_record_but_one():
    """What a job whose steps take a minute shows of another one that has stopped is not three steps late."""
    node, job, finding = Recorder(), Recorder(), Recorder()
    pipeline = Pipeline(node=node, job=job, finding=finding)
    for i in range(20):
        pipeline.process(event(T0 + 60.0 * i, node=f"n{i % 4}" if i < 10 else "n0"))
    pipeline.finish()
    assert node.ticks[-1] == job.ticks[-1] == T0 + 60.0 * 18
    assert finding.ticks == [*node.ticks, T0 + 60.0 * 19]


def test_one_clock_ahead_does_not_end_the_stream_later():
    """Nodes are not silent because one tells a later time; what it made suspect is weighed all the same."""
    node, job, finding = Recorder(), Recorder(), Recorder()
    pipeline = Pipeline(node=node, job=job, finding=finding)
    for i in range(40):
        pipeline.process(event(T0 + i / 4 + 30.0 * (i % 4 == 3), node=f"n{i % 4}"))
    pipeline.finish()
    assert node.ticks[-1] == job.ticks[-1] == T0 + 10.0
    assert finding.ticks == [*node.ticks, T0 + 40.0]


def test_healthy_nodes_beside_a_clock_ahead_leave_no_finding():
    """Thirty seconds ahead, one of four nodes makes the end of the stream no silence of the others."""
    found = []
    pipeline = local_pipeline()
    for sample in traffic.nodes(count=4, seconds=90):
        ahead = 30.0 if sample.node == "node-3" else 0.0
        found += pipeline.process(msgspec.structs.replace(sample, ts=sample.ts + ahead))
    found += pipeline.finish()
    assert [
        f.kind for f in found if f.status == "open" and f.kind.startswith(("self.", "node.", "exp"))
    ] == []


def test_a_stage_that_raises_does_not_end_the_stream():
    """A record on which a stage fails is counted and left out; what follows is processed."""
    job, finding = Recorder(), Recorder()
    pipeline = Pipeline(node=Broken(), job=job, finding=finding)
    for i in range(10):
        assert pipeline.process(event(T0 + i)) == []
    pipeline.process(next(traffic.job(steps=1)))
    assert pipeline.set_aside["NodeEvent"] == 10
    assert pipeline.set_aside["Broken"] > 0
    assert len(job.records) == 1


def test_an_xid_becomes_a_finding_at_once():
    """An explicit fatal event needs nothing else to open a finding about its GPU."""
    pipeline, found = local_pipeline(), []
    for i in range(10):
        found += pipeline.process(event(T0 + i, node=f"n{i % 3}") if i == 4 else event_free(T0 + i))
    found += pipeline.finish()
    assert {(f.kind, f.status, f.subject.gpu_index) for f in found} == {("xid.79", "open", 1)}
    assert all(isinstance(f, Finding) for f in found)


def event_free(ts):
    return NodeEvent(cluster="c", node="quiet", ts=ts, source="operator", code="note.nothing")


def test_roll_ups_count_every_record():
    """The rows handed on hold every sample and step exactly once."""
    rows: list[Any] = []
    pipeline = local_pipeline(on_rows=rows.extend)
    records = [*traffic.nodes(count=2, seconds=60), *traffic.job(steps=30)]
    for record in sorted(records, key=lambda r: r.ts):
        pipeline.process(record)
        pipeline.process(record)
    pipeline.finish()
    rows = unpacked(rows)
    hosts = {(r.node, r.bucket): r.n for r in rows if isinstance(r, SampleRollup) and r.block == "host"}
    steps = {(r.rank, r.bucket): r.n_steps for r in rows if isinstance(r, StepRollup)}
    assert (sum(hosts.values()), sum(steps.values())) == (120, 30 * 16)
    assert {r.node for r in rows if isinstance(r, NodeLatest)} == {"node-0", "node-1"}


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_the_order_among_sources_changes_nothing(seed):
    """Records of different nodes and jobs may overtake each other by a second: same causes, same onsets.

    Within a job the row that is read first marks the beginning of a step: ranks differ by milliseconds.
    """
    records = sorted(
        [
            *traffic.nodes(count=5, seconds=250, low_clock=(1, 2, 120), ends=T0 + 300),
            *traffic.job(slow=(5, 90, 1.5), ends=T0 + 300),
        ],
        key=lambda r: r.ts,
    )
    rng = np.random.default_rng(seed)
    delay = {node: rng.random() for node in sorted({r.node for r in records})}
    finals = []
    for order in (records, sorted(records, key=lambda r: r.ts + delay[r.node])):
        pipeline = local_pipeline()
        last: dict[str, Finding] = {}
        for record in order:
            last |= {f.id: f for f in pipeline.process(record)}
        last |= {f.id: f for f in pipeline.finish()}
        finals.append({(f.dedup_key, f.kind, f.status): f.onset for f in last.values()})
    assert finals[0] == pytest.approx(finals[1], rel=0, abs=0.01)
    assert "straggler.fail_slow" in {kind for _, kind, _ in finals[0]}


def test_suspicions_reach_the_finding_stage_in_the_order_they_were_made():
    """What a stage puts out is folded before the next record is taken."""
    first, second = (
        Suspicion(
            cluster="c",
            detector="d",
            family="host",
            kind="k",
            state="raise",
            subject=Subject(type="node", cluster="c"),
            ts=T0,
            onset=T0 + i,
            onset_lo=T0,
            onset_hi=T0,
            score=1.0,
            log_likelihood_ratio=1.0,
        )
        for i in range(2)
    )
    finding = Recorder()
    Pipeline(node=Recorder([first, second]), job=Recorder(), finding=finding).process(event(T0))
    assert finding.records == [first, second]


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_a_pipeline_goes_on_from_its_snapshot(share):
    """Saved and loaded before, within or after a fault, the findings are those of the undisturbed run."""
    job = JobSpec(dp=4, tp=8, step_seconds=1.0, job_id="j")
    faults = [Fault(kind="clock_lock", node=1, gpu=2, onset=100, magnitude=1.35)]
    records = list(Cluster(ClusterSpec(nodes=4, jobs=(job,), start=T0), seed=3, faults=faults).run(240.0))
    expected = list(findings_of(records, local_pipeline()))
    cut, first, second = int(share * len(records)), local_pipeline(), local_pipeline()
    found = [finding for record in records[:cut] for finding in first.process(record)]
    second.restore(loads(dumps(first.snapshot())))
    found += [finding for record in records[cut:] for finding in second.process(record)]
    assert "straggler.fail_slow" in {finding.kind for finding in expected}
    assert [*found, *second.finish()] == expected
