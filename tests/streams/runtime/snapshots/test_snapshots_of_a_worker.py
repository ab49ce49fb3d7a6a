import asyncio
import itertools
from dataclasses import replace

import pytest
from aiokafka.errors import KafkaConnectionError

from slowrank.settings import Settings
from slowrank.telemetry import Suspicion, encode
from streams.config.settings import Tuning
from streams.runtime.detect_worker import Detect
from streams.runtime.kafka.moved_keys import MovedKeys
from streams.runtime.kafka.placement import Counts
from streams.runtime.monitoring.health import Health
from streams.runtime.partitions.context import WorkerContext
from streams.runtime.private_folder import Unprepared
from streams.runtime.snapshots.snapshot_folder import SnapshotFolder
from streams.runtime.snapshots.snapshot_writer import SnapshotWriter
from streams.runtime.worker import snapshot_folder
from streams.stage import Restorable
from tests.streams import traffic
from tests.streams.runtime.test_detect_worker import NOW, Log, Sent, suspicions

PLACE = ("job-steps", 0)


class Installation:
    """A log of one partition, the folder of the snapshots, and one worker after the other."""

    def __init__(self, folder, log):
        self.folder, self.log, self.now, self.code = folder, log, NOW, "this code"
        self.sent, self.read = Sent(), []
        self.count, self.health = 1, Health("detect", lambda: 0.0)

    async def read_on(self, topic, partition, first, upto):
        for message in self.log.messages[first:upto]:
            self.read.append(message.offset)
            yield message

    def start(self):
        """A worker that has just started."""
        self.health = Health("detect", lambda: self.now)
        self.snapshots = SnapshotFolder(
            self.folder,
            identity=self.code,
            read_on=self.read_on,
            counts=self.health.snapshots,
            now=lambda: self.now,
        )
        context = WorkerContext(
            name=lambda topic: topic,
            reread=self.log.read,
            producer=self.sent,
            health=self.health,
            now=lambda: self.now,
            window=600.0,
            snapshots=self.snapshots,
        )

        async def counts(topics):
            return {topic: Counts(self.count) for topic in topics}

        async def committed():
            return {}

        moves = MovedKeys("detect", counts, committed, self.health)
        moves.rebalanced()
        self.worker = Detect(context, tuning=Tuning(), moves=moves)
        return self.worker

    def writer(self, durable=None, seconds=60.0):
        return SnapshotWriter(
            self.worker.partitions,
            self.snapshots,
            durable=durable or (lambda: self.sent.post([])),
            counts=self.health.snapshots,
            clock=lambda: self.now,
            seconds=seconds,
        )


@pytest.fixture(scope="module")
def story():
    return list(traffic.job(slow=(5, 100, 1.5), ends=NOW - 1))


@pytest.fixture
def made(tmp_path, story):
    return Installation(tmp_path, Log(story))


async def take(worker, messages):
    for message in messages:
        await worker.take(message)


async def until(made, offset):
    """Let a worker take so much and write its snapshot."""
    worker = made.start()
    await take(worker, made.log.messages[:offset])
    await made.writer().stop()


def restart(made, offset, *, first=None):
    """Stop one worker at ``offset`` and start another at ``first``; return what the second was asked for."""

    async def go():
        await until(made, offset)
        made.log.reread.clear()
        await take(made.start(), made.log.messages[offset if first is None else first :])

    asyncio.run(go())
    return made.health.snapshots


def test_a_worker_goes_on_from_its_snapshot(made, story):
    """Nothing but the last message is read again, and the suspicions are those of one worker."""
    whole = Installation(made.folder / "none", Log(story))
    asyncio.run(take(whole.start(), whole.log.messages))
    counts = restart(made, 300)
    assert counts.loaded == 1
    assert made.log.reread == []
    assert made.read == [299]
    assert suspicions(made.sent) == suspicions(whole.sent)
    assert any(isinstance(s, Suspicion) for s in suspicions(made.sent))


def test_the_rest_of_the_log_is_read(made):
    """What the worker before took after its snapshot."""
    counts = restart(made, 300, first=350)
    assert counts.loaded == 1
    assert made.read == list(range(299, 350))


def test_messages_before_the_snapshot_are_not_taken_again(made, story):
    """Not all that it holds had been acknowledged."""
    whole = Installation(made.folder / "none", Log(story))
    asyncio.run(take(whole.start(), whole.log.messages))
    assert restart(made, 300, first=250).loaded == 1
    assert suspicions(made.sent) == suspicions(whole.sent)


def changed(made, what):
    if what == "foreign":
        made.code = "other code"
    elif what == "resized":
        made.count = 2
    elif what == "other_log":
        made.log.messages[299] = replace(made.log.messages[299], value=encode(next(traffic.job(steps=1))))
    elif what == "unsafe":
        next(made.folder.glob("*.snapshot")).chmod(0o666)
    elif what == "old":
        # The log goes on an hour later.
        made.log.messages[301:] = [replace(m, timestamp=m.timestamp + 3600) for m in made.log.messages[301:]]
        made.now += 3600


@pytest.mark.parametrize("what", ["foreign", "resized", "other_log", "unsafe", "old"])
def test_one_that_does_not_fit_is_ignored(made, what):
    """The state is rebuilt from the log, and a metric has the reason."""

    async def go():
        await until(made, 300)
        changed(made, what)
        await take(made.start(), made.log.messages[310:])

    asyncio.run(go())
    assert dict(made.health.snapshots.refused) == {what: 1}
    assert made.health.snapshots.loaded == 0
    assert made.log.reread[-1][1] == 310


