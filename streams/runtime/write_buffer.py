"""Roll-ups and paces on their way to the store: gathered, written together, never lost, never in the way."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from store.error_classes import REFUSED, UNAVAILABLE
from streams.rollup.rollup import Rows
from streams.runtime.kafka.producer import until_done
from streams.runtime.monitoring.health import Health

log = logging.getLogger(__name__)

FULL = 2000
FLUSH_SECONDS = 1.0
"""Rows, or age of the oldest, at which they are written: one statement for many costs little more."""


class RowBuffer:
    """Holds rows for at most a second. What a crash takes from it is made again from the log."""

    def __init__(self, write: Callable[[Rows], None], health: Health, clock: Callable[[], float]) -> None:
        self._write = write
        self._health = health
        self._clock = clock
        self._rows: Rows = []
        self._since = clock()
        self._lock = asyncio.Lock()

    def add(self, rows: list[Any]) -> None:
        """Take rows."""
        if not self._rows:
            self._since = self._clock()
        self._rows += rows

    async def flush(self, *, force: bool = False) -> None:
        """Write what has gathered when it is much, or old, or when forced; wait for the database."""
        async with self._lock:
            old = self._clock() - self._since >= FLUSH_SECONDS
            if not self._rows or not (force or old or len(self._rows) >= FULL):
                return
            rows, self._rows = self._rows, []
            try:
                await self._store(rows)
            except asyncio.CancelledError:
                # Before those that came since: they are the older.
                self._rows = rows + self._rows
                raise

    async def _store(self, rows: Rows) -> None:
        async def attempt() -> bool:
            try:
                await asyncio.to_thread(self._write, rows)
            except REFUSED as error:
                if len(rows) == 1:
                    log.error("the store refuses %r: %s", rows[0], error)
                    self._health.outputs["rows_refused"] += 1
                    return True
                return False
            self._health.outputs["rows"] += len(rows)
            return True

        if not await until_done(attempt, UNAVAILABLE, health=self._health, what="database"):
            # One bad row must not cost the others: it is looked for until it stands alone.
            half = len(rows) // 2
            await self._store(rows[:half])
            await self._store(rows[half:])
