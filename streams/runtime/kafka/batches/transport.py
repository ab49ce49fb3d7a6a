"""Faust's Kafka transport with a consumer that hands over whole batches instead of single messages.

Groups, rebalancing, seeking, the commit timer and the lifecycle stay Faust's. Why and what it costs:
docs/decisions/0020-the-hot-path-in-batches.md. It overrides private methods of faust-streaming;
``tests/streams/runtime/kafka/test_batch_transport.py`` holds their signatures to the pinned version.
"""

import asyncio
import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from time import monotonic
from typing import Any

from aiokafka.errors import ConsumerStoppedError, KafkaError
from faust.transport.consumer import ensure_TP
from faust.transport.drivers import aiokafka as driver
from faust.types import TP

from streams.runtime.kafka.batches.buffer import Batch, BatchBuffer

log = logging.getLogger(__name__)

# Longest time that a broker gathers records for one fetch. Chosen: a live record comes that much later, and
# costs a fraction of the CPU time that it costs without (docs/benchmarks.md).
FETCH_WAIT_SECONDS = 0.25

# Bytes for which a fetch waits. Chosen: more than ``FETCH_WAIT_SECONDS`` bring in a live stream, less than a
# catch-up has waiting, which therefore never waits.
FETCH_BYTES = 1 << 20

# Records of one poll. Chosen: the cost of a poll is spread over many.
MAX_POLL_RECORDS = 500

# Longest wait for records. Faust's own value: a stop or a rebalance waits as long.
WAIT_SECONDS = 1.0

# The same while a partition is not read because its buffer is full. Chosen: less than processing half of the
# buffer takes, after which the partition is read again; a worker that is behind must never be idle.
ROOM_SECONDS = 0.02

# Longest time for the commit before partitions are given up. Chosen: well below a rebalance's time-out; what
# is not committed is read twice.
COMMIT_SECONDS = 5.0


