"""Queue of records that the broker has not acknowledged: on disk, or in memory while there is no disk.

A record is written before it is sent and deleted after the acknowledgement. When the spool is full the oldest
records are dropped, and that is reported.
"""

import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Protocol

_log = logging.getLogger(__name__)
# How long records go to memory before a failed disk is tried again. Chosen: the ring in memory holds hours; a
# try may block a tick.
RETRY_DISK_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Message:
    """One encoded record with its topic and key; ``boot_id`` and ``seq`` identify it when it is lost."""

    topic: str
    key: bytes
    payload: bytes
    boot_id: str
    seq: int


@dataclass(frozen=True, slots=True)
class Dropped:
    """Records dropped together before they were sent."""

    boot_id: str
    first_seq: int
    last_seq: int
    records: int
    reason: str


@dataclass(frozen=True, slots=True)
class Entry:
    """A message with its id in the store that holds it."""

    id: int
    message: Message
    # Both stores count from 1: an id alone is ambiguous.
    in_memory: bool


@dataclass(frozen=True, slots=True)
class SpoolStats:
    """How full the spool is; ``degraded`` is why the disk is not used, empty while it is.

    ``free_bytes`` is what more the disk can take, 0 where it failed or could not be opened, None without one.
    """

    bytes: int = 0
    records: int = 0
    dropped_total: int = 0
    degraded: str = ""
    free_bytes: int | None = None


class StoreFailed(Exception):
    """The store cannot be written or read now: no space, no permission, damaged."""


class Store(Protocol):
    """Messages in order, each under a growing id. Every method may raise ``StoreFailed``."""

    def put(self, messages: Sequence[Message]) -> list[Dropped]: ...

    def read(self, after: int, limit: int) -> list[tuple[int, Message]]: ...

    def delete(self, ids: Sequence[int]) -> None: ...

    def size(self) -> tuple[int, int]:
        """Return bytes and records held."""
        ...

    def free(self) -> int | None:
        """Return the bytes that it can take more; None where what it holds ends with the process."""
        ...

    def close(self) -> None: ...


