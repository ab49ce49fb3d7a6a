"""The real servers tests rely on: what a failure test does to them must do what it says."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import psycopg
import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.admin import NewTopic
from kafka.errors import UnknownBrokerIdError
from servers.debian import mirrors
from servers.process import ROOT, Process, Run, ServiceError, free_ports, runs, wait_until
from servers.timescale import Timescale


def test_process_is_not_mistaken_for_a_later_one_with_its_pid(tmp_path):
    """A pid whose start time differs belongs to somebody else and is never signalled."""
    process = Process.spawn(["sleep", "60"], log=tmp_path / "log")
    try:
        stranger = Process(process.pid, process.started + 1)
        stranger.send(signal.SIGKILL)
        assert not stranger.alive()
        assert process.alive()
    finally:
        process.stop()
    assert not process.alive()


def test_a_process_that_ignores_the_request_is_killed(tmp_path):
    """stop() falls back to SIGKILL when the process does not end in time."""
    process = Process.spawn(
        ["sh", "-c", "trap '' TERM; echo ready; while :; do sleep 1; done"], log=tmp_path / "log"
    )
    while "ready" not in (tmp_path / "log").read_text():
        time.sleep(0.02)
    process.stop(seconds=0.3)
    assert not process.alive()


def test_a_run_is_found_again_on_disk_and_ends_with_its_files(tmp_path):
    """`down` in another process finds the servers by what `up` wrote."""
    run = Run.begin("test", stop_signal=signal.SIGTERM, shared=False)
    directory = tmp_path / "data"
    directory.mkdir()
    run.paths = [directory]
    run.processes["one"] = Process.spawn(["sleep", "60"], log=tmp_path / "log")
    run.save()
    found = Run.load(run.name)
    assert found is not None
    assert found.alive()
    found.end()
    assert not run.alive()
    assert not directory.exists()
    assert Run.load(run.name) is None


def test_free_ports_are_distinct_and_outside_the_ephemeral_range():
    """A broker's port must not be one the kernel hands out to a reconnecting client."""
    ports = free_ports(8)
    assert len(set(ports)) == 8
    assert max(ports) < 32768


def test_ports_given_to_one_process_are_not_given_to_another(monkeypatch):
    """A server that is still starting listens on nothing: its port is taken nonetheless."""
    (port,) = free_ports(1)
    monkeypatch.setattr("servers.process.PORTS", range(port, port + 1))
    with pytest.raises(ServiceError, match="no 1 free ports"):
        free_ports(1)
    asked = f"from servers import process; process.PORTS = range({port}, {port + 1}); process.free_ports(1)"
    other = subprocess.run(
        [sys.executable, "-c", asked], cwd=ROOT / "scripts", capture_output=True, text=True
    )
    assert "no 1 free ports" in other.stderr


def test_servers_named_by_the_environment_are_used_and_not_started():
    """With both variables set (docker compose, a test cluster) `run` starts nothing and passes them on."""
    given = {"SLOWRANK_TEST_KAFKA": "127.0.0.1:1", "SLOWRANK_TEST_DSN": "postgresql://127.0.0.1:2/x"}
    script = [sys.executable, str(ROOT / "scripts/services.py"), "run", "--"]
    before = {run.name for run in runs()}
    done = subprocess.run(
        [*script, "printenv", *given], env={**os.environ, **given}, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == list(given.values())
    assert {run.name for run in runs()} == before


def test_exit_status_of_the_command_is_that_of_run():
    """`make test` fails when pytest does."""
    env = {**os.environ, "SLOWRANK_TEST_KAFKA": "x", "SLOWRANK_TEST_DSN": "x"}
    script = [sys.executable, str(ROOT / "scripts/services.py"), "run", "--"]
    assert subprocess.run([*script, "sh", "-c", "exit 3"], env=env, check=False).returncode == 3


def test_mirrors_come_from_both_forms_of_apt_settings(tmp_path, monkeypatch):
    """One-line and deb822 sources are read, comments and CD-ROMs are not, the main archive is tried first."""
    monkeypatch.delenv("SLOWRANK_DEBIAN_MIRROR", raising=False)
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list").write_text(
        "# deb http://commented.example/debian x main\n"
        "deb cdrom:[Debian]/ x main\n"
        "deb [arch=amd64 signed-by=/k.gpg] http://one.example/debian-security x main\n"
    )
    (tmp_path / "sources.list.d/debian.sources").write_text(
        "Types: deb\nURIs: http://two.example/debian/\n http://three.example/debian\nSuites: x\n"
    )
    (tmp_path / "sources.list.d/old.sources.disabled").write_text("URIs: http://disabled.example/debian\n")
    assert mirrors(tmp_path) == [
        "http://two.example/debian",
        "http://three.example/debian",
        "http://one.example/debian-security",
    ]