def test_offsets_that_were_set_back_win(made):
    """Whoever sets them back wants all that follows to be processed again."""
    early = [replace(m, timestamp=m.timestamp - (2000 if m.offset < 100 else 0)) for m in made.log.messages]
    made.log.messages = early
    counts = restart(made, 300, first=50)
    assert dict(counts.refused) == {"ahead": 1}


def test_one_that_kills_the_worker_does_so_once(made, monkeypatch):
    """It is set aside until it has become a state."""

    async def go():
        await until(made, 300)
        monkeypatch.setattr("streams.runtime.snapshots.snapshot_folder.loads", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            await take(made.start(), made.log.messages[300:301])
        await take(made.start(), made.log.messages[300:301])

    asyncio.run(go())
    assert made.health.snapshots.loaded == 0
    assert made.log.reread[-1][1] == 300


def test_brokers_that_are_away_cost_no_snapshot(made, monkeypatch):
    """It is used once the rest of the log can be read."""
    read_on, failures = made.read_on, iter([KafkaConnectionError("gone")])

    async def away(*where):
        for error in failures:
            raise error
        async for message in read_on(*where):
            yield message

    async def go():
        await until(made, 300)
        monkeypatch.setattr(made, "read_on", away)
        await take(made.start(), made.log.messages[300:301])

    asyncio.run(go())
    assert made.health.snapshots.loaded == 1
    assert list(made.folder.glob("*.snapshot"))


def test_a_stage_that_failed_leaves_no_snapshot(made, monkeypatch):
    """Its state may be the cause, and the next worker is to have another."""

    async def go():
        await until(made, 300)
        worker = made.start()
        await take(worker, made.log.messages[300:305])
        state = worker.partitions.states[PLACE]
        monkeypatch.setattr(state.stage, "process", lambda _: 1 / 0)
        await take(worker, made.log.messages[305:306])
        await made.writer().stop()

    asyncio.run(go())
    assert list(made.folder.glob("*.snapshot")) == []


def test_nothing_is_written_before_the_outputs_are_durable(made):
    """Otherwise a restart would skip messages whose outputs are nowhere."""

    async def go():
        worker = made.start()
        await take(worker, made.log.messages[:300])
        durable = asyncio.get_running_loop().create_future()
        writing = asyncio.create_task(made.writer(lambda: durable).stop())
        await asyncio.sleep(0.05)
        assert list(made.folder.iterdir()) == []
        # What is taken meanwhile is not in it.
        await take(worker, made.log.messages[300:320])
        durable.set_result(None)
        await writing
        made.log.reread.clear()
        await take(made.start(), made.log.messages[320:])

    asyncio.run(go())
    assert made.read == list(range(299, 320))


def test_a_stop_does_not_wait_for_brokers_that_are_away(made, monkeypatch):
    """Whoever stops the worker would kill it."""
    monkeypatch.setattr("streams.runtime.snapshots.snapshot_writer.AT_STOP_SECONDS", 0.05)

    async def go():
        await take(made.start(), made.log.messages[:300])
        never = asyncio.get_running_loop().create_future()
        await made.writer(lambda: never).stop()

    asyncio.run(go())
    assert list(made.folder.iterdir()) == []


@pytest.mark.parametrize(("cost", "interval"), [(0.0, 60), (4.0, 200)])
def test_each_partition_is_written_once_a_minute(made, monkeypatch, cost, interval):
    """And rarer where it costs more than its share."""
    written = []

    async def go():
        await take(made.start(), made.log.messages[:100])
        writer = made.writer()

        def save(*_):
            written.append(made.now)
            return cost

        monkeypatch.setattr(writer, "_save", save)
        for _ in range(600):
            await writer.round()
            made.now += 1.0

    asyncio.run(go())
    assert 30 <= written[0] - NOW <= 60
    assert all(interval <= b - a <= interval + 10 for a, b in itertools.pairwise(written))
    assert len(written) >= 3


def test_every_stage_of_the_worker_gives_snapshots(made):
    """A worker of which none did would read the log as before, without any error."""
    worker = made.start()
    for topic in ("node-samples", "node-events", "job-steps"):
        state = worker.partitions._new_state((topic, 0))
        assert isinstance(state.stage, Restorable)


def test_a_state_folder_that_cannot_be_used_costs_the_snapshots_alone(tmp_path, monkeypatch):
    """The worker runs without, as before there were any; 0 seconds switches them off."""
    (tmp_path / "file").touch()
    health = Health("detect", lambda: 0.0)
    settings = Settings(streams_runtime_dir=tmp_path, streams_state_dir=tmp_path / "file" / "state")
    assert snapshot_folder(settings, Tuning(), health) is None

    def of_another_user(folder):
        raise Unprepared(f"{folder} belongs to another user")

    monkeypatch.setattr("streams.runtime.worker.make_private", of_another_user)
    assert snapshot_folder(Settings(streams_runtime_dir=tmp_path), Tuning(), health) is None
    monkeypatch.undo()
    off = Settings(streams_runtime_dir=tmp_path, streams_snapshot_seconds=0)
    assert snapshot_folder(off, Tuning(), health) is None
    assert not (tmp_path / "state").exists()
    assert snapshot_folder(Settings(streams_runtime_dir=tmp_path), Tuning(), health) is not None
    assert (tmp_path / "state" / "snapshots").stat().st_mode & 0o777 == 0o700
