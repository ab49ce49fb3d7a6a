import asyncio
import dataclasses

import msgspec
import pytest
from aiokafka.errors import KafkaConnectionError

from alerts.kinds import UNHEARD_KIND
from slowrank.telemetry import (
    Heartbeat,
    NodeEvent,
    Suspicion,
    decode_dead_letter,
    decode_message,
    decode_sample,
    encode,
)
from streams.config.settings import Tuning
from streams.runtime.detect_worker import Detect
from streams.runtime.kafka.message import Message
from streams.runtime.monitoring.health import Health
from streams.runtime.partitions.context import WorkerContext
from tests.streams import traffic

NOW = 1_795_160_000.0


class Log:
    """A topic of one partition, and how often it was read again."""

    def __init__(self, records, topic="job-steps"):
        self.messages = [
            Message(topic, 0, n, min(r.ts, NOW), r if isinstance(r, bytes) else encode(r))
            if not isinstance(r, bytes)
            else Message(topic, 0, n, NOW, r)
            for n, r in enumerate(records)
        ]
        self.reread = []
        self.away = 0

    async def read(self, topic, partition, since, upto):
        if self.away:
            self.away -= 1
            raise KafkaConnectionError("gone")
        self.reread.append((since, upto))
        for message in self.messages[:upto]:
            if message.timestamp >= since:
                yield message


class Sent:
    """An outlet whose broker is always there."""

    def __init__(self):
        self.messages = []

    def post(self, messages):
        self.messages += messages
        done = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done


def context(log, producer, health, now=lambda: NOW):
    return WorkerContext(
        name=lambda topic: topic, reread=log.read, producer=producer, health=health, now=now, window=600.0
    )


def detect(log, outlet, health=None, now=lambda: NOW):
    health = health or Health("detect", lambda: 0.0)
    return Detect(context(log, outlet, health, now), tuning=Tuning())


def xid(ts):
    return NodeEvent(
        cluster="c", node="node-0", ts=ts, source="kmsg", code="xid.79", subject={"gpu_index": 1}
    )


def suspicions(outlet):
    found = [decode_message(m.value) for m in outlet.messages if m.topic == "suspicions"]
    return [s for s in found if isinstance(s, Suspicion) and s.kind != UNHEARD_KIND]


def heartbeats(outlet):
    found = [decode_message(m.value) for m in outlet.messages if m.topic == "suspicions"]
    return [s for s in found if isinstance(s, Heartbeat)]


def take_all(log, worker, start=0):
    async def go():
        for message in log.messages[start:]:
            await worker.take(message)

    asyncio.run(go())


@pytest.fixture(scope="module")
def story():
    return list(traffic.job(slow=(5, 100, 1.5), ends=NOW - 1))


def test_messages_become_suspicions_and_heartbeats(story):
    """The slow rank is suspected, and every other second of event time says that it has passed."""
    log, outlet = Log(story), Sent()
    worker = detect(log, outlet)
    end = {("job-steps", 0): len(log.messages)}

    async def go():
        await worker.take(log.messages[0])
        worker.idle(end, dict.fromkeys(end, 1))
        await _take(worker, log.messages[1:])
        worker.idle(end, end)

    asyncio.run(go())
    assert {s.subject.rank for s in suspicions(outlet) if s.kind == "straggler.fail_slow"} == {5}
    times = [s.ts for s in heartbeats(outlet)]
    assert len(times) > 50
    assert times == sorted(set(times))
    assert all(t % 2 == 0 for t in times)


def test_no_lane_tells_the_time_before_all_that_have_something_to_read(story):
    """Of three partitions the first is read to its end before the second; the third has nothing to read."""
    steps = Log(story)
    samples = Log(list(traffic.nodes(count=2, seconds=200, ends=NOW - 100)), topic="node-samples")
    outlet = Sent()
    worker = detect(steps, outlet)
    # A message of the job is still to be read, so that only its own steps tell its time.
    read = {("job-steps", 0): len(steps.messages) + 1, ("node-samples", 0): len(samples.messages)}
    ends = read | {("node-samples", 1): 0}

    async def go():
        await _take(worker, steps.messages)
        worker.idle(ends, ends)
        assert heartbeats(outlet) == []
        assert suspicions(outlet)
        await _take(worker, samples.messages)
        worker.idle(ends, ends)

    asyncio.run(go())
    *beats, job, nodes = [(s.ts, s.partition) for s in heartbeats(outlet)]
    assert beats == sorted(beats)
    assert {note for _, note in beats[100:]} == {"job-steps:0", "node-samples:0"}
    assert job == max(beat for beat in beats if beat[1] == "job-steps:0")
    assert nodes == max(beat for beat in beats if beat[1] == "node-samples:0")


