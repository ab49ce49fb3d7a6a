"""What every stage must do, whichever it is: the runners rely on it."""

import math

import pytest

from alerts.finding import Finding
from slowrank.telemetry import JobSteps, NodeEvent, NodeSample, Suspicion
from slowrank.telemetry.columns import pack
from slowrank.telemetry.schema import GPU_V1, STEP_V1
from streams.cluster.stage import FindingStage
from streams.job.stage import JobStage
from streams.node.stage import NodeStage
from streams.pipeline import Pipeline
from tests.streams import traffic

T0 = 1_795_160_000.0


def node_records():
    events = [
        NodeEvent(
            cluster="c",
            node="node-1",
            ts=T0 + 100,
            source="kmsg",
            code="xid.48",
            boot_id="b",
            seq=1,
            subject={"gpu_index": 0},
        )
    ]
    samples = list(traffic.nodes(count=3, seconds=240, low_clock=(1, 2, 130), ends=T0 + 240))
    silent = [r for r in samples if r.node != "node-2" or r.ts < T0 + 150]
    return sorted([*silent, *events], key=lambda r: r.ts)


def job_records():
    return sorted(
        [
            *traffic.job(slow=(5, 90, 1.5), ends=T0 + 240, steps=150),
            *traffic.job(job_id="job-2", seed=3, ends=T0 + 240, steps=150),
        ],
        key=lambda r: r.ts,
    )


class Tap:
    """A stage that keeps what it is given."""

    def __init__(self):
        self.seen = []

    def process(self, record):
        self.seen.append(record)
        return ()

    def tick(self, event_time):
        return ()


def suspicion_records():
    tap = Tap()
    pipeline = Pipeline(node=NodeStage(), job=JobStage(), finding=tap)
    for record in sorted([*node_records(), *job_records()], key=lambda r: r.ts):
        pipeline.process(record)
    pipeline.finish()
    return tap.seen


STAGES = {
    "node": (NodeStage, node_records),
    "job": (JobStage, job_records),
    "finding": (FindingStage, suspicion_records),
}


@pytest.fixture(scope="module", params=list(STAGES))
def case(request):
    make, records = STAGES[request.param]
    return make, records()


def run(stage, records, *, rhythm=1):
    """Process the records with a tick at every whole second passed, and ``rhythm`` - 1 between."""
    found, second = [], math.floor(records[0].ts)
    for record in records:
        while second <= record.ts:
            for k in range(rhythm):
                if second + k / rhythm <= record.ts:
                    found += stage.tick(second + k / rhythm)
            second += 1
        found += stage.process(record)
    return found + list(stage.tick(float(second)))


def test_it_finds_something_in_its_records(case):
    """The records of this suite give every stage something to say, else the suite would prove nothing."""
    make, records = case
    assert run(make(), records)


def test_the_same_records_give_the_same_outputs(case):
    """No clock, no randomness, no order of a set decides anything."""
    make, records = case
    assert run(make(), records) == run(make(), records)


def test_ticking_more_often_changes_nothing(case):
    """Deadlines are judged by their own time."""
    make, records = case
    assert run(make(), records, rhythm=4) == run(make(), records)


def test_outputs_are_suspicions_or_findings_of_event_time(case):
    """What comes out carries the time of the records, never a later one."""
    make, records = case
    last = max(r.ts for r in records) + 2
    for output in run(make(), records):
        ts = output.last_seen_at if isinstance(output, Finding) else output.ts
        assert records[0].ts - 1 <= ts <= last
        if isinstance(output, Finding | Suspicion):
            assert math.isfinite(output.onset)
            assert output.onset <= ts


def test_a_record_sent_twice_changes_nothing(case):
    """At least once is what the log promises."""
    make, records = case
    twice = [r for record in records for r in (record, record)]
    assert run(make(), twice) == run(make(), records)


def test_records_of_other_topics_are_left_alone(case):
    """A stage says nothing about records it does not consume."""
    make, _ = case
    stage = make()
    sample, steps = next(traffic.nodes(count=1, seconds=1)), next(traffic.job(steps=1))
    own = {NodeStage: NodeSample, JobStage: JobSteps}.get(make)
    for record in (sample, steps):
        if own is not None and not isinstance(record, own):
            assert list(stage.process(record)) == []


@pytest.mark.parametrize("make", [NodeStage, JobStage])
@pytest.mark.parametrize("empty", ["gpus", "everything"])
def test_empty_and_unread_columns_are_no_error(make, empty):
    """A record that passed the codec is never an error, however little is in it."""
    stage = make()
    gpu = pack(GPU_V1, [{}, {}]) if empty == "gpus" else b""
    ids = ("0", "1") if empty == "gpus" else ()
    for n in range(50):
        stage.process(
            NodeSample(schema=1, cluster="c", node="n", boot_id="b", seq=n, ts=T0 + n, gpu_ids=ids, gpu=gpu)
        )
        rows = pack(STEP_V1, [{"step": n, "rank": 0, "ts": T0 + n}]) if empty == "gpus" else b""
        stage.process(
            JobSteps(schema=1, cluster="c", job_id="j", node="n", boot_id="b", seq=n, ts=T0 + n, rows=rows)
        )
        stage.tick(T0 + n)
