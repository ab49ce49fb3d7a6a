"""Server-sent events of findings, resumed after ``Last-Event-ID``."""

import asyncio
import json
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import psycopg
from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from api.deps import Services, ServicesDep
from api.http.problems import Problem
from api.http.times import rfc3339
from api.security.auth import FindingsReader, Principal
from store.findings import outbox

router = APIRouter(prefix="/api/v1/events", tags=["findings"])

# Every open stream queries the database at this interval, so their number per key is limited.
POLL_SECONDS = 1.0
# Proxies close idle connections (nginx after 60 s).
PING_SECONDS = 15.0
STREAMS_PER_KEY = 4
# Sequence numbers are assigned before commits: a smaller one may become visible after a greater one. Chosen:
# more than the transactions that are open at once.
_OVERLAP = 64


@router.get(
    "/stream",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}},
)
async def stream_events(
    request: Request, services: ServicesDep, principal: FindingsReader
) -> StreamingResponse:
    """Send every event of findings from now on, or after the event in ``Last-Event-ID``."""
    if services.streams[principal.key_id] >= STREAMS_PER_KEY:
        detail = f"a key may have {STREAMS_PER_KEY} open streams; close one first"
        raise Problem(429, "too-many-requests", detail, headers={"retry-after": "5"})
    with ExitStack() as held:
        # Counted before the first await: concurrent requests would otherwise not see each other.
        held.enter_context(_counted(services.streams, principal.key_id))
        last_id = request.headers.get("last-event-id", "")
        tail = await run_in_threadpool(_tail, services, principal, last_id)
        return _Stream(_sent(services, tail), held.pop_all())


@dataclass(slots=True)
class Tail:
    """Position of a listener in the outbox."""

    seq: int
    clusters: Sequence[str]
    # More than one query returns (outbox.after: 500): an id dropped here would be sent twice.
    seen: deque[str] = field(default_factory=lambda: deque(maxlen=1024))

    def fresh(self, services: Services) -> list[outbox.Event]:
        """Return new events for this listener's clusters since the last call. Blocks on the database."""
        with services.pool.connection() as conn:
            found = outbox.after(conn, self.seq - _OVERLAP)
        new = [event for event in found if event.id not in self.seen and event.finding_id]
        self.seen.extend(event.id for event in new)
        self.seq = max([self.seq, *(event.seq for event in found)])
        return [e for e in new if not self.clusters or _cluster(e) in self.clusters]


def _tail(services: Services, principal: Principal, last_id: str) -> Tail:
    with services.pool.connection() as conn:
        last = outbox.get(conn, last_id) if last_id else None
        # With an unknown or removed id the stream begins with new events.
        start = last.seq if last else outbox.last_seq(conn)
        tail = Tail(start, principal.clusters)
        tail.seen.extend(e.id for e in outbox.after(conn, start - _OVERLAP) if e.seq <= start)
    return tail


class _Stream(StreamingResponse):
    """A response that closes ``held`` at its end, also if the client disconnects before it begins."""

    def __init__(self, content: AsyncIterator[str], held: ExitStack) -> None:
        # x-accel-buffering: nginx would otherwise buffer the stream.
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        super().__init__(content, media_type="text/event-stream", headers=headers)
        self._held = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._held:
            await super().__call__(scope, receive, send)


async def _sent(services: Services, tail: Tail) -> AsyncIterator[str]:
    quiet = 0.0
    yield "retry: 3000\n\n"
    while True:
        try:
            fresh = await run_in_threadpool(tail.fresh, services)
        # The stream ends: the client reconnects with the id of its last event.
        except psycopg.OperationalError:
            return
        for event in fresh:
            yield _written(event)
        quiet = 0.0 if fresh else quiet + POLL_SECONDS
        if quiet >= PING_SECONDS:
            quiet = 0.0
            yield ": ping\n\n"
        await asyncio.sleep(POLL_SECONDS)


@contextmanager
def _counted(streams: Counter[str], key_id: str) -> Iterator[None]:
    streams[key_id] += 1
    try:
        yield
    finally:
        streams[key_id] -= 1


def _written(event: outbox.Event) -> str:
    data = json.dumps({"type": event.type, "timestamp": rfc3339(event.at), "data": event.body})
    return f"id: {event.id}\nevent: {event.type}\ndata: {data}\n\n"


def _cluster(event: outbox.Event) -> str:
    return str(event.body.get("subject", {}).get("cluster", ""))