def test_events_that_wait_at_the_start_are_read_before_time_passes():
    """Later every event is still to be read for a moment, and nobody waits for it."""
    samples = Log(list(traffic.nodes(count=2, seconds=200, ends=NOW)), topic="node-samples")
    events = Log([xid(NOW - 20 - n) for n in range(8)], topic="node-events")
    outlet = Sent()
    worker = detect(events, outlet)
    ends = {("node-samples", 0): 300, ("node-events", 0): 8}

    async def go():
        await _take(worker, samples.messages[:300])
        await _take(worker, events.messages[:6])
        worker.idle(ends, ends)
        assert heartbeats(outlet) == []
        await _take(worker, events.messages[6:])
        worker.idle(ends, ends)
        told = len(heartbeats(outlet))
        assert told > 0
        worker.idle(ends, ends | {("node-events", 0): 9})
        await _take(worker, samples.messages[300:])
        assert len(heartbeats(outlet)) > told + 20

    asyncio.run(go())


def test_a_worker_that_starts_tells_where_its_lanes_stand(story):
    """The one before it may have ended with all read and no time told."""
    steps, outlet = Log(story), Sent()
    before, after = detect(steps, outlet), detect(steps, outlet)
    end = {("job-steps", 0): len(steps.messages)}

    async def go():
        await _take(before, steps.messages)
        assert heartbeats(outlet) == []
        await after.prepare(*next(iter(end.items())), timestamp=NOW)
        after.idle(end, end)

    asyncio.run(go())
    assert [(s.partition, s.cluster) for s in heartbeats(outlet)] == [("job-steps:0", "c")]


def test_a_partition_from_which_nothing_comes_is_waited_for_a_minute(story):
    """Nor is time told before it is known which partitions there are, and where they end."""
    steps, outlet, clock = Log(story), Sent(), [NOW]
    worker = detect(steps, outlet, now=lambda: clock[0])
    places = [("job-steps", 0), ("node-samples", 0)]
    ends = dict(zip(places, (len(steps.messages), 7), strict=True))

    async def go():
        worker.idle([], {})
        await _take(worker, steps.messages)
        for seconds, known in ((0, {}), (59, ends)):
            clock[0] = NOW + seconds
            worker.idle(places, known)
            assert heartbeats(outlet) == []
        clock[0] = NOW + 60
        worker.idle(places, ends)

    asyncio.run(go())
    assert heartbeats(outlet)


def test_a_lane_that_waits_to_be_read_on_tells_its_time_again(story):
    """For the stage not to pass it while the worker is busy with other partitions; not between messages."""
    steps, outlet, now = Log(story), Sent(), [NOW]
    worker = detect(steps, outlet, now=lambda: now[0])
    half = len(steps.messages) // 2
    ends = {("job-steps", 0): len(steps.messages)}

    async def go():
        await _take(worker, steps.messages[:half])
        worker.idle(ends, ends)
        told = len(heartbeats(outlet))
        for seconds, repeated in ((4, 0), (6, 1), (7, 2)):
            now[0] = NOW + seconds
            worker.idle(ends, ends)
            assert len(heartbeats(outlet)) == told + repeated

    asyncio.run(go())
    times = [s.ts for s in heartbeats(outlet)]
    assert times[-3:] == [max(times)] * 3


def test_a_worker_that_starts_in_mid_stream_first_reads_the_past_again(story):
    """Started at any offset it ends with the suspicions of the one that saw everything, and repeats none."""
    log, whole = Log(story), Sent()
    take_all(log, detect(log, whole))
    cut = len(story) * 3 // 4
    before, after = Sent(), Sent()
    first = detect(log, before)
    asyncio.run(_take(first, log.messages[:cut]))
    take_all(log, detect(log, after), start=cut)
    assert log.reread[-1][1] == cut
    assert suspicions(before) + suspicions(after) == suspicions(whole)


async def _take(worker, messages):
    for message in messages:
        await worker.take(message)


