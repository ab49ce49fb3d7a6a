"""Acknowledges messages in order, each when all its outputs are durable."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from streams.runtime.kafka.message import Message

# Messages taken whose outputs are not durable yet. Chosen: few are read again after a crash.
IN_FLIGHT = 1000

Take = Callable[[Message], Awaitable[asyncio.Future[None] | None]]
"""Processes a message; the future, if any, is done when its outputs are durable."""


class Acks:
    """Runs beside the reading of a topic; a message without acknowledgement is read again after a restart."""

    def __init__(self, ack: Callable[[Any], Awaitable[Any]]) -> None:
        self._ack = ack
        self._waiting: asyncio.Queue[tuple[Any, asyncio.Future[None] | None]] = asyncio.Queue(IN_FLIGHT)
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.get_running_loop().create_task(self._run())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def put(self, event: Any, durable: asyncio.Future[None] | None) -> None:
        """Acknowledge ``event`` when ``durable`` is done and all before it are acknowledged.

        Raises what an earlier acknowledgement raised.
        """
        if self._task is not None and self._task.done():
            self._task.result()
        await self._waiting.put((event, durable))

    async def _run(self) -> None:
        while True:
            event, durable = await self._waiting.get()
            if durable is not None:
                # Several messages may share one future: cancelling this task must not cancel it for the
                # others.
                await asyncio.shield(durable)
            await self._ack(event)
