"""The consumer that hands over batches: around rebalances, and against the pinned faust-streaming."""

import asyncio
import inspect
from importlib.metadata import version
from types import SimpleNamespace
from typing import cast
from unittest.mock import Mock

import faust
import pytest
from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.consumer.subscription_state import SubscriptionState
from aiokafka.errors import KafkaError
from faust.transport import consumer as stock
from faust.transport.drivers import aiokafka as driver
from faust.types import TP
from mode import Service

from benchmarks.speed.transport.kill import Action, disturb
from streams.runtime.kafka.batches.transport import BatchConsumer, BatchTransport, FetchThread

TOPIC = "node-samples"
PLACE, OTHER = TP(TOPIC, 0), TP(TOPIC, 1)

# A poll during which no record comes.
SILENCE = object()

OVERRIDES = {
    "on_buffer_drop": "(self, tp)",
    "stop_flow": "(self)",
    "on_partitions_revoked": "(self, revoked)",
    "_drain_messages": "(self, fetcher)",
    "_filter_tps_with_pending_acks": "(self, topics)",
    "_new_offset": "(self, tp)",
    "_new_consumer_thread": "(self)",
}
USES = {
    "_wait_next_records": "(self, timeout)",
    "_get_active_partitions": "(self)",
    "perform_seek": "(self)",
    "maybe_wait_for_commit_to_finish": "(self)",
    "commit": "(self, topics, start_new_transaction)",
}


def names(function):
    """The parameters of a function, without types and defaults."""
    return f"({', '.join(inspect.signature(function).parameters)})"


class Fetched(BatchConsumer):
    """Fetches what is scripted and commits nowhere."""

    def __init__(self, *args, **kwargs):
        self.script, self.calls, self.fail_seeks = [], [], 0
        self.during_commit = []
        super().__init__(*args, **kwargs)
        self._set_active_tps({PLACE})

    async def _wait_next_records(self, timeout):  # noqa: ASYNC109 - Faust's own parameter
        step = self.script.pop(0)
        active = set(self._active_partitions)
        if step is SILENCE:
            await asyncio.sleep(timeout)
            return {}, active
        return await step() if callable(step) else step, active

    async def perform_seek(self):
        self.calls.append("seek")
        if self.fail_seeks:
            self.fail_seeks -= 1
            raise RuntimeError("rebalancing")

    async def commit(self, topics=None, start_new_transaction=True):
        offsets = self._filter_committable_offsets(self._filter_tps_with_pending_acks(topics))
        self.calls.append(("commit", offsets))
        for step in self.during_commit:
            await step()
        return True

    def highwater(self, tp):
        return 100


class Transport(BatchTransport):
    Consumer = Fetched


@pytest.fixture
def run(tmp_path):
    """Run a scenario with a consumer and the buffer of its topic."""

    def go(scenario):
        async def main():
            app = faust.App("test", broker="kafka://127.0.0.1:1", datadir=str(tmp_path), autodiscover=False)
            transport = app.transport = Transport(app.conf.broker_consumer, app, [TOPIC])

            async def ignore(*_):
                pass

            consumer = transport.create_consumer(
                ignore, on_partitions_revoked=ignore, on_partitions_assigned=ignore
            )
            try:
                await scenario(consumer, transport.buffers[TOPIC])
            finally:
                cast("Fetched", consumer)._thread.thread_loop.close()

        asyncio.run(main())

    return go


def records(*offsets):
    return {PLACE: [ConsumerRecord(TOPIC, 0, n, 0, 1, b"k", b"v", None, 1, 1, ()) for n in offsets]}


def test_faust_is_the_version_this_was_written_for():
    """A new version may call the overridden methods differently: read its consumer.py first."""
    assert (version("faust-streaming"), version("mode-streaming")) == ("0.15.3", "0.7.1")


@pytest.mark.parametrize(("name", "parameters"), (OVERRIDES | USES).items())
def test_private_methods_have_the_parameters_that_are_relied_on(name, parameters):
    """Signatures of what is overridden and called."""
    assert names(getattr(driver.Consumer, name)) == parameters


def test_the_private_methods_are_called_where_expected():
    """Faust's fetcher drains by the method that is overridden, and its commit asks for the offset."""
    assert "consumer._drain_messages(self)" in inspect.getsource(stock.Fetcher)
    assert "self._filter_tps_with_pending_acks(topics)" in inspect.getsource(stock.Consumer.force_commit)
    assert "self._new_offset(tp)" in inspect.getsource(stock.Consumer._filter_committable_offsets)
    thread = driver.AIOKafkaConsumerThread
    assert names(thread._create_worker_consumer) == "(self, transport)"
    assert names(thread._fetch_records) == "(self, consumer, active_partitions, timeout, max_records)"
    assert "self._fetch_records" in inspect.getsource(thread.getmany)
    assert issubclass(FetchThread, driver.AIOKafkaConsumerThread)
    fetches = inspect.getsource(AIOKafkaConsumer.start)
    assert "fetch_min_bytes=self._fetch_min_bytes" in fetches
    assert "fetch_max_wait_ms=self._fetch_max_wait_ms" in fetches