def test_messages_that_come_again_are_not_processed_again(story):
    """A rebalance may hand out what was taken already."""
    log, once, twice = Log(story), Sent(), Sent()
    take_all(log, detect(log, once))
    worker = detect(log, twice)
    asyncio.run(
        _take(worker, [m for n, x in enumerate(log.messages) for m in (x, log.messages[max(0, n - 5)])])
    )
    assert suspicions(twice) == suspicions(once)


def test_a_gap_in_the_offsets_is_read_from_the_log(story):
    """When another worker has taken what is missing, the lane is built anew from the log."""
    log, outlet = Log(story), Sent()
    worker = detect(log, outlet)
    asyncio.run(_take(worker, [*log.messages[:50], *log.messages[200:]]))
    assert [upto for _, upto in log.reread] == [0, 200]


def test_a_broker_that_is_away_while_the_past_is_read_is_waited_for(story):
    """The rebuild goes on when the broker is back; nothing is taken without it."""
    log, outlet = Log(story[:20]), Sent()
    log.away = 2
    health = Health("detect", lambda: 0.0)
    take_all(log, detect(log, outlet, health))
    assert log.reread == [(log.messages[0].timestamp - 600.0, 0)]
    assert not health.waits


def test_what_cannot_be_read_is_a_dead_letter_with_its_place(story):
    """The letter says where the message stood and why, and keeps its first four kilobytes."""
    log = Log([story[0], b"\xc1" * 5000, story[1]])
    outlet, health = Sent(), Health("detect", lambda: 0.0)
    take_all(log, detect(log, outlet, health))
    [letter] = [m for m in outlet.messages if m.topic == "dead-letters"]
    read = decode_dead_letter(letter.value)
    assert (read.topic, read.partition, read.offset, read.reason) == ("job-steps", 0, 1, "undecodable")
    assert len(read.payload) == 4096
    assert dict(letter.headers)["x-error"] == b"undecodable"
    assert health.dead_letters == {("job-steps", "undecodable"): 1}


def test_a_stage_that_fails_on_a_record_makes_a_dead_letter(story, monkeypatch):
    """A bug of a stage costs one message, not the partition."""
    from streams.job.stage import JobStage

    broken, real = story[7], JobStage.process

    def process(self, record):
        if record == broken:
            raise ZeroDivisionError
        return real(self, record)

    monkeypatch.setattr(JobStage, "process", process)
    log, outlet = Log(story[:20]), Sent()
    take_all(log, detect(log, outlet))
    letters = [decode_dead_letter(m.value) for m in outlet.messages if m.topic == "dead-letters"]
    assert [(x.offset, x.reason) for x in letters] == [(7, "stage_error")]


def test_a_clock_that_is_ahead_cannot_vouch_for_itself(story):
    """A record from the future is refused although its message claims the same time."""
    from msgspec.structs import replace

    ahead = replace(story[0], ts=NOW + 3600)
    log, outlet = Log([ahead]), Sent()
    log.messages = [Message("job-steps", 0, 0, NOW + 3600, encode(ahead))]
    take_all(log, detect(log, outlet))
    [letter] = [decode_dead_letter(m.value) for m in outlet.messages]
    assert letter.reason == "bad_time"


def test_time_passes_for_a_job_that_fell_quiet(story):
    """When its partition is read to the end, the nodes' time is the job's: the stop is noticed."""
    outlet = Sent()
    job = Log(list(traffic.job(ends=NOW - 100, steps=60)))
    nodes = Log(list(traffic.nodes(count=2, seconds=200, ends=NOW)), topic="node-samples")

    async def go():
        worker = detect(job, outlet)
        await _take(worker, job.messages)
        await _take(worker, nodes.messages)
        worker.idle({("job-steps", 0), ("node-samples", 0)}, {("job-steps", 0): len(job.messages) + 1})
        assert not suspicions(outlet)
        worker.idle({("job-steps", 0), ("node-samples", 0)}, {("job-steps", 0): len(job.messages)})

    asyncio.run(go())
    assert {s.kind for s in suspicions(outlet)} == {"hang.job"}


def nodes_on(partition, nodes):
    """The messages of some nodes, on a partition of their own."""
    log = Log(list(nodes), topic="node-samples")
    return [Message(m.topic, partition, m.offset, m.timestamp, m.value) for m in log.messages]


