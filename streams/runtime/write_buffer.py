"""Batching write buffer for roll-ups and paces; rows lost in a crash are computed again from the log."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from store.error_classes import REFUSED, UNAVAILABLE
from store.telemetry.batches import count
from streams.rollup.rollup import Rows
from streams.runtime.kafka.producer import until_done
from streams.runtime.monitoring.health import Health

log = logging.getLogger(__name__)

# Rows, or age of the oldest, at which they are written. Chosen: one statement for many costs little more.
FULL = 2000
FLUSH_SECONDS = 1.0


class RowBuffer:
    """Holds rows for ``FLUSH_SECONDS`` at most."""

    def __init__(self, write: Callable[[Rows], None], health: Health, clock: Callable[[], float]) -> None:
        self._write = write
        self._health = health
        self._clock = clock
        self._rows: Rows = []
        self._count = 0
        self._since = clock()
        self._lock = asyncio.Lock()

    def add(self, rows: list[Any]) -> None:
        """Add rows."""
        if not self._rows:
            self._since = self._clock()
        self._rows += rows
        self._count += count(rows)

    async def flush(self, *, force: bool = False) -> None:
        """Write the rows when there are many, when they are old, or when forced; wait for the database."""
        # Asked after every message: almost always nothing is due, and nobody writes.
        if not self._lock.locked() and not self._due(force=force):
            return
        async with self._lock:
            if not self._due(force=force):
                return
            rows, self._rows, self._count = self._rows, [], 0
            try:
                await self._store(rows)
            except asyncio.CancelledError:
                # In front of rows added since, which are younger.
                self._rows = rows + self._rows
                self._count = count(self._rows)
                raise

    def _due(self, *, force: bool) -> bool:
        if not self._rows:
            return False
        return force or self._count >= FULL or self._clock() - self._since >= FLUSH_SECONDS

    async def _store(self, rows: Rows) -> None:
        async def attempt() -> bool:
            try:
                await asyncio.to_thread(self._write, rows)
            except REFUSED as error:
                if len(rows) == 1:
                    log.error("the store refuses %r: %s", rows[0], error)
                    self._health.outputs["rows_refused"] += count(rows)
                    return True
                return False
            self._health.outputs["rows"] += count(rows)
            return True

        if not await until_done(attempt, UNAVAILABLE, health=self._health, what="database"):
            # Halve until the refused row stands alone, so that the others are stored.
            half = len(rows) // 2
            await self._store(rows[:half])
            await self._store(rows[half:])
