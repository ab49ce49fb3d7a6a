"""Sends messages to Kafka until the brokers have acknowledged them."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack, suppress
from typing import Any, TypeVar

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError, UnknownTopicOrPartitionError

from streams.runtime.kafka.clients import METADATA_MS, started
from streams.runtime.kafka.message import Outgoing
from streams.runtime.monitoring.health import Health

log = logging.getLogger(__name__)

# Between two attempts. Chosen: a server that is back is noticed within seconds, at little load.
LONGEST_PAUSE_SECONDS = 5.0
# An attempt that takes longer is reported as waiting for the server. Chosen: well below the watchdog's 30 s.
SLOW_SECONDS = 5.0
# Messages sent together. Chosen: one round trip for many, and few to send again.
BATCH = 500
# At a stop. What is not sent by then is not acknowledged either, and is read again.
DRAIN_SECONDS = 5.0

T = TypeVar("T")


async def until_done(
    attempt: Callable[[], Awaitable[T]], away: tuple[type[Exception], ...], *, health: Health, what: str
) -> T:
    """Retry until ``attempt`` succeeds; ``away`` are the errors of a server that is not available.

    The caller's record is not acknowledged meanwhile, so that nothing is lost however long it takes.
    """
    pause, loop = 0.1, asyncio.get_running_loop()
    while True:
        try:
            with ExitStack() as slow:
                note = loop.call_later(SLOW_SECONDS, slow.enter_context, health.waiting(what))
                try:
                    return await attempt()
                finally:
                    note.cancel()
        except away as error:
            log.warning("%s does not answer, trying again in %.1f s: %r", what, pause, error)
            with health.waiting(what):
                await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)


class DurableProducer:
    """Sends posted messages in order and in batches, and retries until the brokers have them.

    Posting does not wait: many dead letters must not make the messages between them wait for a round trip
    each. The caller may acknowledge its own message when the future is done.
    """

    def __init__(self, bootstrap: str, health: Health) -> None:
        self._bootstrap = bootstrap
        self._health = health
        self._producer: AIOKafkaProducer | None = None
        self._posted: asyncio.Queue[tuple[Sequence[Outgoing], asyncio.Future[None]]] = asyncio.Queue()
        self._last: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None

    def post(self, messages: Sequence[Outgoing]) -> asyncio.Future[None]:
        """Take messages to send; the future is done when they, and all posted before them, are durable."""
        loop = asyncio.get_running_loop()
        if self._task is None:
            self._task = loop.create_task(self._run())
        # An empty post waits for what was posted before it: acknowledgements keep the order of the log.
        if messages or self._last is None:
            self._last = loop.create_future()
            self._posted.put_nowait((messages, self._last))
        return self._last

    async def close(self) -> None:
        """Send what is left for ``DRAIN_SECONDS``, then disconnect from the brokers."""
        if self._last is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(self._last), DRAIN_SECONDS)
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        await self._discard()

    async def _discard(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            with suppress(KafkaError):
                await producer.stop()

    async def _run(self) -> None:
        while True:
            posts = [await self._posted.get()]
            while not self._posted.empty() and sum(len(m) for m, _ in posts) < BATCH:
                posts.append(self._posted.get_nowait())
            await self._send([message for messages, _ in posts for message in messages])
            for _, durable in posts:
                if not durable.done():
                    durable.set_result(None)

    async def _send(self, messages: list[Outgoing]) -> None:
        waiting = messages

        async def attempt() -> list[Outgoing]:
            return await self._attempt(waiting)

        while waiting:
            waiting = await until_done(attempt, (KafkaError,), health=self._health, what="kafka")

    async def _attempt(self, messages: list[Outgoing]) -> list[Outgoing]:
        producer = await self._started()
        try:
            futures = [await self._sent(producer, m) for m in messages]
        except KafkaError:
            await self._discard()
            raise
        results = await asyncio.gather(*futures, return_exceptions=True)
        failed = [(m, r) for m, r in zip(messages, results, strict=True) if isinstance(r, BaseException)]
        if failed:
            # A producer that gave up a batch is out of sequence: the brokers refuse all that follows.
            await self._discard()
        if failed and len(failed) == len(messages):
            raise failed[0][1]
        return [m for m, _ in failed]

    async def _sent(self, producer: AIOKafkaProducer, m: Outgoing) -> asyncio.Future[Any]:
        if m.partition is not None and m.partition not in await producer.partitions_for(m.topic):
            # A topic that has just grown: the producer's metadata is older.
            await producer.client.force_metadata_update()
            if m.partition not in await producer.partitions_for(m.topic):
                raise UnknownTopicOrPartitionError(f"{m.topic}:{m.partition}")
        sent: asyncio.Future[Any] = await producer.send(
            m.topic, value=m.value, key=m.key or None, headers=m.headers, partition=m.partition
        )
        return sent

    async def _started(self) -> AIOKafkaProducer:
        if self._producer is None:
            self._producer = await started(
                AIOKafkaProducer(
                    bootstrap_servers=self._bootstrap,
                    enable_idempotence=True,
                    compression_type="zstd",
                    request_timeout_ms=15_000,
                    metadata_max_age_ms=METADATA_MS,
                )
            )
        return self._producer
