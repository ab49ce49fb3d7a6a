"""The storing worker's watch over the whole pipeline, against real Kafka and a real database."""

import asyncio
import secrets
import time
import urllib.request

import psycopg
import pytest
from aiokafka.errors import KafkaError
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families
from servers.process import free_ports

from alerts.config import FindingConfig
from slowrank.settings import Settings
from slowrank.telemetry import BadRecord
from slowrank.telemetry.topics import DEAD_LETTERS
from store.findings.self_findings import save_self_finding
from store.pool import open_pool
from streams.runtime.kafka.dead_letters import dead_letter
from streams.runtime.kafka.message import Message
from streams.runtime.kafka.offsets import Probe
from streams.runtime.monitoring.load import group_of, latest
from streams.runtime.monitoring.metrics import SinkMetrics
from streams.runtime.monitoring.self_monitor import SelfMonitor
from tests.streams import traffic
from tests.streams.runtime.harness import rig, wait_for


@pytest.fixture
def installation(kafka_bootstrap, database, tmp_path):
    with rig(kafka_bootstrap, database, tmp_path) as made:
        yield made


class Clock:
    """Stands still but for what the test adds, so that a slow machine looks when the test says."""

    def __init__(self):
        self.start = time.time()
        self.ahead = 0.0

    def __call__(self):
        return self.start + self.ahead


async def groups_are_known(bootstrap):
    """A broker that has never had a consumer group needs a moment before it can say how far one is."""
    probe, deadline = Probe(bootstrap, "nobody"), time.monotonic() + 60
    try:
        while True:
            try:
                await probe.committed()
                return
            except KafkaError:
                assert time.monotonic() < deadline, "the broker does not answer for consumer groups"
                await asyncio.sleep(0.5)
    finally:
        await probe.close()


async def looks(installation, clock, moments):
    """Look at each moment (seconds from now) and return what slowrank says of itself after each."""
    await groups_are_known(installation.bootstrap)
    settings = Settings(
        kafka_bootstrap=installation.bootstrap, topic_prefix=installation.prefix, streams_stall_seconds=30
    )
    pool, said = open_pool(installation.dsn, max_size=1), []

    def store(finding):
        with pool.connection() as conn:
            save_self_finding(conn, finding, FindingConfig())

    metrics = SinkMetrics(CollectorRegistry())
    lookout = SelfMonitor(settings, store=store, metrics=metrics, wall=clock)
    try:
        for moment in moments:
            clock.ahead = moment
            await lookout.look()
            said.append(await asyncio.to_thread(installation.own_findings))
    finally:
        await lookout.close()
        pool.close()
    return said


def test_telemetry_nobody_reads_is_a_finding(installation):
    """Without a worker the detectors and the roll-ups fall behind: a finding within 15 s."""
    installation.send(traffic.nodes(count=1, seconds=3))
    first, later, after_twelve = asyncio.run(looks(installation, Clock(), [0, 6, 12]))
    assert first == later == []
    assert after_twelve == [("self.lag", "streams-detect", "open"), ("self.lag", "streams-sink", "open")]


def test_a_dead_letter_is_a_finding_until_ten_minutes_after_the_last(installation):
    """A restarted worker sees those of its predecessor, and closes what that one left open."""
    message = Message("node-samples", 0, 7, time.time(), b"?")
    letter = dead_letter(message, BadRecord("undecodable", "no msgpack"), topic=DEAD_LETTERS)
    installation.send_raw([(DEAD_LETTERS, letter.key, letter.value)])
    (opened,) = asyncio.run(looks(installation, Clock(), [0]))
    assert opened == [("self.dead_letters", "dead-letters", "open")]
    kept, ended = asyncio.run(looks(installation, Clock(), [500, 700]))
    assert kept == opened
    assert ended == [("self.dead_letters", "dead-letters", "resolved")]
    [(events,)] = installation.rows("SELECT array_agg(type ORDER BY seq) FROM events")
    assert events == ["finding.opened", "finding.resolved"]


def test_a_pipeline_that_is_well_says_nothing(installation):
    """What has nothing to end leaves no row."""
    assert asyncio.run(looks(installation, Clock(), [0, 100, 1000])) == [[], [], []]


