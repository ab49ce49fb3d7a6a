"""Work beside the rounds of a worker, because it may have to wait for a server."""

import asyncio
import math
from collections.abc import Callable, Coroutine
from typing import Any


class BackgroundTask:
    """Runs one coroutine at a time; the rounds, and with them the worker's heartbeats, go on meanwhile."""

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None

    def begin(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Begin ``work`` unless the last one is still under way. Raises what the last one raised."""
        if self._task is not None:
            if not self._task.done():
                return
            self._task.result()
        self._task = asyncio.get_running_loop().create_task(work())

    async def stop(self) -> None:
        """Give up what is under way."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


class Routine:
    """Begins a coroutine every ``seconds``, unless the previous one is still running."""

    def __init__(
        self, work: Callable[[], Coroutine[Any, Any, None]], *, seconds: float, clock: Callable[[], float]
    ) -> None:
        self._work = work
        self._seconds = seconds
        self._clock = clock
        self._task = BackgroundTask()
        self._due = -math.inf

    def round(self) -> None:
        """Begin the work if it is time. Raises what the last one raised."""
        now = self._clock()
        if now >= self._due:
            self._task.begin(self._work)
            self._due = now + self._seconds

    async def stop(self) -> None:
        """Give up what is under way."""
        await self._task.stop()
