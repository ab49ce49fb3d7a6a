"""Batches of one topic between the consumer and the task that processes them."""

import asyncio
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any

from faust.types import TP

# Records of one partition at which its fetching pauses. Chosen: two polls of 500, so that the task does not
# wait for the next one; some 3.5 MB of samples.
FULL = 1000

# Records of one partition that are processed in a row. Chosen: some 10 ms of detection, after which other
# tasks have their turn; and few enough that the partitions of a small cluster stay together in a catch-up.
CHUNK = 100


@dataclass(frozen=True, slots=True)
class Batch:
    """Records of one partition in order of offset, as aiokafka returns them.

    ``epoch`` counts the assignments of this consumer: a batch of an earlier one is read again by whoever has
    the partition now.
    """

    tp: TP
    records: Sequence[Any]
    epoch: int


class BatchBuffer:
    """Batches by partition; one that holds ``FULL`` records is not fetched until half of them are processed.

    The partition whose next record was logged first comes first: in a catch-up all of them advance together.
    """

    def __init__(self) -> None:
        self._batches: dict[TP, deque[Batch]] = {}
        self._held: dict[TP, int] = {}
        self._some = asyncio.Event()
        self._idle, self._idle_since = 0.0, math.nan
        self.pause: Callable[[TP], None] = _ignore
        self.resume: Callable[[TP], None] = _ignore

    def put(self, batch: Batch) -> None:
        """Add a batch; call ``pause`` for its partition where that holds too many records now."""
        self._batches.setdefault(batch.tp, deque()).append(batch)
        self._held[batch.tp] = self._held.get(batch.tp, 0) + len(batch.records)
        self._some.set()
        if self._held[batch.tp] >= FULL:
            self.pause(batch.tp)

    async def get(self) -> Batch:
        """Wait for records, and return up to ``CHUNK`` of one partition, to be given to ``done``."""
        while not self._batches:
            self._some.clear()
            self._idle_since = monotonic()
            try:
                await self._some.wait()
            finally:
                self._idle, self._idle_since = self.idle_seconds, math.nan
        tp = min(self._batches, key=self._next_logged)
        waiting = self._batches[tp]
        batch = waiting.popleft()
        if len(batch.records) > CHUNK:
            waiting.appendleft(Batch(tp, batch.records[CHUNK:], batch.epoch))
            batch = Batch(tp, batch.records[:CHUNK], batch.epoch)
        if not waiting:
            del self._batches[tp]
        return batch

    @property
    def idle_seconds(self) -> float:
        """For how long there was nothing to process, since the start."""
        since = self._idle_since
        return self._idle if math.isnan(since) else self._idle + monotonic() - since

    def done(self, batch: Batch) -> None:
        """Forget records; call ``resume`` for their partition where half the limit is left or less."""
        self._held[batch.tp] -= len(batch.records)
        if self._held[batch.tp] <= FULL // 2:
            self.resume(batch.tp)

    def clear(self) -> None:
        """Drop what nobody has taken yet, without calling ``resume``."""
        for tp, waiting in self._batches.items():
            self._held[tp] -= sum(len(batch.records) for batch in waiting)
        self._batches.clear()

    def _next_logged(self, tp: TP) -> int:
        logged: int = self._batches[tp][0].records[0].timestamp
        return logged


def _ignore(_: TP) -> None:
    pass
