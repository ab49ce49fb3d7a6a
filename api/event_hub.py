"""Hands new events to all open streams: one reader of the outbox, however many listeners there are."""

import asyncio
import json
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg
from fastapi.concurrency import run_in_threadpool
from psycopg_pool import ConnectionPool

from api.http.times import rfc3339
from store.findings import outbox

# Between two reads of the outbox (chosen: an event reaches all listeners well within a second).
POLL_SECONDS = 0.4
# After which a quiet stream gets a comment: proxies close idle connections (nginx after 60 s).
PING_SECONDS = 15.0
# Events that wait for a slow listener before its stream ends; it resumes with the id of its last event. All
# listeners share the texts of the events.
MAX_WAITING = 1000
# Sequence numbers are assigned before commits: a smaller one may become visible after a greater one. Chosen:
# more than the transactions that are open at once.
_OVERLAP = 64
# More than one query returns (outbox.after: 500): an id dropped here would be sent twice.
_REMEMBERED = 1024


@dataclass(slots=True)
class Tail:
    """Position of a reader in the outbox."""

    seq: int
    seen: deque[str] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    last_id: str = ""

    @classmethod
    def at(cls, conn: psycopg.Connection[Any], last_id: str) -> "Tail":
        """Return the position after the event ``last_id``, or after the newest where it is unknown."""
        last = outbox.get(conn, last_id) if last_id else None
        start = last.seq if last else outbox.last_seq(conn)
        before = [event for event in outbox.after(conn, start - _OVERLAP) if event.seq <= start]
        tail = cls(start, last_id=before[-1].id if before else "")
        tail.seen.extend(event.id for event in before)
        return tail

    def fresh(self, conn: psycopg.Connection[Any]) -> list[outbox.OutboxEvent]:
        """Return events of findings since the last call."""
        found = outbox.after(conn, self.seq - _OVERLAP)
        self.seq = max([self.seq, *(event.seq for event in found)])
        return [event for event in found if event.finding_id and self.is_new(event)]

    def is_new(self, event: outbox.OutboxEvent) -> bool:
        """Return whether this is the first time that the event is seen."""
        if event.id in self.seen:
            return False
        self.seen.append(event.id)
        return True


@dataclass(frozen=True, slots=True)
class _Written:
    event: outbox.OutboxEvent
    cluster: str
    text: str


class _Listener:
    """The events that wait for one stream."""

    def __init__(self) -> None:
        self.waiting: asyncio.Queue[_Written | None] = asyncio.Queue(MAX_WAITING + 1)

    def offer(self, written: _Written) -> bool:
        """Queue an event; return False, and end the stream after what waits, where too many wait."""
        if self.waiting.qsize() >= MAX_WAITING:
            self.end()
            return False
        self.waiting.put_nowait(written)
        return True

    def end(self) -> None:
        """End the stream after what waits."""
        self.waiting.put_nowait(None)


class EventHub:
    """Reads the outbox while there are listeners. For one event loop at a time."""

    def __init__(self, pool: "ConnectionPool[Any]") -> None:
        self._pool = pool
        self._listeners: set[_Listener] = set()
        self._reader: asyncio.Task[None] | None = None
        self._positioned = asyncio.Event()

    async def stream(self, tail: Tail, clusters: Sequence[str]) -> AsyncGenerator[str]:
        """Yield the lines of server-sent events after ``tail``, of the clusters or of all.

        Ends where the database fails or the listener is too slow.
        """
        # Also an id: a client whose first stream breaks before the first event misses nothing.
        yield f"retry: 3000\nid: {tail.last_id}\n\n" if tail.last_id else "retry: 3000\n\n"
        with self._listening() as listener:
            # What came before the reader's position is read here, what comes after it is queued: no gap.
            await self._positioned.wait()
            try:
                async for written in self._missed(tail):
                    if not clusters or written.cluster in clusters:
                        yield written.text
            except psycopg.OperationalError:
                return
            while True:
                try:
                    new = await asyncio.wait_for(listener.waiting.get(), PING_SECONDS)
                except TimeoutError:
                    yield ": ping\n\n"
                    continue
                if new is None:
                    return
                if tail.is_new(new.event) and (not clusters or new.cluster in clusters):
                    yield new.text

    def tail(self, last_id: str) -> Tail:
        """Return where a stream begins. Blocks on the database."""
        with self._pool.connection() as conn:
            return Tail.at(conn, last_id)

    async def _missed(self, tail: Tail) -> AsyncIterator[_Written]:
        while missed := await run_in_threadpool(self._fresh, tail):
            for event in missed:
                yield _written(event)

    @contextmanager
    def _listening(self) -> Iterator[_Listener]:
        listener = _Listener()
        self._listeners.add(listener)
        loop = asyncio.get_running_loop()
        if self._reader is None or self._reader.done() or self._reader.get_loop() is not loop:
            self._positioned = asyncio.Event()
            self._reader = loop.create_task(self._read())
        try:
            yield listener
        finally:
            self._listeners.discard(listener)

    async def _read(self) -> None:
        try:
            tail = await run_in_threadpool(self.tail, "")
            self._positioned.set()
            while self._listeners:
                for event in await run_in_threadpool(self._fresh, tail):
                    written = _written(event)
                    self._listeners = {one for one in self._listeners if one.offer(written)}
                await asyncio.sleep(POLL_SECONDS)
        except psycopg.OperationalError:
            # The streams end: their clients reconnect with the ids of their last events.
            for listener in self._listeners:
                listener.end()
            self._listeners.clear()
            self._positioned.set()

    def _fresh(self, tail: Tail) -> list[outbox.OutboxEvent]:
        with self._pool.connection() as conn:
            return tail.fresh(conn)


def _written(event: outbox.OutboxEvent) -> _Written:
    data = json.dumps({"type": event.type, "timestamp": rfc3339(event.at), "data": event.body})
    text = f"id: {event.id}\nevent: {event.type}\ndata: {data}\n\n"
    return _Written(event, str(event.body.get("subject", {}).get("cluster", "")), text)