class FetchThread(driver.AIOKafkaConsumerThread):
    """Faust's thread around aiokafka's consumer, with fetches that wait for a batch."""

    def _create_worker_consumer(self, transport: Any) -> Any:
        consumer = super()._create_worker_consumer(transport)
        # Faust has no setting for them. The fetcher reads them when the consumer starts.
        consumer._fetch_min_bytes = FETCH_BYTES
        consumer._fetch_max_wait_ms = int(1000 * FETCH_WAIT_SECONDS)
        return consumer

    async def _fetch_records(
        self,
        consumer: Any,
        active_partitions: set[TP],
        timeout: float | None = None,  # noqa: ASYNC109 - Faust's own parameter
        max_records: int | None = None,
    ) -> Any:
        """Return records of every partition that has some, in equal shares.

        aiokafka empties one partition after the other: in a catch-up they would be minutes apart.
        """
        # A copy: the other thread changes the set, and aiokafka takes an empty one for all partitions.
        places = list(active_partitions)
        if not places:
            return {}
        fetch = super()._fetch_records
        share = max(1, (max_records or MAX_POLL_RECORDS) // len(places))
        found = dict(await fetch(consumer, set(places), timeout=timeout, max_records=share))
        for place in places if found else ():
            if place not in found:
                # An error comes again with the next fetch; what others have brought must not be lost for it.
                with suppress(KafkaError):
                    found |= await fetch(consumer, {place}, timeout=0, max_records=share)
        return found

    def verify_event_path(self, now: float, tp: TP) -> None:
        """Log what keeps a partition from being read or committed."""
        # aiokafka asserts a position, which is unknown from a seek to the beginning until the broker answers.
        with suppress(AssertionError):
            super().verify_event_path(now, tp)

    async def seek_to_committed(self) -> Mapping[TP, int]:
        """Seek to the committed offsets, and to the beginning where a group has committed none.

        aiokafka leaves the position of such a partition where it is: what was fetched and dropped around a
        rebalance would be lost.
        """
        committed: Mapping[TP, int] = await super().seek_to_committed()
        unread = [tp for tp, offset in committed.items() if not offset]
        if unread:
            await self.seek_to_beginning(*unread)
        return committed


class BatchConsumer(driver.Consumer):
    """Puts what a poll returns into the buffers of its transport, one batch a partition.

    ``epoch`` counts how often the flow stopped, as it does for each rebalance. What was fetched before, and
    acknowledgements of it, are dropped: it is read again from the committed offset.
    """

    transport: "BatchTransport"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.epoch = 0
        self._done: dict[TP, int] = {}
        self._seek_due = False
        self._room = asyncio.Event()
        super().__init__(*args, **kwargs)
        for buffer in self.transport.buffers.values():
            buffer.pause, buffer.resume = self.on_buffer_full, self.on_buffer_drop

    @property
    def member_id(self) -> str:
        """The id of this consumer in its group; empty before it has joined."""
        # Of Faust's thread, of its consumer and of aiokafka's coordinator: none of them gives it otherwise.
        consumer = getattr(self._thread, "_consumer", None)
        found: str = getattr(getattr(consumer, "_coordinator", None), "member_id", "")
        return found

    def is_current(self, epoch: int) -> bool:
        """Return whether batches of an epoch are still to be processed by this consumer."""
        return epoch == self.epoch and self.flow_active

    def acknowledge(self, tp: TP, next_offset: int, epoch: int) -> None:
        """Let offsets below ``next_offset`` be committed: their outputs, and all before, are durable."""
        if epoch == self.epoch and next_offset > self._done.get(tp, 0):
            self._done[tp] = next_offset

    def on_buffer_drop(self, tp: TP) -> None:
        """Fetch a partition again."""
        super().on_buffer_drop(tp)
        self._room.set()

    def stop_flow(self) -> None:
        """Take no more records, and drop those that were fetched."""
        super().stop_flow()
        self.epoch += 1
        for buffer in self.transport.buffers.values():
            buffer.clear()
        self._buffered_partitions.clear()

    async def on_partitions_revoked(self, revoked: set[TP]) -> None:
        """Commit what is done, and drop what is not."""
        # Before the commit, which may take seconds: a batch that is fetched meanwhile would outlast the
        # rebalance, and its acknowledgement would cover records before it that were dropped.
        self.stop_flow()
        # Without this commit a rebalance lets what was done since the last one be done twice.
        with suppress(TimeoutError):
            await asyncio.wait_for(self._commit_done(), COMMIT_SECONDS)
        self._done.clear()
        await super().on_partitions_revoked(revoked)

    async def _commit_done(self) -> None:
        # A commit under way may have begun before the last acknowledgements.
        await self.maybe_wait_for_commit_to_finish()
        await self.commit()

    def _new_coming(self) -> bool:
        return bool(self._get_active_partitions()) or not self._buffered_partitions

    async def _drain_messages(self, fetcher: Any) -> None:
        try:
            while not (self._stopped.is_set() or fetcher._stopped.is_set()):
                await self._drain_once()
        except (ConsumerStoppedError, asyncio.CancelledError):
            if not self.app.should_stop:
                raise

    async def _drain_once(self) -> None:
        if not self._new_coming():
            # Faust's wait would sleep for a second when all partitions are paused.
            self._room.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._room.wait(), WAIT_SECONDS)
            return
        if self._seek_due:
            # Wait for the flow first: a fetch that began as soon as it goes on would come before the seek. A
            # state built from there takes the records that were dropped for processed.
            if not self.flow_active:
                await self.wait(self.can_resume_flow.wait())
            if not await self._return_to_committed():
                return
        epoch = self.epoch
        # A wait for some partitions goes on while another one gets room.
        wait = ROOM_SECONDS if self._buffered_partitions else WAIT_SECONDS
        records, active = await self._wait_next_records(wait)
        if not records or self.should_stop:
            return
        if not self.is_current(epoch):
            # Fetched around a rebalance: the positions may be those of the assignment before.
            self._seek_due = True
            return
        for place, found in records.items():
            self._put(ensure_TP(place), found, active)

    def _put(self, tp: TP, records: list[Any], active: set[TP] | None) -> None:
        buffer = self.transport.buffers.get(tp.topic)
        if buffer is None or not (active is None or tp in active or tp in self._buffered_partitions):
            self._seek_due = True
            return
        # Faust's livelock detector compares the two.
        self.app.monitor.track_tp_end_offset(tp, self.highwater(tp))
        self.app.monitor.stream_inbound_time[tp] = monotonic()
        buffer.put(Batch(tp, records, self.epoch))

    async def _return_to_committed(self) -> bool:
        try:
            await self.perform_seek()
        except Exception as error:
            # As in Faust: during a rebalance there is nothing to seek, and raising would end the worker.
            log.warning("no seek to the committed offsets yet: %r", error)
            await asyncio.sleep(0.1)
            return False
        self._seek_due = False
        return True

    def _filter_tps_with_pending_acks(self, topics: Any = None) -> Iterator[TP]:
        return (tp for tp in list(self._done) if topics is None or tp in topics or tp.topic in topics)

    def _new_offset(self, tp: TP) -> int | None:
        return self._done.get(tp)

    def _new_consumer_thread(self) -> FetchThread:
        return FetchThread(self, loop=self.loop, beacon=self.beacon)


class BatchTransport(driver.Transport):
    """A transport whose consumer fills ``buffers``, one for each topic that it reads.

    To be set as ``app.transport`` before anything touches ``app.topics``.
    """

    Consumer = BatchConsumer

    def __init__(self, url: Any, app: Any, topics: Iterable[str]) -> None:
        super().__init__(url, app)
        self.buffers: Mapping[str, BatchBuffer] = {topic: BatchBuffer() for topic in topics}
