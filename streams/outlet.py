"""Messages out, acknowledged by the brokers before anyone calls them sent."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from streams.dead_letters import Outgoing
from streams.health import Health

log = logging.getLogger(__name__)

LONGEST_PAUSE_SECONDS = 5.0

T = TypeVar("T")


async def until_done(
    attempt: Callable[[], Awaitable[T]], away: tuple[type[Exception], ...], *, health: Health, what: str
) -> T:
    """Try until it works; ``away`` are the errors of a server that will come back.

    The caller's record is not acknowledged meanwhile, so that nothing is lost however long it takes.
    """
    pause = 0.1
    while True:
        try:
            return await attempt()
        except away as error:
            log.warning("%s does not answer, trying again in %.1f s: %s", what, pause, error)
            with health.waiting(what):
                await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)


class Outlet:
    """A producer that sends again until every message is acknowledged by all in-sync replicas."""

    def __init__(self, bootstrap: str, health: Health) -> None:
        self._bootstrap = bootstrap
        self._health = health
        self._producer: AIOKafkaProducer | None = None

    async def send(self, messages: Sequence[Outgoing]) -> None:
        """Send all messages, in order; return when all are durable."""
        waiting = list(messages)

        async def attempt() -> list[Outgoing]:
            return await self._attempt(waiting)

        while waiting:
            waiting = await until_done(attempt, (KafkaError,), health=self._health, what="kafka")

    async def close(self) -> None:
        """Let go of the brokers."""
        if self._producer is not None:
            await self._producer.stop()
            self._producer = None

    async def _attempt(self, messages: list[Outgoing]) -> list[Outgoing]:
        producer = await self._started()
        futures = [
            await producer.send(m.topic, value=m.value, key=m.key or None, headers=m.headers)
            for m in messages
        ]
        results = await asyncio.gather(*futures, return_exceptions=True)
        failed = [(m, r) for m, r in zip(messages, results, strict=True) if isinstance(r, BaseException)]
        if failed and len(failed) == len(messages):
            raise failed[0][1]
        return [m for m, _ in failed]

    async def _started(self) -> AIOKafkaProducer:
        if self._producer is None:
            producer = AIOKafkaProducer(
                bootstrap_servers=self._bootstrap,
                enable_idempotence=True,
                compression_type="zstd",
                request_timeout_ms=15_000,
            )
            try:
                await producer.start()
            except BaseException:
                await producer.stop()
                raise
            self._producer = producer
        return self._producer
