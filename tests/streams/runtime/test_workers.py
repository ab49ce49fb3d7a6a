"""The worker processes against real Kafka and a real database."""

import contextlib
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from typing import Any

import msgspec
import pytest

from detectors.fleet.chronic import Pace
from slowrank.telemetry import JobSteps, MinuteMeans, NodeEvent, NodeSample, encode
from slowrank.telemetry.checks import REASONS
from streams.files.record_builder import read_records
from streams.files.replay import findings_of
from streams.pipeline import local_pipeline
from streams.runtime.kafka.record_producer import key_of, topic_of
from tests.made_once import made_once
from tests.streams import traffic
from tests.streams.cluster.weak_signs import REGION, SICK, TUNING, samples
from tests.streams.runtime.harness import rig, wait_for

pytestmark = pytest.mark.slow  # 30 to 100 s each

SLOW = (5, 100, 1.5)


@pytest.fixture
def installation(kafka_bootstrap, database, tmp_path):
    with rig(kafka_bootstrap, database, tmp_path) as made:
        yield made


def finish(installation):
    """Wait until everything is read, and until the quiet buckets are written too."""
    installation.wait_until_read("detect")
    installation.wait_until_read("sink")
    time.sleep(12)
    installation.wait_until_read("sink")


def mutants(count, seed=9):
    """(topic, key, value, reason) of messages that must not enter, one of each sort in turn."""
    chance = random.Random(seed)
    good = next(traffic.nodes(count=1, seconds=1))
    steps = next(traffic.job(steps=1))

    def sample(**changes):
        return encode(NodeSample(**{f: getattr(good, f) for f in good.__struct_fields__} | changes))

    def event(**changes):
        fields: dict[str, Any] = {
            "cluster": "c",
            "node": "n",
            "ts": time.time(),
            "source": "kmsg",
            "code": "xid.79",
        } | changes
        return encode(NodeEvent(**fields))

    sorts = [
        lambda: ("node-samples", encode(good)[: chance.randint(0, len(encode(good)) - 1)], "undecodable"),
        lambda: ("node-samples", chance.randbytes(chance.randint(1, 400)), "undecodable"),
        lambda: ("node-samples", sample(schema=chance.randint(3, 10**6)), "unknown_schema"),
        lambda: ("node-samples", sample(v=chance.randint(2, 99)), "unknown_version"),
        lambda: ("node-samples", sample(ts=float("nan")), "bad_time"),
        lambda: ("node-samples", sample(ts=float("inf")), "bad_time"),
        lambda: ("node-samples", sample(ts=time.time() + chance.randint(400, 10**8)), "bad_time"),
        lambda: ("node-samples", sample(ts=time.time() - chance.randint(90_000, 10**8)), "bad_time"),
        lambda: ("node-samples", sample(node=hostile(chance)), "bad_label"),
        lambda: ("node-samples", sample(cluster=hostile(chance)), "bad_label"),
        lambda: ("node-samples", sample(labels={"rack": hostile(chance)}), "bad_label"),
        lambda: ("node-samples", sample(gpu=good.gpu[: -chance.randint(1, 50)]), "column_length"),
        lambda: ("node-samples", sample(gpu_ids=("0", "0", "1", "2")), "bad_label"),
        lambda: ("job-steps", encode(steps)[: chance.randint(0, 200)], "undecodable"),
        lambda: ("job-steps", b"", "undecodable"),
        lambda: ("node-events", event(code=hostile(chance)), "bad_label"),
        lambda: ("node-events", event(message="x" * 5000), "oversize"),
        lambda: ("node-events", event(subject={"gpu_index": hostile(chance)}), "bad_label"),
    ]
    big = [lambda: ("node-samples", chance.randbytes(1_000_000), "oversize")]
    for n in range(count):
        topic, value, reason = (big if n % 500 == 499 else sorts)[0 if n % 500 == 499 else n % len(sorts)]()
        yield topic, f"k{n}".encode(), value, reason


def hostile(chance):
    return chance.choice(
        [
            "'; DROP TABLE findings; --",
            "<script>alert(1)</script>",
            "a\x00b",
            "\u202egpu",
            "a\r\nb",
            "",
            "x" * 200,
            "ü",
            "{}",
        ]
    )