@pytest.mark.parametrize("lone_first", [True, False])
def test_the_last_node_of_a_partition_is_missed_too(lone_first):
    """When nobody is left there to tell the time, the nodes of the other partitions do."""
    outlet, now = Sent(), [NOW - 200.0]
    lone = nodes_on(0, traffic.nodes(count=1, seconds=100, ends=NOW - 100))
    others = nodes_on(1, (r for r in traffic.nodes(count=3, seconds=200, ends=NOW) if r.node != "node-0"))
    ends = {("node-samples", 0): len(lone), ("node-samples", 1): len(others)}

    async def go():
        worker = detect(Log([]), outlet, now=lambda: now[0])
        for message in sorted([*lone, *others], key=lambda m: m.timestamp):
            now[0] = max(now[0], message.timestamp)
            await worker.take(message)
            worker.idle(ends, {place: ends[place] for place in (reversed(ends) if lone_first else ends)})

    asyncio.run(go())
    told = {(s.kind, s.subject.node, s.onset) for s in suspicions(outlet)}
    assert {(kind, node) for kind, node, _ in told} == {
        ("exporter.stale", "node-0"),
        ("node.silent", "node-0"),
    }
    assert {onset for *_, onset in told} == {decode_sample(lone[-1].value, now=NOW).ts}


def test_a_job_tells_the_time_where_no_node_does():
    """The only node of a worker is missed while its job goes on, and not before its partition is read."""
    outlet, now = Sent(), [NOW - 200.0]
    lone = nodes_on(0, traffic.nodes(count=1, seconds=100, ends=NOW - 100))
    job = Log(list(traffic.job(ends=NOW, steps=150))).messages
    ends = {("node-samples", 0): len(lone), ("job-steps", 0): len(job)}

    async def go(unread):
        now[0] = NOW - 200.0
        worker = detect(Log([]), outlet, now=lambda: now[0])
        for message in sorted([*lone, *job], key=lambda m: m.timestamp):
            now[0] = max(now[0], message.timestamp)
            await worker.take(message)
            worker.idle(ends, ends | {("node-samples", 0): len(lone) + unread})

    asyncio.run(go(1))
    assert not [s for s in suspicions(outlet) if s.family == "silence"]
    asyncio.run(go(0))
    told = {(s.kind, s.subject.node) for s in suspicions(outlet) if s.family == "silence"}
    assert told == {("exporter.stale", "node-0"), ("node.silent", "node-0")}


def test_a_partition_without_nodes_holds_up_no_job():
    """Nodes that left stop telling the time: a job that stops later is noticed all the same."""
    outlet, now = Sent(), [NOW]
    gone = nodes_on(0, traffic.nodes(count=1, seconds=50, ends=NOW - 150))
    here = nodes_on(1, traffic.nodes(count=2, seconds=200, ends=NOW))
    job = Log(list(traffic.job(ends=NOW - 100, steps=60))).messages
    places = {("node-samples", 0): len(gone), ("node-samples", 1): len(here), ("job-steps", 0): len(job)}

    async def go():
        worker = detect(Log([]), outlet, now=lambda: now[0])
        for message in sorted([*gone, *here, *job], key=lambda m: m.timestamp):
            now[0] = message.timestamp
            await worker.take(message)
        worker.idle(places, places)

    asyncio.run(go())
    assert "hang.job" in {s.kind for s in suspicions(outlet)}


def test_time_stands_where_nothing_reports_any_more():
    """A job that is read to its end only after the last node fell silent is judged all the same."""
    outlet, now = Sent(), [NOW]
    job = Log(list(traffic.job(ends=NOW - 100, steps=60))).messages
    nodes = nodes_on(0, traffic.nodes(count=2, seconds=200, ends=NOW))
    ends = {("job-steps", 0): len(job), ("node-samples", 0): len(nodes)}

    async def go():
        worker = detect(Log([]), outlet, now=lambda: now[0])
        await _take(worker, [*job, *nodes])
        worker.idle(ends, ends | {("job-steps", 0): len(job) + 1})
        now[0] += 30
        worker.idle(ends, ends)

    asyncio.run(go())
    assert "hang.job" in {s.kind for s in suspicions(outlet)}


