"""Topics that grow while telemetry flows: what is found and stored is what nothing disturbed would give."""

import asyncio
import time
from collections import Counter

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.partitioner import murmur2

from benchmarks.chaos.story import roll_up_rows
from simulator import Cluster, ClusterSpec, Fault
from simulator.cluster.layout import JobSpec
from slowrank.telemetry import NodeEvent, Suspicion, decode_message, encode
from streams.files.replay import findings_of
from streams.pipeline import local_pipeline
from streams.runtime.kafka.record_producer import key_of, topic_of
from tests.priority import COMES_FIRST, FIRST
from tests.streams.runtime.harness import rig

# Records come at the nodes' own pace: a worker that waits for a processor falls behind, and rows are late for
# their buckets.
pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(420),
    *([] if FIRST else [pytest.mark.alone]),
]

SPEED = 2.0
SECONDS, GROWS = 200.0, 90.0
BEFORE, AFTER = 4, 8
CLUSTER, JOB = "grown", "llm"

# Nodes. With the job and the cluster their keys move to another partition.
SLOW, OK, XID, FLAPS = 1, 2, 3, 4

# Node -> seconds of the clock after which its exporter sees that the topics grew.
KNOWS = {0: 0.0, 1: 0.0, 2: 10.0, 3: 0.0, 4: 25.0, 5: 50.0}

LOST_CONTACT = {"exporter.stale", "node.silent", "self.telemetry_gap"}
PROMPT_SECONDS = 20.0


def home(key, partitions):
    return (murmur2(key) & 0x7FFFFFFF) % partitions


@pytest.fixture
def installation(kafka_bootstrap, database, tmp_path):
    with rig(kafka_bootstrap, database, tmp_path, partitions=BEFORE, before=COMES_FIRST) as made:
        yield made


def story():
    """A GPU that is slow before and after, a port that begins to flap and an XID while keys move."""
    # So that no record is ahead of the clock, and the last is of just now.
    start = float(int(time.time() - SECONDS / SPEED - 5))
    job = JobSpec(dp=6, tp=4, step_seconds=1.0, job_id=JOB)
    spec = ClusterSpec(nodes=6, gpus=4, nics=4, name=CLUSTER, jobs=(job,), start=start)
    faults = [
        Fault(kind="clock_lock", node=SLOW, gpu=2, onset=50, magnitude=1.35),
        Fault(kind="nic_flap", node=FLAPS, gpu=1, onset=GROWS + 2),
    ]
    xid = NodeEvent(
        cluster=CLUSTER,
        node=spec.node_name(XID),
        boot_id="sim-boot-1",
        seq=1,
        ts=start + GROWS + 5.5,
        source="kmsg",
        code="xid.48",
        severity="critical",
        subject={"gpu_index": 0},
        message="NVRM: Xid (PCI:0000:1a:00): 48, Double Bit ECC Error",
    )
    return spec, sorted([*Cluster(spec, seed=7, faults=faults).run(SECONDS), xid], key=lambda r: r.ts)


class Exporters:
    """Sends records ``SPEED`` times as fast as they were made, each node to the partitions that it knows."""

    def __init__(self, installation, spec):
        self._rig = installation
        self._numbers = {spec.node_name(n): n for n in KNOWS}
        self._start = spec.start
        self.sent: dict[str, float] = {}

    async def send(self, records):
        producer = AIOKafkaProducer(
            bootstrap_servers=self._rig.bootstrap, acks="all", linger_ms=10, metadata_max_age_ms=500
        )
        await producer.start()
        began, grew, futures = time.monotonic(), None, []
        try:
            for record in records:
                due = began + (record.ts - self._start) / SPEED
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                topic, key = self._rig.prefix + topic_of(record), key_of(record)
                if grew is None and record.ts >= self._start + GROWS:
                    await asyncio.to_thread(self._rig.grow, AFTER)
                    await self._see_growth(producer)
                    grew = time.monotonic()
                knows = grew is not None and time.monotonic() >= grew + KNOWS[self._numbers[record.node]]
                place = home(key, AFTER if knows else BEFORE)
                futures.append(await producer.send(topic, value=encode(record), key=key, partition=place))
                self.sent[type(record).__name__] = time.time()
            await asyncio.gather(*futures)
        finally:
            await producer.stop()

    async def _see_growth(self, producer):
        """Wait until the broker, which learns of it after the controller, shows the new partitions."""
        for topic in ("node-samples", "node-events", "job-steps"):
            while len(await producer.partitions_for(self._rig.prefix + topic)) < AFTER:
                await producer.client.force_metadata_update()
                await asyncio.sleep(0.05)


def logged_suspicions(installation):
    """(log time, suspicion) of all."""
    messages = asyncio.run(installation._read("suspicions"))
    taken = ((m.timestamp / 1000, decode_message(m.value)) for m in messages)
    return [(at, message) for at, message in taken if isinstance(message, Suspicion)]


def stored_rows(installation):
    found = Counter(
        {
            (t, node, instance, bucket.timestamp()): n
            for t, node, instance, bucket, n in installation.samples()
        }
    )
    for job, rank, bucket, n, _ in installation.steps():
        found["steps_10s", job, str(rank), bucket.timestamp()] = n
    return dict(found)


def told(findings):
    """(kind, node) of what people were told of."""
    return {(kind, node) for kind, node, status in findings if status in ("open", "resolved")}


def stored_findings(installation):
    return told(installation.rows("SELECT kind, node, status FROM findings WHERE cluster = %s", CLUSTER))


def test_topics_that_grow_under_load_lose_and_invent_nothing(installation):
    """From 4 to 8 partitions; exporters see it at once, or up to 50 s later than the workers (150 s)."""
    spec, records = story()
    calm = told((f.kind, f.subject.node, f.status) for f in findings_of(records, local_pipeline()))
    assert {kind for kind, _ in calm} >= {"straggler.fail_slow", "link.nic_flap", "ecc.uncorrectable"}
    workers = [installation.start(role) for role in ("detect", "detect", "sink")]
    for worker in workers:
        worker.wait_ready()
    exporters = Exporters(installation, spec)
    asyncio.run(exporters.send(records))
    expected = dict(roll_up_rows(records))
    installation.wait_until_read("detect", "sink", within=60)
    deadline = time.monotonic() + 60
    while (found := stored_findings(installation)) != calm and time.monotonic() < deadline:
        time.sleep(1)
    while stored_rows(installation) != expected and time.monotonic() < deadline:
        time.sleep(1)
    rows = stored_rows(installation)
    assert {key: (n, rows.get(key)) for key, n in expected.items() if rows.get(key) != n} == {}
    suspicions = logged_suspicions(installation)
    # When the last record was half a minute ago the nodes are silent indeed.
    lost = [s for _, s in suspicions if s.kind in LOST_CONTACT and s.onset < records[-1].ts - 5]
    assert [(s.kind, s.subject.node, s.state, s.onset - spec.start, s.ts - spec.start) for s in lost] == []
    assert found == calm
    prompt = min(at for at, s in suspicions if s.kind == "ecc.uncorrectable")
    assert prompt - exporters.sent["NodeEvent"] < PROMPT_SECONDS
    assert installation.dead_letters() == []