class MemoryStore:
    """The store used while there is no disk: a ring of at most ``max_bytes`` of payload."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._held: deque[tuple[int, Message]] = deque()
        self._bytes = 0
        self._next_id = 1

    def put(self, messages: Sequence[Message]) -> list[Dropped]:
        for message in messages:
            self._held.append((self._next_id, message))
            self._next_id += 1
            self._bytes += len(message.payload)
        dropped = []
        while self._bytes > self._max_bytes and self._held:
            _, message = self._held.popleft()
            self._bytes -= len(message.payload)
            dropped.append(message)
        return grouped(dropped, "no disk to spool to, and the ring in memory is full")

    def read(self, after: int, limit: int) -> list[tuple[int, Message]]:
        found: list[tuple[int, Message]] = []
        for entry in self._held:
            if entry[0] > after:
                found.append(entry)
            if len(found) == limit:
                break
        return found

    def delete(self, ids: Sequence[int]) -> None:
        gone = set(ids)
        self._held = deque(entry for entry in self._held if entry[0] not in gone)
        self._bytes = sum(len(message.payload) for _, message in self._held)

    def size(self) -> tuple[int, int]:
        return self._bytes, len(self._held)

    def free(self) -> int | None:
        return None

    def close(self) -> None: ...


@dataclass(slots=True)
class _Cursor:
    """How far one store has been read."""

    store: Store
    in_memory: bool
    after: int = 0
    # Sent, but its deletion failed: must not be sent again in this run.
    undeleted: list[int] = field(default_factory=list)


class Spool:
    """The disk store while it works, the memory ring while it does not. Safe to use from two threads.

    ``disk`` None means that none could be opened, ``degraded`` is then the reason.
    """

    def __init__(self, disk: Store | None, memory: Store, *, degraded: str = "") -> None:
        self._lock = Lock()
        self._memory = _Cursor(memory, in_memory=True)
        self._disk = _Cursor(disk, in_memory=False) if disk is not None else None
        self._degraded = degraded
        self._retry_at = 0.0
        self._drops: list[Dropped] = []
        self._dropped_total = 0

    def put(self, messages: Sequence[Message], now: float) -> None:
        """Store ``messages``; ``now`` (monotonic seconds) decides when a failed disk is tried again."""
        with self._lock:
            lost = self._put_on_disk(messages, now)
            if lost is None:
                lost = self._memory.store.put(messages)
            self._drops += lost
            self._dropped_total += sum(drop.records for drop in lost)

    def batch(self, limit: int) -> list[Entry]:
        """Return the next messages in order, each once until ``rewind``; memory first: it is volatile."""
        with self._lock:
            entries: list[Entry] = []
            # There is no order between the stores; consumers order by event time and (node, boot_id, seq).
            for cursor in self._cursors():
                entries += self._next(cursor, limit - len(entries))
            return entries

    def done(self, entries: Sequence[Entry]) -> None:
        """Delete messages that the broker has acknowledged, or rejects for good."""
        with self._lock:
            for cursor in self._cursors():
                cursor.undeleted += [e.id for e in entries if e.in_memory == cursor.in_memory]
                try:
                    if cursor.undeleted:
                        cursor.store.delete(cursor.undeleted)
                        cursor.undeleted = []
                except StoreFailed as error:
                    self._degraded = str(error)

    def rewind(self) -> None:
        """Start again with the oldest message that is not done."""
        with self._lock:
            for cursor in self._cursors():
                cursor.after = 0

    def stats(self) -> SpoolStats:
        """Return the present state."""
        with self._lock:
            sizes, free = [], None if self._disk is None and not self._degraded else 0
            for cursor in self._cursors():
                try:
                    sizes.append(cursor.store.size())
                    free = cursor.store.free() if cursor is self._disk and not self._degraded else free
                except StoreFailed as error:
                    self._degraded = str(error)
            return SpoolStats(
                bytes=sum(size for size, _ in sizes),
                records=sum(records for _, records in sizes),
                dropped_total=self._dropped_total,
                degraded=self._degraded,
                free_bytes=free,
            )

    def drops(self) -> tuple[Dropped, ...]:
        """Return what was dropped since the last call."""
        with self._lock:
            drops, self._drops = tuple(self._drops), []
            return drops

    def close(self) -> None:
        """Move the messages in memory to the disk, if there is one, and close both."""
        with self._lock:
            if self._disk is not None:
                # 2²⁰: more than the ring can hold.
                rest = self._memory.store.read(0, 1 << 20)
                try:
                    self._disk.store.put([message for _, message in rest])
                except StoreFailed as error:
                    _log.warning("%d records in memory are lost: %s", len(rest), error)
            for cursor in self._cursors():
                cursor.store.close()

    def _cursors(self) -> list[_Cursor]:
        return [self._memory] if self._disk is None else [self._memory, self._disk]

    def _put_on_disk(self, messages: Sequence[Message], now: float) -> list[Dropped] | None:
        if self._disk is None or now < self._retry_at:
            return None
        try:
            lost = self._disk.store.put(messages)
        except StoreFailed as error:
            self._degraded = str(error)
            self._retry_at = now + RETRY_DISK_SECONDS
            _log.warning("spooling in memory: %s", error)
            return None
        self._degraded = ""
        return lost

    def _next(self, cursor: _Cursor, limit: int) -> list[Entry]:
        if limit <= 0:
            return []
        try:
            found = cursor.store.read(cursor.after, limit)
        except StoreFailed as error:
            self._degraded = str(error)
            return []
        if found:
            cursor.after = found[-1][0]
        sent = set(cursor.undeleted)
        return [Entry(i, message, cursor.in_memory) for i, message in found if i not in sent]


def grouped(dropped: Sequence[Message], reason: str) -> list[Dropped]:
    """Group dropped messages by boot into ranges of seq."""
    by_boot: dict[str, list[int]] = {}
    for message in dropped:
        by_boot.setdefault(message.boot_id, []).append(message.seq)
    return [Dropped(boot, min(seqs), max(seqs), len(seqs), reason) for boot, seqs in by_boot.items()]
