"""Whatever breaks while telemetry flows: the findings and roll-ups are those of a run that nothing disturbed.

Run times are those of two shared cores; docs/reliability.md says what was seen.
"""

import json
import logging
import os
import signal
import subprocess
import sys
import time

import msgspec
import psutil
import pytest
from kafka import KafkaConsumer, TopicPartition
from servers.kafka import KafkaCluster

from alerts.cases.lifecycle import NOTIFIED
from tests.conftest import running
from tests.e2e.fleet import Fleet
from tests.e2e.undisturbed import CLUSTER, story
from tests.made_once import made_once
from tests.streams.runtime.harness import WORKER, rig, wait_for

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(420),
    # kafka-python leaves the pipes of producers that found no broker to the collector.
    pytest.mark.filterwarnings("ignore:unclosed <socket.*family=1:ResourceWarning"),
]

log = logging.getLogger(__name__)

SPEED = 5.0
OUTAGE_SECONDS = 60.0
# Records that came late are held back for twenty seconds, open roll-ups for ten.
SETTLE_SECONDS = 60.0
# The told state of a finding: what `alerts.notify` calls news when it changes.
TOLD = ("status", "severity", "kind", "occurrences")


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    return made_once(tmp_path_factory, "undisturbed", story)


@pytest.fixture
def installation(kafka_bootstrap, database, tmp_path):
    with rig(kafka_bootstrap, database, tmp_path) as made:
        yield made


@pytest.fixture
def lone_broker():
    """A cluster of one broker, for a test to stop and start."""
    with running(KafkaCluster()) as cluster:
        yield cluster


def start_workers(installation):
    return {role: installation.start(role).wait_ready(90) for role in ("detect", "sink")}


def fed(fleet, share, within=120):
    wait_for(lambda: fleet.progress >= share, within=within, what=f"{share:.0%} of the records to be made")


def stored_rows(installation):
    """(table, node or job, instance or rank, bucket) -> records in that roll-up row."""
    found = {
        (table, node, instance, bucket): n
        for table in ("samples_10s", "nic_10s", "host_10s")
        for node, instance, bucket, n in installation.rows(
            f"SELECT node, instance, extract(epoch FROM bucket)::float8, n FROM {table}"
        )
    }
    steps = installation.rows(
        "SELECT job_id, rank::text, extract(epoch FROM bucket)::float8, n_steps FROM steps_10s"
    )
    return found | {("steps_10s", job, rank, bucket): n for job, rank, bucket, n in steps}


def stored_findings(installation):
    """What is said about the cluster; that slowrank was blind meanwhile is said under a name of its own."""
    found = installation.rows("SELECT id, doc, status FROM findings WHERE cluster = %s", CLUSTER)
    return {id_: doc | {"status": status} for id_, doc, status in found}


def brief(findings):
    """What a finding is about, to say first where two runs differ."""
    names = ("kind", "status", "dedup_key", "onset", "last_seen_at")
    return sorted(tuple(doc[name] for name in names) for doc in findings.values())


def differences(one, other):
    """(finding, field) -> its values in two runs with the same findings, where they differ."""
    return {
        (id_, name): (one[id_].get(name), doc.get(name))
        for id_, doc in other.items()
        for name in sorted(doc.keys() | one[id_].keys())
        if one[id_].get(name) != doc.get(name)
    }


def outbox(installation):
    """(finding, type, body) of every event about the cluster, in order."""
    events = installation.rows("SELECT finding_id, type, body FROM events ORDER BY seq")
    return [event for event in events if event[2]["subject"]["cluster"] == CLUSTER]


def assert_undisturbed(installation, fleet, calm, within=150):
    """Wait for the end of the stream, then hold what is stored against the run that nothing disturbed."""
    wait_for(lambda: fleet.done, within=within, what="the brokers to acknowledge every record")
    installation.wait_until_read("detect", within=within)
    installation.wait_until_read("sink", within=within)
    deadline = time.monotonic() + SETTLE_SECONDS
    while time.monotonic() < deadline and (
        stored_rows(installation) != dict(calm.rows) or stored_findings(installation) != calm.findings
    ):
        time.sleep(1)
    assert fleet.dropped == 0
    assert stored_rows(installation) == dict(calm.rows)
    stored = stored_findings(installation)
    assert brief(stored) == brief(calm.findings)
    assert differences(stored, calm.findings) == {}
    assert installation.dead_letters() == []
    assert_told_once(outbox(installation), calm)
    log_what_came_twice(installation, calm)


def log_what_came_twice(installation, calm):
    """Say what at-least-once delivery meant this time; shown with ``-o log_cli_level=info``."""
    told = [msgspec.json.encode(s) for s in installation.suspicions()]
    log.info(
        "%d records, %d of them twice in the log; %d suspicions, %d of them twice",
        len(calm.records),
        installation.messages("node-samples", "node-events", "job-steps") - len(calm.records),
        len(told),
        len(told) - len(set(told)),
    )


def assert_told_once(events, calm):
    """Each finding is opened once, and no event says again what the one before it said."""
    opened = [id_ for id_, kind, _ in events if kind == "finding.opened"]
    assert sorted(opened) == sorted(calm.news)
    last: dict[str, list[object]] = {}
    for id_, kind, body in events:
        told = [*(body[name] for name in TOLD), body["cause"]["hypothesis"], body["action"]["code"]]
        assert last.get(id_) != told, f"{kind} of {id_} was told twice"
        last[id_] = told


def test_the_story_has_what_can_be_lost(calm):
    """There are a straggler, an XID and hundreds of roll-up rows, or the tests below prove nothing (30 s)."""
    kinds = {doc["kind"] for doc in calm.findings.values() if doc["status"] in NOTIFIED}
    assert kinds == {"straggler.fail_slow", "ecc.uncorrectable"}
    assert len(calm.rows) > 500