def test_the_time_is_that_of_the_last_records_however_late_the_next_look():
    """A worker that was starved while it read the end of all topics had looked only half-way before."""
    outlet, now = Sent(), [NOW]
    job = Log(list(traffic.job(ends=NOW - 100, steps=60))).messages
    nodes = nodes_on(0, traffic.nodes(count=2, seconds=200, ends=NOW))
    ends = {("job-steps", 0): len(job), ("node-samples", 0): len(nodes)}
    both = sorted([*job, *nodes], key=lambda m: m.timestamp)

    async def go():
        worker = detect(Log([]), outlet, now=lambda: now[0])
        await _take(worker, both[: len(both) // 2])
        worker.idle(ends, ends)
        await _take(worker, both[len(both) // 2 :])
        now[0] += 30
        worker.idle(ends, ends)

    asyncio.run(go())
    assert "hang.job" in {s.kind for s in suspicions(outlet)}


def test_what_was_held_back_tells_the_time_when_it_is_released():
    """Records that came in one late burst, the last of their nodes, still say how far time has come."""
    outlet, now = Sent(), [NOW]
    job = Log(list(traffic.job(ends=NOW - 100, steps=60))).messages
    nodes = nodes_on(0, traffic.nodes(count=2, seconds=200, ends=NOW))
    ends = {("job-steps", 0): len(job), ("node-samples", 0): len(nodes)}
    burst = [m if m.offset < 100 else dataclasses.replace(m, timestamp=NOW) for m in nodes]

    async def go():
        worker = detect(Log([]), outlet, now=lambda: now[0])
        await _take(worker, [*job, *burst])
        for _ in range(30):
            now[0] += 1
            worker.idle(ends, ends)

    asyncio.run(go())
    assert "hang.job" in {s.kind for s in suspicions(outlet)}


@pytest.mark.parametrize("unread", [0, 3])
def test_nodes_that_were_read_before_a_restart_tell_the_time(unread):
    """Only the end of the job is left to be read: the nodes, read to their end, had come further."""
    outlet, now = Sent(), [NOW]
    job = Log(list(traffic.job(ends=NOW - 100, steps=60)))
    nodes = Log(list(traffic.nodes(count=2, seconds=200, ends=NOW)), topic="node-samples")
    ends = {("job-steps", 0): len(job.messages), ("node-samples", 0): len(nodes.messages)}
    left = len(job.messages) - unread

    class Both:
        def read(self, topic, *where):
            return (job if topic == "job-steps" else nodes).read(topic, *where)

    async def go():
        worker = detect(Both(), outlet, now=lambda: now[0])
        # The second is rebuilt later than the first by more than a round.
        await worker.prepare(("job-steps", 0), left, timestamp=NOW)
        worker.idle(ends, ends)
        await _take(worker, job.messages[left:])
        worker.idle(ends, ends)
        await worker.prepare(("node-samples", 0), len(nodes.messages), timestamp=NOW)
        for _ in range(3):
            now[0] += 1
            worker.idle(ends, ends)

    asyncio.run(go())
    assert "hang.job" in {s.kind for s in suspicions(outlet)}


def silences(outlet):
    return {(s.kind, s.subject.node) for s in suspicions(outlet) if s.family == "silence"}


ALL_SILENT = {(kind, f"node-{n}") for kind in ("exporter.stale", "node.silent") for n in range(2)}


def silent_for(seconds, *, ends, messages, restarted=False, step=1.0):
    """What is said when a worker reads ``messages`` and nothing more comes in so many seconds of rounds."""
    outlet, now = Sent(), [NOW - 60.0]

    async def go():
        worker = detect(Log([]), outlet, now=lambda: now[0])
        for message in messages:
            now[0] = max(now[0], message.timestamp)
            await worker.take(message)
            worker.idle(LONE, LONE)
        if restarted:
            worker = detect(log_of(messages), outlet, now=lambda: now[0])
            await worker.prepare(("node-samples", 0), len(messages), timestamp=now[0])
        for _ in range(seconds):
            now[0] += step
            worker.idle(LONE, ends)

    asyncio.run(go())
    return silences(outlet)


def log_of(messages):
    log = Log([], topic="node-samples")
    log.messages = list(messages)
    return log


LONE = {("node-samples", 0): 120}


@pytest.mark.parametrize("restarted", [False, True])
def test_a_worker_whose_partitions_all_fall_silent_reports_it(restarted):
    """No record is left to move event time; the seconds spent listening do, also after a restart."""
    messages = nodes_on(0, traffic.nodes(count=2, seconds=60, ends=NOW))
    assert silent_for(28, ends=LONE, messages=messages, restarted=restarted) == set()
    assert silent_for(55, ends=LONE, messages=messages, restarted=restarted) == ALL_SILENT


@pytest.mark.parametrize(
    ("ends", "step"), [({}, 1.0), ({("node-samples", 0): 121}, 1.0), (LONE, 3600.0)], ids=str
)
def test_a_worker_that_does_not_read_misses_nobody(ends, step):
    """Brokers that are away, messages that wait, rounds an hour apart: nothing is known of the nodes."""
    messages = nodes_on(0, traffic.nodes(count=2, seconds=60, ends=NOW))
    assert silent_for(90 if step == 1.0 else 14, ends=ends, messages=messages, step=step) == set()


@pytest.mark.parametrize("off", [-3600.0, 3600.0])
def test_a_clock_an_hour_off_is_a_finding_and_no_silence(off):
    """It steps in mid-run; what is beyond the limits of time is a dead letter while it is measured."""
    outlet, now = Sent(), [NOW - 120.0]
    steps_at = NOW - 60.0
    messages = [
        Message("node-samples", 0, n, r.ts + 0.3, encode(off_by(r, off) if r.ts >= steps_at else r))
        for n, r in enumerate(traffic.nodes(count=3, seconds=120, ends=NOW))
    ]

    async def go():
        worker = detect(Log([]), outlet, now=lambda: now[0])
        for message in messages:
            now[0] = message.timestamp
            await worker.take(message)
            worker.idle({("node-samples", 0)}, {("node-samples", 0): message.offset + 1})

    asyncio.run(go())
    assert {(s.kind, s.subject.node) for s in suspicions(outlet)} == {("host.clock_skew", "node-1")}
    letters = [decode_dead_letter(m.value) for m in outlet.messages if m.topic == "dead-letters"]
    assert [letter.reason for letter in letters] == (["bad_time"] * 8 if off > 0 else [])


def off_by(record, seconds):
    return msgspec.structs.replace(record, ts=record.ts + seconds) if record.node == "node-1" else record


@pytest.mark.parametrize("ended", [False, True])
def test_the_end_of_a_job_crosses_from_events_to_steps(story, ended):
    """An event has the key of its node: the worker sends an end of a job on with the key of the job."""
    job, subject = story[0], {"job_id": story[0].job_id}
    end = NodeEvent(cluster=job.cluster, node="epilog", ts=NOW, source="job", code="job.end", subject=subject)
    others = [
        msgspec.structs.replace(record, node=f"other-{record.node}")
        for record in traffic.job(job_id="another", steps=30, ends=NOW + 400)
    ]
    outlet, health = Sent(), Health("detect", lambda: 0.0)
    worker = detect(Log(story), outlet, health, now=lambda: NOW + 400)
    take_all(Log(story), worker)
    if ended:
        take_all(Log([end], "node-events"), worker)
    crossed = [m for m in outlet.messages if m.topic == "job-steps"]
    assert [m.key for m in crossed] == [job.job_id.encode()] * ended
    later = [*(m.value for m in crossed), *map(encode, others)]
    messages = [Message("job-steps", 0, len(story) + n, NOW + 400, value) for n, value in enumerate(later)]

    async def go():
        await _take(worker, messages)
        worker.idle({("job-steps", 0)}, {("job-steps", 0): len(story) + len(later)})

    asyncio.run(go())
    assert health.jobs.jobs == (1 if ended else 2)


def test_the_end_of_a_job_holds_no_steps_back():
    """An end that came late, by whichever node, is no sign of spools that drain: steps go on at once."""
    story = list(traffic.job(steps=40, ends=NOW - 1))
    where = story[0]
    end = NodeEvent(
        cluster=where.cluster,
        node=where.node,
        ts=NOW - 30,
        source="job",
        code="job.end",
        subject={"job_id": "old"},
    )
    outlet = Sent()
    worker = detect(Log([]), outlet)
    take_all(Log([end], "node-events"), worker)
    [crossed] = [m.value for m in outlet.messages if m.topic == "job-steps"]
    told = [(encode(record), record.ts + 0.3) for record in story] + [(crossed, NOW)]
    asyncio.run(_take(worker, [Message("job-steps", 0, n, at, value) for n, (value, at) in enumerate(told)]))
    assert not worker.partitions.holds(("job-steps", 0))
