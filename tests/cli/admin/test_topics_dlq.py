"""The commands that look after topics and dead letters, against a real Kafka."""

import asyncio
import secrets

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from typer.testing import CliRunner

from cli import app
from slowrank.telemetry import BadRecord
from slowrank.telemetry.topics import TOPICS
from streams.runtime.kafka.dead_letters import dead_letter
from streams.runtime.kafka.message import Message


@pytest.fixture
def prefix(kafka_bootstrap, monkeypatch):
    """A topic prefix of the test's own; its topics are deleted afterwards."""
    name = f"t{secrets.token_hex(4)}-"
    monkeypatch.setenv("SLOWRANK_KAFKA_BOOTSTRAP", kafka_bootstrap)
    monkeypatch.setenv("SLOWRANK_TOPIC_PREFIX", name)
    monkeypatch.setenv("SLOWRANK_TOPIC_PARTITIONS", "2")
    yield name
    asyncio.run(delete(kafka_bootstrap, name))


async def delete(bootstrap, prefix):
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    await admin.delete_topics([f"{prefix}{spec.name}" for spec in TOPICS])
    await admin.close()


async def write(bootstrap, letters):
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap)
    await producer.start()
    for out in letters:
        await producer.send_and_wait(out.topic, out.value, key=out.key, headers=out.headers)
    await producer.stop()


def run(*args):
    return CliRunner().invoke(app, list(args))


def test_topics_are_created_once_and_described(prefix):
    """The second creation finds them there; describing shows partitions and keys."""
    first, second = run("topics", "create"), run("topics", "create")
    assert (first.exit_code, second.exit_code) == (0, 0), first.output + second.output
    assert first.stdout.count("created") == len(TOPICS)
    assert second.stdout.count("exists") == len(TOPICS)
    described = run("topics", "describe")
    assert described.exit_code == 0
    assert described.stdout.count("2 partitions  1 replicas") == len(TOPICS)


def test_an_earlier_recording_outlives_an_empty_log(prefix, tmp_path):
    """Topics without a message, as after their retention: the file stays, and the exit status is not 0."""
    run("topics", "create")
    file = tmp_path / "day.ndjson"
    file.write_text("earlier")
    result = run("streams", "record", "-o", str(file))
    assert (result.exit_code, file.read_text()) == (2, "earlier")
    assert "was not written" in result.stderr


def test_dead_letters_are_listed_by_reason_and_shown_without_harm(prefix, kafka_bootstrap):
    """A letter shows where it stood, why, and its bytes; control characters in it stay letters."""
    assert run("topics", "create").exit_code == 0
    empty = run("dlq", "list")
    assert "no dead letters" in empty.stderr
    told = [("undecodable", b"\x1b[31mred\x00"), ("bad_time", b"late")]
    letters = [
        dead_letter(
            Message("node-samples", 1, n, 1_795_160_000.0 + n, payload),
            BadRecord(reason, "why \x1b[2J so"),
            topic=f"{prefix}dead-letters",
        )
        for n, (reason, payload) in enumerate(told)
    ]
    asyncio.run(write(kafka_bootstrap, letters))
    listed = run("dlq", "list")
    assert listed.exit_code == 0, listed.output
    assert [line.split()[1:3] for line in listed.stdout.splitlines()] == [
        ["node-samples:1:0", "undecodable"],
        ["node-samples:1:1", "bad_time"],
    ]
    assert len(run("dlq", "list", "--reason", "bad_time").stdout.splitlines()) == 1
    shown = run("dlq", "show", "node-samples:1:0")
    assert "1b 5b 33 31 6d 72 65 64 00" in shown.stdout
    assert "\x1b" not in shown.stdout + listed.stdout
    assert run("dlq", "show", "node-samples:1:9").exit_code == 2
    assert run("dlq", "show", "nonsense").exit_code == 2


@pytest.mark.slow
@pytest.mark.parametrize("command", [("topics", "create"), ("topics", "describe"), ("dlq", "list")])
def test_a_broker_that_is_not_there_is_explained(command, monkeypatch):
    """The address is named, and what to set."""
    monkeypatch.setenv("SLOWRANK_KAFKA_BOOTSTRAP", "127.0.0.1:1")
    result = run(*command)
    assert result.exit_code == 2
    assert "127.0.0.1:1" in result.stderr
    assert "SLOWRANK_KAFKA_BOOTSTRAP" in result.stderr