def test_kill_minus_nine_of_the_workers(installation, calm):
    """Both workers, killed without warning in turn, leave no gap and repeat nothing (95 s)."""
    workers = start_workers(installation)
    with Fleet(installation, calm.records, speed=SPEED) as fleet:
        for share, victim in ((0.38, "detect"), (0.55, "sink"), (0.75, "detect")):
            fed(fleet, share)
            workers[victim].kill()
            workers[victim] = installation.start(victim)
        assert_undisturbed(installation, fleet, calm)


def test_a_database_away_for_a_minute(kafka_bootstrap, private_timescale, calm, tmp_path):
    """Detection goes on while the database hangs and then loses power; storing catches up (135 s)."""
    dsn = private_timescale.create_database("slowrank")
    with rig(kafka_bootstrap, dsn, tmp_path) as installation:
        workers = start_workers(installation)
        with Fleet(installation, calm.records, speed=SPEED) as fleet:
            fed(fleet, 0.25)
            private_timescale.pause()
            outage_ends = time.monotonic() + OUTAGE_SECONDS
            time.sleep(OUTAGE_SECONDS / 2)
            private_timescale.kill()
            found = {"straggler.fail_slow", "ecc.uncorrectable"}
            wait_for(
                lambda: found <= {s.kind for s in installation.suspicions()},
                within=90,
                what="the detectors to raise both causes",
            )
            time.sleep(max(0.0, outage_ends - time.monotonic()))
            private_timescale.start()
            assert_undisturbed(installation, fleet, calm)
        assert all(worker.alive for worker in workers.values())


def test_a_broker_away_for_a_minute(lone_broker, database, calm, tmp_path):
    """The exporters spool, the workers wait, and all goes on where it stopped (135 s)."""
    with rig(lone_broker.bootstrap, database, tmp_path) as installation:
        start_supervised(installation)
        with Fleet(installation, calm.records, speed=SPEED) as fleet:
            fed(fleet, 0.38)
            lone_broker.stop()
            time.sleep(OUTAGE_SECONDS)
            assert fleet.waiting > 100
            lone_broker.start()
            assert_undisturbed(installation, fleet, calm)


def test_a_cluster_that_loses_its_leader(private_kafka, database, calm, tmp_path):
    """Of three brokers the one that leads the job's partition is killed: the others carry on (100 s)."""
    with rig(private_kafka.bootstrap, database, tmp_path, replication=3) as installation:
        start_supervised(installation)
        with Fleet(installation, calm.records, speed=SPEED) as fleet:
            fed(fleet, 0.38)
            topic = f"{installation.prefix}job-steps"
            victim = private_kafka.leader_of(topic, partition_in_use(private_kafka.bootstrap, topic))
            private_kafka.kill(victim)
            assert_undisturbed(installation, fleet, calm)
        assert not private_kafka.running(victim)


def test_a_replay_finds_what_was_found_live(installation, calm, tmp_path):
    """What `slowrank streams record` reads back gives `slowrank backtest` what was stored live (100 s)."""
    start_workers(installation)
    with Fleet(installation, calm.records, speed=SPEED) as fleet:
        assert_undisturbed(installation, fleet, calm)
    recording, lines = tmp_path / "recording.ndjson.gz", tmp_path / "findings.ndjson"
    command_line(installation, "streams", "record", "-o", str(recording))
    command_line(installation, "backtest", str(recording), "-o", str(lines))
    replayed = [json.loads(line) for line in lines.read_text().splitlines()]
    shown = {id_: doc for id_, doc in stored_findings(installation).items() if doc["status"] != "suspected"}
    assert {doc["id"]: doc for doc in replayed} == shown
    assert len(replayed) == len(calm.news)


def test_a_worker_that_lives_and_does_nothing(installation, calm):
    """The supervisor misses the signs of life of a frozen worker and puts a new one in its place (90 s)."""
    installation.settings["SLOWRANK_STREAMS_STALL_SECONDS"] = "8"
    supervisor = start_supervised(installation)
    with Fleet(installation, calm.records, speed=SPEED) as fleet:
        fed(fleet, 0.38)
        (frozen,) = (
            int(file.stem.split("-")[-1]) for file in installation.home.glob("streams-detect-*.json")
        )
        os.kill(frozen, signal.SIGSTOP)
        wait_for(lambda: not psutil.pid_exists(frozen), within=90, what="the frozen worker to be replaced")
        assert_undisturbed(installation, fleet, calm)
    assert supervisor.alive
    assert "has sent no heartbeat" in supervisor.log.read_text()


def start_supervised(installation):
    """`slowrank streams run`: both roles under the supervisor, ready to read."""
    supervisor = installation.start("all")
    wait_for(
        lambda: all(list(installation.home.glob(f"streams-{role}-*.json")) for role in ("detect", "sink")),
        within=90,
        what="the supervised workers to start",
    )
    return supervisor


def partition_in_use(bootstrap, topic):
    """The one partition that holds the messages of the only job."""
    consumer = KafkaConsumer(bootstrap_servers=bootstrap.split(","))
    try:
        places = [TopicPartition(topic, n) for n in consumer.partitions_for_topic(topic)]
        (used,) = [place.partition for place, end in consumer.end_offsets(places).items() if end]
        return used
    finally:
        consumer.close()


def command_line(installation, *arguments):
    command = [sys.executable, "-c", WORKER, *arguments]
    subprocess.run(command, env=installation.environment, check=True, capture_output=True, timeout=120)