def test_nothing_else_of_faust_is_overridden():
    """An attribute or method of the consumer does not hide one of Faust's by accident."""
    theirs = set(dir(driver.Consumer)) | set(inspect.get_annotations(stock.Consumer)) | set(dir(Service))
    ours = {name for name, value in vars(BatchConsumer).items() if inspect.isfunction(value)} - {"__init__"}
    assert ours & theirs == set(OVERRIDES)
    assert not theirs & {"epoch", "_done", "_seek_due", "_room"}


def test_what_is_polled_becomes_one_batch_a_partition(run):
    """All records of a poll are in the buffer, with the present epoch."""

    async def scenario(consumer, buffer):
        consumer.script = [records(3, 4, 5)]
        await consumer._drain_once()
        batch = await buffer.get()
        assert (batch.tp, [r.offset for r in batch.records]) == (PLACE, [3, 4, 5])
        assert consumer.is_current(batch.epoch)
        assert isinstance(batch.tp, TP)

    run(scenario)


def test_records_fetched_around_a_rebalance_are_dropped_and_read_again(run):
    """The position is set back to the committed offset before the next fetch, however many tries it takes."""

    async def scenario(consumer, buffer):
        async def revoked_meanwhile():
            await consumer.on_partitions_revoked({PLACE})
            consumer._set_active_tps({PLACE})
            consumer.resume_flow()
            return records(3, 4)

        consumer.script, consumer.fail_seeks = [revoked_meanwhile, records(1, 2)], 1
        for _ in range(3):
            await consumer._drain_once()
        assert [c for c in consumer.calls if c == "seek"] == ["seek", "seek"]
        assert [r.offset for r in (await buffer.get()).records] == [1, 2]

    run(scenario)


def test_nothing_is_fetched_before_the_seek_when_the_flow_goes_on(run):
    """Records were dropped while the flow was stopped; it goes on when the next fetch waits already."""

    async def scenario(consumer, buffer):
        async def revoked_meanwhile():
            await consumer.on_partitions_revoked({PLACE})
            return records(3, 4)

        async def fetched():
            consumer.calls.append("fetch")
            return records(1, 2)

        consumer.script = [revoked_meanwhile, fetched]
        await consumer._drain_once()
        consumer._set_active_tps({PLACE})
        waiting = asyncio.ensure_future(consumer._drain_once())
        await asyncio.sleep(0.01)
        assert "seek" not in consumer.calls
        consumer.resume_flow()
        await asyncio.wait_for(waiting, 5)
        assert consumer.calls[-2:] == ["seek", "fetch"]
        assert [r.offset for r in (await buffer.get()).records] == [1, 2]

    run(scenario)


def test_revoking_commits_what_is_done_and_drops_the_rest(run):
    """Acknowledgements that come later, of messages of the earlier assignment, commit nothing."""

    async def scenario(consumer, buffer):
        consumer.script = [records(3, 4, 5)]
        await consumer._drain_once()
        batch = await buffer.get()
        consumer.acknowledge(PLACE, 5, batch.epoch)
        consumer.script = [records(6, 7)]
        await consumer._drain_once()
        await consumer.on_partitions_revoked({PLACE})
        assert consumer.calls == [("commit", {PLACE: 5})]
        assert not consumer.is_current(batch.epoch)
        consumer.acknowledge(PLACE, 6, batch.epoch)
        await consumer.commit()
        assert consumer.calls[-1] == ("commit", {})
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(buffer.get(), 0.01)

    run(scenario)


def test_records_fetched_during_the_commit_of_a_revocation_are_read_again(run):
    """A batch of these that outlasted the rebalance would acknowledge the records dropped before it."""

    async def scenario(consumer, buffer):
        consumer.during_commit, consumer.script = [consumer._drain_once], [records(6, 7), records(3, 4)]
        await consumer.on_partitions_revoked({PLACE})
        consumer.during_commit = []
        consumer._set_active_tps({PLACE})
        consumer.resume_flow()
        await consumer._drain_once()
        batch = await buffer.get()
        assert [r.offset for r in batch.records] == [3, 4]
        assert consumer.calls[-1] == "seek"
        assert consumer.is_current(batch.epoch)

    run(scenario)


def test_acknowledgements_never_go_back(run):
    """A message that was read twice does not lower the offset to commit, and none is committed twice."""

    async def scenario(consumer, buffer):
        for offset in (7, 4):
            consumer.acknowledge(PLACE, offset, consumer.epoch)
        assert consumer._new_offset(PLACE) == 7
        consumer._committed_offset[PLACE] = 7
        await consumer.commit()
        assert consumer.calls == [("commit", {})]

    run(scenario)


