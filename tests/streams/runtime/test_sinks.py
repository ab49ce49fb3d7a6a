import asyncio
import itertools
from typing import Any

import psycopg
import pytest

from slowrank.telemetry import RankPace, decode_dead_letter, encode
from store.findings.findings import REMEMBERED_SECONDS
from store.telemetry.buckets import NodeLatest, SampleRollup, SampleRollups
from streams.config.settings import Tuning
from streams.job.stage import JobStage
from streams.rollup.message_rows import pace_row
from streams.runtime.finding_sink import FINDING_WINDOW_SECONDS, FindingSink
from streams.runtime.kafka.message import Message
from streams.runtime.monitoring.health import Health
from streams.runtime.partitions.partition import PartitionState
from streams.runtime.rollup_sink import RollUpSink
from streams.runtime.write_buffer import RowBuffer
from tests.roll_ups import unpacked
from tests.streams import traffic
from tests.streams.runtime.test_detect_worker import NOW, Log, Sent, context


class Database:
    """Keeps what it is given; ``errors`` are raised first, one a call."""

    def __init__(self):
        self.findings, self.rows, self.errors, self.refused = [], [], [], set()

    def save(self, finding):
        self._maybe_fail()
        self.findings.append(finding)

    def write(self, rows):
        self._maybe_fail()
        if self.refused.intersection(rows):
            raise psycopg.DataError("integer out of range")
        self.rows += rows

    def _maybe_fail(self):
        if self.errors:
            raise self.errors.pop(0)


class Sinks:
    """Both sinks of a storing worker over one buffer of rows."""

    def __init__(self, log, database, outlet=None, health=None, tuning=None):
        health = health or Health("sink", lambda: 0.0)
        shared = context(log, outlet or Sent(), health)
        rows = RowBuffer(database.write, health, itertools.count().__next__)
        self.rollups = RollUpSink(shared, rows=rows)
        self.findings = FindingSink(shared, save=database.save, rows=rows, tuning=tuning or Tuning())


@pytest.fixture(scope="module")
def suspected():
    """The suspicions topic of a job with a slow rank, heartbeats included."""
    partition = PartitionState("job-steps:0", JobStage())
    return [s for r in traffic.job(slow=(5, 100, 1.5), ends=NOW - 1) for s in partition.process(r, r.ts)]


def log_of(records, topic):
    log = Log([], topic)
    log.messages = [Message(topic, 0, n, NOW, encode(r)) for n, r in enumerate(records)]
    return log


async def take(worker, messages):
    for message in messages:
        await (worker.findings if message.topic == "suspicions" else worker.rollups).take(message)


def test_the_store_leaves_to_a_worker_what_it_reads_again():
    """What a restarted worker still hears of, the store does not end."""
    assert REMEMBERED_SECONDS == FINDING_WINDOW_SECONDS


def test_suspicions_become_one_open_finding(suspected):
    """The finding stage lives from the suspicions and the heartbeats between them."""
    log, database = log_of(suspected, "suspicions"), Database()
    asyncio.run(take(Sinks(log, database), log.messages))
    last = {f.id: f for f in database.findings}
    assert [(f.kind, f.status, f.subject.rank) for f in last.values()] == [("straggler.fail_slow", "open", 5)]


def test_a_database_that_is_away_is_waited_for(suspected):
    """Every version reaches the store in order, however often it had to be tried."""
    log, calm, troubled = log_of(suspected, "suspicions"), Database(), Database()
    asyncio.run(take(Sinks(log, calm), log.messages))
    troubled.errors = [psycopg.OperationalError("gone")] * 3
    asyncio.run(take(Sinks(log, troubled), log.messages))
    assert troubled.findings == calm.findings


def test_a_finding_the_store_refuses_is_set_aside(suspected):
    """What will be refused each time becomes a dead letter, and the rest goes on."""
    log, database, outlet = log_of(suspected, "suspicions"), Database(), Sent()
    database.errors = [psycopg.DataError("never")]
    asyncio.run(take(Sinks(log, database, outlet), log.messages))
    [letter] = [decode_dead_letter(m.value) for m in outlet.messages]
    assert letter.reason == "store_refused"
    assert database.findings


def test_a_restarted_sink_saves_nothing_twice(suspected):
    """What came before its first message was stored by the one before it."""
    log, whole, after = log_of(suspected, "suspicions"), Database(), Database()
    asyncio.run(take(Sinks(log, whole), log.messages))
    cut = len(suspected) * 2 // 3
    first = Database()
    asyncio.run(take(Sinks(log, first), log.messages[:cut]))
    asyncio.run(take(Sinks(log, after), log.messages[cut:]))
    assert first.findings + after.findings == whole.findings