@pytest.mark.slow
def test_workers_leave_their_load_on_the_brokers(installation):
    """By then it is in the health file, and the storing worker can read it."""
    worker = installation.start("detect").wait_ready()
    wait_for(lambda: worker.health().get("events") is not None, within=60, what="the worker")
    settings = Settings(topic_prefix=installation.prefix)

    async def left():
        probe = Probe(installation.bootstrap, "nobody")
        try:
            return await latest(probe, group_of(settings, "detect"), time.time())
        finally:
            await probe.close()

    wait_for(lambda: asyncio.run(left()) is not None, within=60, what="the load")
    report = asyncio.run(left())
    assert 0.0 <= report.load <= 1.0
    assert worker.health()["oldest_unprocessed_seconds"]


def scrape(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        families = text_string_to_metric_families(answer.read().decode())
        return {
            (s.name, *dict(sorted(s.labels.items())).values()): s.value for f in families for s in f.samples
        }


@pytest.fixture
def streams_login(installation):
    """DSN of a login that may do what the stream workers may, and no more."""
    name = f"login_{secrets.token_hex(8)}"
    with psycopg.connect(installation.dsn, autocommit=True) as conn:
        conn.execute(f"CREATE ROLE {name} LOGIN IN ROLE slowrank_streams")
        yield psycopg.conninfo.make_conninfo(installation.dsn, user=name)
        conn.execute(f"DROP ROLE {name}")


def test_a_sink_forgets_old_rollups_and_shows_how_it_is(installation, streams_login):
    """Under its least-privilege role it removes what is past the retention and serves its metrics."""
    installation.rows(
        "INSERT INTO samples_10s (bucket, cluster, node, instance, n) "
        "VALUES (now() - interval '30 days', 'c', 'old', '0', 1), (now(), 'c', 'new', '0', 1) RETURNING 1"
    )
    installation.rows(
        "INSERT INTO findings (id, dedup_key, cluster, kind, severity, status, title, subject_type, "
        "detector, onset, detected_at, last_seen_at, as_of, confidence, score, occurrences, doc) "
        "SELECT 'fnd_' || n, n, 'c', 'xid.31', 'warning', 'expired', n, 'gpu', 'd', at, at, at, at, 0, 0, 1, "
        "'{}' FROM (VALUES ('old', now() - interval '36 days'), ('new', now() - interval '34 days')) "
        "AS f (n, at) RETURNING 1"
    )
    port, page_of_sink = free_ports(1)[0], {}
    installation.settings |= {
        "SLOWRANK_STREAMS_METRICS_PORT": str(port - 1),
        "SLOWRANK_DATABASE_URL": streams_login,
    }
    sent = list(traffic.nodes(count=1, seconds=5))
    installation.send(sent)
    installation.send_raw([("suspicions", b"c", b"no msgpack")])
    worker = installation.start("sink").wait_ready()
    rollups = "SELECT DISTINCT node FROM samples_10s WHERE node IN ('old', 'new')"

    def counted():
        page_of_sink.update(scrape(port))
        taken = page_of_sink.get(("slowrank_samples_ingested_total", f"{installation.prefix}node-samples"))
        return taken == len(sent) and any(key[0] == "slowrank_dead_letters_total" for key in page_of_sink)

    try:
        wait_for(counted, within=60, what="the messages to be counted")
        wait_for(lambda: installation.rows(rollups) == [("new",)], within=30, what="the old roll-up to go")
        old = "SELECT id FROM findings WHERE cluster = 'c' AND kind = 'xid.31'"
        wait_for(lambda: installation.rows(old) == [("fnd_new",)], within=30, what="the old finding to go")
    finally:
        worker.terminate()
    letters = {key: n for key, n in page_of_sink.items() if key[0] == "slowrank_dead_letters_total"}
    assert letters == {("slowrank_dead_letters_total", "undecodable", f"{installation.prefix}suspicions"): 1}
    assert page_of_sink["slowrank_worker_stalled",] == 0
    assert page_of_sink["slowrank_event_to_finding_seconds_count",] == 0
    assert page_of_sink["slowrank_last_commit_age_seconds",] < 60