def test_shared_servers_answer(kafka_bootstrap, database):
    """The shared servers are real: Kafka keeps a record, PostgreSQL creates a hypertable."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE EXTENSION timescaledb")
        connection.execute("CREATE TABLE t (time timestamptz NOT NULL)")
        assert connection.execute("SELECT create_hypertable('t', by_range('time'))").fetchone() is not None
    admin = KafkaAdminClient(bootstrap_servers=kafka_bootstrap)
    topics = admin.list_topics()
    admin.close()
    assert isinstance(topics, list)


@pytest.mark.slow
def test_paused_server_hangs_and_killed_server_keeps_its_data():
    """pause() freezes open connections too; kill() loses nothing that was committed."""
    with Timescale() as server:
        dsn = server.create_database("t_outage")
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("CREATE TABLE t AS SELECT 1 AS value")
            server.pause()
            threading.Timer(0.5, server.resume).start()
            asked = time.monotonic()
            connection.execute("SELECT 1")
            assert time.monotonic() - asked > 0.4
        server.kill()
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(dsn, connect_timeout=2)
        server.start()
        with psycopg.connect(dsn) as connection:
            assert connection.execute("SELECT value FROM t").fetchone() == (1,)


def test_topic_survives_the_death_of_its_leader(private_kafka):
    """With three brokers another one leads the partition after the leader's SIGKILL; no record is lost."""
    admin = KafkaAdminClient(bootstrap_servers=private_kafka.bootstrap)
    admin.create_topics([NewTopic("t", 1, 3)])
    admin.close()
    # The broker that is asked may not have heard of the topic yet.
    wait_until(lambda: private_kafka.leader_of("t", 0) >= 0, seconds=30, what="the election of a leader")
    leader = private_kafka.leader_of("t", 0)
    producer = KafkaProducer(bootstrap_servers=private_kafka.bootstrap, acks="all")
    producer.send("t", b"before").get(30)
    private_kafka.kill(leader)
    wait_until(lambda: acknowledged(producer, b"after"), seconds=60, what="a record after the leader's death")
    producer.close()
    wait_until(
        lambda: private_kafka.leader_of("t", 0) not in (leader, -1), seconds=30, what="another broker to lead"
    )
    private_kafka.restart(leader)
    consumer = KafkaConsumer(
        "t", bootstrap_servers=private_kafka.bootstrap, auto_offset_reset="earliest", consumer_timeout_ms=5000
    )
    values = [message.value for message in consumer]
    consumer.close()
    assert list(dict.fromkeys(values)) == [b"before", b"after"]  # what was sent again may be there twice


def acknowledged(producer, value):
    """Send once; a node that left the metadata meanwhile fails a record at once (kafka-python 3.0)."""
    try:
        producer.send("t", value).get(60)
    except UnknownBrokerIdError:
        return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize(("ci", "outcome"), [(None, "1 skipped"), ("1", "1 failed")])
def test_missing_service_fails_only_where_ci_is_set(tmp_path, ci, outcome):
    """At home an absent server skips a test; with CI set the same test fails."""
    check = tmp_path / "test_check.py"
    check.write_text("import conftest\n\ndef test_it():\n    conftest.unavailable('no server')\n")
    env = {key: value for key, value in os.environ.items() if key != "CI"} | ({"CI": ci} if ci else {})
    env["PYTHONPATH"] = f"{ROOT / 'tests'}:{ROOT / 'scripts'}"
    command = [sys.executable, "-m", "pytest", "-q", "--rootdir", str(tmp_path), str(check)]
    run = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert outcome in run.stdout
