"""Server-sent events of findings, resumed after ``Last-Event-ID``."""

from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import ExitStack, aclosing, contextmanager

import psycopg
from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from api.deps import ServicesDep
from api.http.problems import Problem
from api.security.auth import CredentialsDep, FindingsReader, is_valid

router = APIRouter(prefix="/api/v1/events", tags=["findings"])

# A connection each; a person needs one for each open page.
STREAMS_PER_KEY = 4

# Time between two checks of the key of a stream. Chosen: that between two pings.
CHECK_SECONDS = 15.0


@router.get(
    "/stream",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}},
)
async def stream_events(
    request: Request, services: ServicesDep, credentials: CredentialsDep, principal: FindingsReader
) -> StreamingResponse:
    """Send every event of findings from now on, or after the event in ``Last-Event-ID``.

    The stream ends within 30 s of the end of its key or session.
    """
    if services.streams[principal.key_id] >= STREAMS_PER_KEY:
        detail = f"a key may have {STREAMS_PER_KEY} open streams; close one first"
        raise Problem(429, "too-many-requests", detail, headers={"retry-after": "5"})
    with ExitStack() as held:
        # Counted before the first await: concurrent requests would otherwise not see each other.
        held.enter_context(_counted(services.streams, principal.key_id))
        last_id = request.headers.get("last-event-id", "")
        tail = await run_in_threadpool(services.hub.tail, last_id)
        events = _while_valid(
            services.hub.stream(tail, principal.clusters),
            lambda: is_valid(request, services, credentials),
            services.monotonic,
        )
        return _Stream(events, held.pop_all())


async def _while_valid(
    events: AsyncGenerator[str], valid: Callable[[], bool], clock: Callable[[], float]
) -> AsyncIterator[str]:
    """Yield the events until ``valid``, which may block, is false; pings make sure that it is asked."""
    checked = clock()
    async with aclosing(events):
        async for text in events:
            if clock() - checked >= CHECK_SECONDS:
                try:
                    if not await run_in_threadpool(valid):
                        return
                except psycopg.OperationalError:
                    # As where the events cannot be read: the client connects again.
                    return
                checked = clock()
            yield text


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


@contextmanager
def _counted(streams: Counter[str], key_id: str) -> Iterator[None]:
    streams[key_id] += 1
    try:
        yield
    finally:
        streams[key_id] -= 1