def test_ten_thousand_poisoned_messages_stop_nothing(installation):
    """Each bad message is a dead letter with its reason and place; the good between them do their work."""
    good = sorted([*traffic.nodes(count=2, seconds=60), *traffic.job(slow=SLOW)], key=lambda r: r.ts)
    bad = list(mutants(10_000))
    messages = [(t, k, v) for t, k, v, _ in bad]
    per = len(bad) // len(good) + 1
    mixed = []
    rest = iter(messages)
    for record in good:
        mixed.append((topic_of(record), key_of(record), encode(record)))
        mixed += itertools.islice(rest, per)
    mixed += rest
    detect, sink = installation.start("detect"), installation.start("sink")
    detect.wait_ready()
    sink.wait_ready()
    installation.send_raw(mixed)
    finish(installation)
    letters = installation.dead_letters()
    expected: dict[bytes, set[str]] = {}
    for _, _, value, reason in bad:
        expected.setdefault(value[:4096], set()).add(reason)
    assert len(letters) == len(bad)
    assert len({(x.topic, x.partition, x.offset) for x, _ in letters}) == len(bad)
    for letter, headers in letters:
        assert letter.reason in expected[letter.payload]
        assert letter.reason in REASONS
        assert headers["x-error"] == letter.reason
        assert headers["x-original-topic"] == letter.topic
        assert (headers["x-original-partition"], headers["x-original-offset"]) == (
            str(letter.partition),
            str(letter.offset),
        )
    assert detect.alive
    assert sink.alive
    wait_for(lambda: installation.step_rows_stored() == 200 * 16, within=60, what="the last step rows")
    assert sum(row[-1] for row in installation.samples() if row[0] == "host_10s") == 120
    opened = [kind for _, kind, status, _ in installation.findings() if status == "open"]
    assert opened == ["straggler.fail_slow"]


def two_causes():
    """Records with two causes in them, and what they give in one process."""
    ends = time.time() - 2
    records = [
        *traffic.job(job_id="job-1", slow=SLOW, ends=ends),
        *traffic.job(job_id="job-2", seed=4, ends=ends),
        *traffic.nodes(count=6, seconds=250, low_clock=(2, 1, 120), ends=ends),
    ]
    records.sort(key=lambda r: r.ts)
    return records, last_versions(findings_of(records, local_pipeline()))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    return made_once(tmp_path_factory, "two_causes", two_causes)


@pytest.fixture(scope="module")
def story(recorded):
    """The records, the same for every run of this module."""
    return recorded[0]


@pytest.fixture(scope="module")
def calm(recorded):
    """Their findings in one process."""
    return recorded[1]


def last_versions(findings):
    """What became of each finding, also of those that were only suspected."""
    return list({f.id: f for f in findings}.values())


def assert_same_as(calm, installation, story):
    steps = sum(1 for record in story if isinstance(record, JobSteps)) * 8
    expected = {(f.dedup_key, f.kind, f.status) for f in calm}, steps, 6 * 250

    def stored():
        hosts = [row for row in installation.samples() if row[0] == "host_10s"]
        said = {(key, kind, status) for key, kind, status, _ in installation.findings()}
        return said, installation.step_rows_stored(), sum(row[-1] for row in hosts)

    # Records that reached the log late are held back to put them in order; the last buckets wait for more.
    with contextlib.suppress(AssertionError):
        wait_for(lambda: stored() == expected, within=60, what="the findings and rows")
    assert stored() == expected


def test_the_workers_find_what_one_process_finds(installation, story, calm):
    """Through Kafka and Faust the same records give the same findings and whole roll-ups."""
    installation.start("detect").wait_ready()
    installation.start("sink").wait_ready()
    installation.send(story)
    finish(installation)
    assert calm
    assert_same_as(calm, installation, story)


@pytest.mark.parametrize(("victim", "snapshots"), [("detect", "0"), ("detect", "1"), ("sink", "1")])
def test_kill_minus_nine_in_mid_stream_changes_nothing(installation, story, calm, victim, snapshots):
    """A worker killed without warning while records flow loses none, doubles none, and forgets nothing."""
    installation.settings["SLOWRANK_STREAMS_SNAPSHOT_SECONDS"] = snapshots
    installation.start("detect").wait_ready()
    installation.start("sink").wait_ready()
    third = len(story) // 3
    for n, part in enumerate((story[:third], story[third : 2 * third], story[2 * third :])):
        installation.send(part)
        if n < 2:
            worker = next(w for w in installation.workers if w.role == victim and w.alive)
            wait_for(lambda w=worker: w.health().get("events"), within=60, what="the first messages")
            worker.kill()
            installation.start(victim)
    finish(installation)
    assert_same_as(calm, installation, story)


def test_a_worker_stopped_in_mid_stream_goes_on_from_its_snapshots(installation, story, calm):
    """Nothing but the last message of each partition is read again."""
    first = installation.start("detect").wait_ready()
    installation.start("sink").wait_ready()
    half = len(story) // 2
    installation.send(story[:half])
    installation.wait_until_read("detect")
    assert first.terminate() == 0
    second = installation.start("detect").wait_ready()
    installation.send(story[half:])
    finish(installation)
    health = second.health()["snapshots"]
    assert health["loaded"] >= 3
    assert not list((installation.home / "state" / "snapshots").glob(".*"))
    assert_same_as(calm, installation, story)


