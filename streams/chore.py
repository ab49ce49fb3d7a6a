"""Something that is done beside the rounds of a worker, because it may have to wait for a server."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class Chore:
    """Runs one coroutine at a time; the rounds, and with them the worker's signs of life, go on meanwhile."""

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