def test_rows_are_whole_when_the_worker_looks_after_idle_partitions_during_a_rebuild():
    """What is held back in the new state must not be processed in the one that it replaces."""
    # Two minutes late: held back until it shows whether a clock is off or a spool drains.
    records = list(traffic.nodes(count=2, seconds=2, ends=NOW - 120))
    log, database = log_of(records, "node-samples"), Database()
    read, health = log.read, Health("sink", lambda: 0.0)
    rows = RowBuffer(database.write, health, itertools.count().__next__)

    async def disturbed(*place):
        async for message in read(*place):
            yield message
        await worker.write_idle(0.0)

    log.read = disturbed
    worker = RollUpSink(context(log, Sent(), health, now=lambda: NOW + 60), rows=rows)

    async def go():
        await worker.take(log.messages[0])
        await worker.take(log.messages[-1])
        await worker.write_idle(0.0)

    asyncio.run(go())
    assert hosts_in(database.rows) == len(records)


def hosts_in(rows):
    """How many samples of hosts the fullest rows of each bucket hold."""
    fullest: dict[Any, int] = {}
    for row in unpacked(rows):
        if isinstance(row, SampleRollup):
            key = (row.block, row.node, row.instance, row.bucket)
            fullest[key] = max(fullest.get(key, 0), row.n)
    return sum(n for (block, *_), n in fullest.items() if block == "host")


def test_rows_are_whole_after_a_restart_anywhere():
    """The rows that were still gathering are made again from the log."""
    records = list(traffic.nodes(count=2, seconds=60, ends=NOW - 1))
    log, database = log_of(records, "node-samples"), Database()
    asyncio.run(take(Sinks(log, database), log.messages[:70]))

    async def rest():
        worker = Sinks(log, database)
        await take(worker, log.messages[70:])
        await worker.rollups.write_idle(0.0)

    asyncio.run(rest())
    assert hosts_in(database.rows) == len(records)


@pytest.mark.parametrize("cut", [0.3, 0.7])
def test_paces_outlive_a_restart_anywhere(cut):
    """A pace that was still gathering when a worker ended is read again, and none leads to a finding."""
    partition = PartitionState("job-steps:0", JobStage())
    job = traffic.job(ranks=8, steps=300, step_seconds=30.0, ends=NOW - 1)
    said = [s for r in job for s in partition.process(r, r.ts)]
    paces = {pace_row(s) for s in said if isinstance(s, RankPace)}
    assert len(paces) > 8
    log, database = log_of(said, "suspicions"), Database()
    asyncio.run(take(Sinks(log, database), log.messages[: int(cut * len(said))]))

    async def rest():
        worker = Sinks(log, database)
        await take(worker, log.messages[int(cut * len(said)) :])
        await worker.rollups.write_idle(0.0)

    asyncio.run(rest())
    assert set(database.rows) == paces
    assert database.findings == []


def test_one_row_that_cannot_be_stored_does_not_hold_up_the_others():
    """The batch is halved until the bad row is alone; it is counted, the others are written once."""
    health, database = Health("sink", lambda: 0.0), Database()
    nodes = [
        NodeLatest(cluster="c", node=f"n{i}", last_seen_at=NOW, boot_id="b", seq=i, gpus=8, nics=1)
        for i in range(50)
    ]
    database.refused = {nodes[17]}
    database.errors = [psycopg.OperationalError("gone")]
    buffer = RowBuffer(database.write, health, lambda: 0.0)
    buffer.add(list(nodes))
    asyncio.run(buffer.flush(force=True))
    assert health.outputs == {"rows_refused": 1, "rows": 49}
    assert sorted(r.seq for r in database.rows) == [i for i in range(50) if i != 17]


def test_rows_wait_for_company_but_not_for_long():
    """A few rows are written after a second, many at once."""
    now, database = [0.0], Database()
    buffer = RowBuffer(database.write, Health("sink", lambda: 0.0), lambda: now[0])
    node = NodeLatest(cluster="c", node="n", last_seen_at=NOW, boot_id="b", seq=1, gpus=8, nics=1)
    buffer.add([node])
    asyncio.run(buffer.flush())
    assert database.rows == []
    now[0] = 1.0
    asyncio.run(buffer.flush())
    assert database.rows == [node]
    buffer.add([node] * 2000)
    asyncio.run(buffer.flush())
    assert len(database.rows) == 2001


def test_no_more_is_read_again_than_is_kept():
    """Five minutes of roll-ups and three buckets, however much rebuilds the detectors."""
    log, database = Log(list(traffic.nodes(count=1, seconds=600, ends=NOW)), topic="node-samples"), Database()
    sinks = Sinks(log, database)
    asyncio.run(sinks.rollups.take(log.messages[-1]))
    assert log.reread == [(log.messages[-1].timestamp - 330.0, len(log.messages) - 1)]
    rows = [r for r in database.rows + sinks.rollups._rows._rows if isinstance(r, SampleRollups)]
    assert min(row.bucket for row in rows) >= NOW - 345.0