@pytest.mark.parametrize("victim", ["detect", "sink"])
def test_paces_are_counted_once_whoever_is_killed(installation, victim):
    """Two hours of a job: what each GPU's hours sum up to in the table is what one process tells."""
    records = list(traffic.job(ranks=8, steps=260, step_seconds=30.0))
    rows: list[Any] = []
    list(findings_of(records, local_pipeline(on_rows=rows.extend)))
    expected: dict[int, list[int]] = {}
    for pace in (row for row in rows if isinstance(row, Pace)):
        expected.setdefault(pace.machine.gpu_index, []).append(round(pace.log_ratio * 1e6))
    assert sorted(expected) == list(range(8))
    for role in ("detect", "sink"):
        installation.start(role).wait_ready()
    installation.send(records[:180])
    worker = next(w for w in installation.workers if w.role == victim)
    wait_for(lambda: worker.health().get("events"), within=60, what="the first messages")
    worker.kill()
    installation.start(victim)
    installation.send(records[180:])
    finish(installation)
    stored = installation.rows("SELECT gpu_index, sum(n), sum(ratio_sum) FROM paces GROUP BY 1")
    assert {gpu: (n, total) for gpu, n, total in stored} == {
        gpu: (len(mine), sum(mine)) for gpu, mine in expected.items()
    }


def test_a_second_worker_shares_the_partitions_and_leaves_them(installation, story, calm):
    """Joining and leaving in mid-stream rebalances without losing or doubling anything."""
    installation.start("detect").wait_ready()
    installation.start("sink").wait_ready()
    half = len(story) // 2
    installation.send(story[:half])
    second = installation.start("detect").wait_ready()
    time.sleep(8)
    installation.send(story[half:])
    time.sleep(5)
    assert second.terminate() == 0
    finish(installation)
    assert_same_as(calm, installation, story)


def test_a_recording_replays_to_the_same_findings(installation, story, calm, tmp_path):
    """What is read back from Kafka into a file gives, replayed, the findings of the live run."""
    installation.send(story)
    file = tmp_path / "recording.ndjson.gz"
    command = [
        sys.executable,
        "-c",
        "from cli import main; main()",
        "streams",
        "record",
        "-o",
        str(file),
    ]
    subprocess.run(command, env=installation.environment, check=True, capture_output=True)
    read = read_records([file])
    assert not read.bad
    again = last_versions(findings_of(read.records, local_pipeline()))
    assert {(f.dedup_key, f.kind, f.status) for f in again} == {(f.dedup_key, f.kind, f.status) for f in calm}


def test_nodes_in_all_partitions_are_compared_with_each_other(installation):
    """With a model in slowrank.toml the workers find the node with weak signs that one process finds."""
    (installation.home / "gray.json").write_bytes(msgspec.json.encode(REGION))
    (installation.home / "slowrank.toml").write_text('[detectors.gray]\nmodel = "gray.json"\n')
    records = samples(minutes=12, start=time.time() // 60 * 60 - 720)
    expected = last_versions(findings_of(records, local_pipeline(TUNING)))
    assert [(f.kind, f.subject.node) for f in expected] == [("gray.node", SICK)]
    installation.start("detect").wait_ready()
    installation.start("sink").wait_ready()
    installation.send(records)
    finish(installation)
    told = [m.node for m in installation.stage_messages() if isinstance(m, MinuteMeans)]
    assert len(set(told)) == 10
    found = [(f.dedup_key, f.kind, f.status) for f in expected]
    assert [row[:3] for row in installation.findings()] == found


def test_a_killed_worker_is_replaced_long_before_its_session_ends(installation, story):
    """Its supervisor takes it out of the group, and the next one has its partitions as soon as it runs."""
    installation.settings["SLOWRANK_STREAMS_SESSION_SECONDS"] = "60"
    installation.start("all")
    installation.send(story[:600])
    wait_for(lambda: _reading(installation), within=120, what="the first messages")
    pid = _reading(installation)
    os.kill(pid, signal.SIGKILL)
    installation.send(story[600:1200])
    # On an idle machine it takes 5 s; the session would take 60.
    wait_for(lambda: _reading(installation) not in (None, pid), within=30, what="another worker to read")


def _reading(installation):
    """Process id of the detecting worker, once it has taken messages."""
    for file in installation.home.glob("streams-detect-*.json"):
        with contextlib.suppress(OSError, ValueError):
            if json.loads(file.read_text())["events"]:
                return int(file.stem.rpartition("-")[2])
    return None