def test_fetching_goes_on_at_once_when_a_full_partition_has_room_again(run):
    """With every partition paused the consumer waits for the buffer instead of Faust's second."""

    async def scenario(consumer, buffer):
        consumer.script = [records(*range(1000)), records(1000)]
        await consumer._drain_once()
        waiting = asyncio.ensure_future(consumer._drain_once())
        await asyncio.sleep(0)
        for _ in range(5):
            buffer.done(await buffer.get())
        await asyncio.wait_for(waiting, 0.5)
        await consumer._drain_once()
        assert buffer._held[PLACE] == 501

    run(scenario)


def test_a_wait_for_quiet_partitions_ends_soon_when_a_full_one_has_room_again(run):
    """A worker that is behind would be idle for most of a second each time."""

    async def scenario(consumer, buffer):
        consumer._set_active_tps({PLACE, OTHER})
        consumer.script = [records(*range(1000)), SILENCE, records(1000)]
        await consumer._drain_once()
        assert consumer._get_active_partitions() == {OTHER}
        waiting = asyncio.ensure_future(consumer._drain_once())
        await asyncio.sleep(0)
        for _ in range(5):
            buffer.done(await buffer.get())
        await asyncio.wait_for(waiting, 0.5)
        assert consumer._get_active_partitions() == {PLACE, OTHER}
        await consumer._drain_once()
        assert buffer._held[PLACE] == 501

    run(scenario)


def test_a_poll_returns_a_share_of_every_partition():
    """Aiokafka would fill the poll from the first; an error of one partition keeps back none of another."""
    waiting = {TP(TOPIC, p): list(range(10)) for p in range(3)}

    class Thread(FetchThread):
        def __init__(self):
            pass

    async def fetched(self, consumer, places, timeout, max_records):  # noqa: ASYNC109 - Faust's own
        taken = {}
        for place in [p for p in waiting if p in places][:1]:
            if place.partition == 1:
                raise KafkaError("not yet")
            taken[place], waiting[place] = waiting[place][:max_records], waiting[place][max_records:]
        return taken

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver.AIOKafkaConsumerThread, "_fetch_records", fetched)
        found = asyncio.run(Thread()._fetch_records(None, set(waiting), 1.0, 6))
        assert asyncio.run(Thread()._fetch_records(None, set(), 1.0, 6)) == {}
    assert found == {TP(TOPIC, 0): [0, 1], TP(TOPIC, 2): [0, 1]}


def test_a_partition_without_committed_offset_is_read_from_its_beginning():
    """aiokafka itself would leave its position after what was fetched and dropped."""

    class Client:
        async def seek_to_committed(self):
            return {TP(TOPIC, 0): 7, TP(TOPIC, 1): None, TP(TOPIC, 2): 0}

        async def seek_to_beginning(self, *places):
            sought.extend(places)

    class Thread(FetchThread):
        def __init__(self):
            pass

        async def call_thread(self, function, *args):
            return await function(*args)

        def _ensure_consumer(self):
            return Client()

    sought: list[TP] = []
    assert asyncio.run(Thread().seek_to_committed())[PLACE] == 7
    assert sought == [TP(TOPIC, 1), TP(TOPIC, 2)]


def test_a_partition_whose_position_is_being_looked_up_ends_no_worker():
    """Faust's livelock detector reads the position of every partition, at any time."""

    class Thread(FetchThread):
        def __init__(self, subscriptions):
            self.consumer, self.time_started, self.tp_fetch_request_timeout_secs = Mock(), 0.0, 100.0
            self.aiokafka = SimpleNamespace(_fetcher=SimpleNamespace(_subscriptions=subscriptions))

        def _ensure_consumer(self):
            return self.aiokafka

    async def scenario():
        subscriptions, place = SubscriptionState(), TopicPartition(TOPIC, 0)
        subscriptions.subscribe({TOPIC})
        subscriptions.assign_from_subscribed({place})
        subscriptions.subscription.assignment.state_value(place).timestamp = 1000.0
        with pytest.raises(AssertionError):
            driver.AIOKafkaConsumerThread.verify_event_path(Thread(subscriptions), 2.0, PLACE)
        Thread(subscriptions).verify_event_path(2.0, PLACE)

    asyncio.run(scenario())


@pytest.mark.slow  # 20 s
def test_killing_and_stopping_workers_loses_nothing(kafka_bootstrap):
    """Every record is processed, and all offsets are committed, although workers end at any moment."""
    actions: list[tuple[float, Action]] = [(0.1, "kill"), (0.1, "start"), (0.5, "stop"), (0.55, "start")]
    found = disturb(kafka_bootstrap, 8000, actions, rate=800, seconds=90)
    assert (found.lost, found.committed) == (0, 8000)
    assert found.twice < 4000
