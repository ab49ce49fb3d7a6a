"""The folder of a worker's snapshots, one file for each partition of each topic."""

import hashlib
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from streams.runtime.kafka.message import Message, PartitionId
from streams.runtime.monitoring.snapshot_counts import SnapshotCounts
from streams.runtime.snapshots.snapshot_file import Header, Mark, Refused, Snapshot, read, write
from streams.runtime.snapshots.state_codec import BadState, dumps, loads

log = logging.getLogger(__name__)

# Age of a half-written file whose writer has died. Chosen: writing takes seconds.
LEFT_BEHIND_SECONDS = 600.0

ReadOn = Callable[[str, int, int, int], AsyncIterator[Message]]
"""Yields the messages of (topic, partition) from an offset on and below another one."""


def mark_of(message: Message) -> Mark:
    """Return the mark of a message."""
    return Mark(message.offset, message.timestamp, hashlib.sha256(message.value).hexdigest())


@dataclass(frozen=True, slots=True)
class Saved:
    """A state of a partition and what it is of."""

    header: Header
    state: Any


class SnapshotFolder:
    """Reads and writes snapshots; what is wrong with one is logged and counted, and never raised.

    ``identity``: see ``streams.runtime.snapshots.identity``; ``read_on`` reads the rest of the log, by
    default of none; ``now`` is in Unix seconds. The folder must exist and be private.
    """

    def __init__(
        self,
        folder: Path,
        *,
        identity: str,
        read_on: ReadOn | None = None,
        counts: SnapshotCounts,
        now: Callable[[], float],
    ) -> None:
        self._folder = folder
        self._identity = identity
        self._counts = counts
        self._now = now
        self.read_on: ReadOn = read_on or _nothing
        self._left_behind()

    def frozen(
        self, place: PartitionId, state: object, *, last: Mark, next_offset: int, partitions: int
    ) -> Snapshot:
        """Return a snapshot of a state as it is at this moment. Raises ``BadState``."""
        topic, partition = place
        header = Header(
            identity=self._identity,
            place=f"{topic}:{partition}",
            partitions=partitions,
            next_offset=next_offset,
            last=last,
            taken_at=self._now(),
        )
        return Snapshot(header, dumps(state))

    def save(self, place: PartitionId, snapshot: Snapshot) -> None:
        """Write a snapshot; blocks."""
        try:
            size = write(self._path(place), snapshot)
        except OSError as error:
            self._counts.failed += 1
            log.warning("%s: the snapshot was not written: %s", snapshot.header.place, error)
            return
        self._counts.wrote(place, size, at=snapshot.header.taken_at)

    def load(self, place: PartitionId, *, partitions: int) -> Saved | None:
        """Return the state in the snapshot of a partition, None if there is none to be used; blocks."""
        try:
            snapshot = self._taken_out(place)
            if snapshot is None:
                return None
            header, name = snapshot.header, f"{place[0]}:{place[1]}"
            if (header.identity, header.place) != (self._identity, name):
                raise Refused("foreign", "it is of other code, settings or partitions")
            if header.partitions != partitions:
                raise Refused("resized", f"the topic had {header.partitions} partitions, now {partitions}")
            return Saved(header, loads(snapshot.state))
        except BadState as error:
            self.refuse(place, Refused("unreadable", str(error)))
        except Refused as refused:
            self.refuse(place, refused)
        return None

    def drop(self, place: PartitionId) -> None:
        """Remove the snapshot of a partition."""
        try:
            self._path(place).unlink(missing_ok=True)
        except OSError as error:
            self._counts.failed += 1
            log.warning("%s:%d: the snapshot was not removed: %s", *place, error)

    def refuse(self, place: PartitionId, refused: Refused) -> None:
        """Log and count a snapshot that is not used."""
        self._counts.refused[refused.reason] += 1
        log.warning(
            "%s:%d: the snapshot is ignored, the state is built without it: %s (%s)",
            *place,
            refused.reason,
            refused,
        )

    def used(self, place: PartitionId) -> None:
        """Count a snapshot that became the state of a partition, and keep it for the next start."""
        self._counts.loaded += 1
        self.put_back(place)

    def put_back(self, place: PartitionId) -> None:
        """Keep a snapshot that was loaded."""
        with suppress(OSError):
            self._tried(place).rename(self._path(place))

    def _taken_out(self, place: PartitionId) -> Snapshot | None:
        """Read a snapshot and set it aside until it is used: one that kills the worker does so only once."""
        path, tried = self._path(place), self._tried(place)
        try:
            path.replace(tried)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise Refused("unreadable", str(error)) from error
        return read(tried)

    def _tried(self, place: PartitionId) -> Path:
        return self._folder / f".{self._path(place).name}.tried"

    def _path(self, place: PartitionId) -> Path:
        # Topic names are of A-Z a-z 0-9 . _ - and so are safe as part of a file name.
        return self._folder / f"{place[0]}-{place[1]}.snapshot"

    def _left_behind(self) -> None:
        """Remove what a process that was killed while writing has left; another may be writing now."""
        for part in self._folder.glob(".*.snapshot.*"):
            with suppress(FileNotFoundError):
                if part.stat().st_mtime < self._now() - LEFT_BEHIND_SECONDS:
                    part.unlink()


async def _nothing(_topic: str, _partition: int, _first: int, _upto: int) -> AsyncIterator[Message]:
    return
    yield
