"""When the snapshots of a worker's partitions are written: each about once a minute, one after the other."""

import asyncio
import logging
import time
import zlib
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from streams.runtime.kafka.message import PartitionId
from streams.runtime.monitoring.snapshot_counts import SnapshotCounts
from streams.runtime.snapshots.snapshot_file import Snapshot
from streams.runtime.snapshots.snapshot_folder import SnapshotFolder
from streams.runtime.snapshots.state_codec import BadState

log = logging.getLogger(__name__)

# Share of a core that snapshots may take; the interval grows where they are dearer. Chosen: a restart reads
# the log of the interval, at a fifth of a core or less in a worker that keeps up.
MOST_CPU = 0.02

# For all snapshots at a stop. Chosen: less than half of what the supervisor waits for; those that are missing
# then are a minute old.
AT_STOP_SECONDS = 8.0


class Table(Protocol):
    """The states of a worker."""

    @property
    def states(self) -> Mapping[PartitionId, Any]: ...

    def snapshot(self, place: PartitionId, /) -> Snapshot | None:
        """Return a snapshot of a partition as it is now; may raise ``BadState``."""
        ...


class SnapshotWriter:
    """Takes snapshots between two messages, and writes each when all outputs until then are durable.

    A snapshot may lie ahead of what is committed. What lies between is not processed again after a restart,
    so that its outputs must be in the log before. ``durable`` returns a future that is done when all outputs
    posted until now are durable; ``clock`` is in seconds, ``seconds`` the least interval.
    """

    def __init__(
        self,
        table: Table,
        folder: SnapshotFolder,
        *,
        durable: Callable[[], asyncio.Future[None]],
        counts: SnapshotCounts,
        clock: Callable[[], float],
        seconds: float,
    ) -> None:
        self._table = table
        self._folder = folder
        self._durable = durable
        self._counts = counts
        self._clock = clock
        self._seconds = seconds
        self._due: dict[PartitionId, float] = {}
        self._unfit: set[str] = set()

    async def round(self) -> None:
        """Write the snapshots that are due."""
        states = self._table.states
        self._due = {place: due for place, due in self._due.items() if place in states}
        self._counts.retain(states)
        for place in sorted(states):
            due = self._due.setdefault(place, self._clock() + _first(place) * self._seconds)
            if self._clock() >= due:
                cost = await self._write(place)
                self._due[place] = self._clock() + max(self._seconds, len(states) * cost / MOST_CPU)

    async def stop(self) -> None:
        """Write all snapshots, as far as there is time: whoever goes on has nothing to read again."""
        try:
            async with asyncio.timeout(AT_STOP_SECONDS):
                for place in sorted(self._table.states):
                    await self._write(place)
        except TimeoutError:
            log.warning("not all snapshots were written within %.0f s", AT_STOP_SECONDS)

    async def _write(self, place: PartitionId) -> float:
        """Write one snapshot; return the CPU seconds that it took."""
        began = time.thread_time()
        # Nothing is awaited before it is taken, so that no message is half in it.
        try:
            snapshot = self._table.snapshot(place)
        except BadState as error:
            self._counts.failed += 1
            log.log(
                logging.DEBUG if place[0] in self._unfit else logging.ERROR,
                "%s:%d: no snapshot: %s",
                *place,
                error,
            )
            self._unfit.add(place[0])
            return 0.0
        taken = time.thread_time() - began
        if snapshot is None:
            return 0.0
        await asyncio.shield(self._durable())
        spent = taken + await asyncio.to_thread(self._save, place, snapshot)
        self._counts.seconds += spent
        return spent

    def _save(self, place: PartitionId, snapshot: Snapshot) -> float:
        began = time.thread_time()
        self._folder.save(place, snapshot)
        return time.thread_time() - began


def _first(place: PartitionId) -> float:
    """Return when, in intervals, the first snapshot of a partition is due: not that of all at once."""
    return 0.5 + (zlib.crc32(f"{place[0]}:{place[1]}".encode()) % 1000) / 2000
