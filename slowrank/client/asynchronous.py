"""The asynchronous client: ``blocking`` with ``async`` and ``await``."""

import asyncio
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Self, TypeVar

import httpx

from slowrank.client import wire
from slowrank.client.errors import ApiError
from slowrank.client.events import PATH, RECONNECT_SECONDS, Event, Reader
from slowrank.client.objects import Page
from slowrank.client.request import Request

T = TypeVar("T")


class AsyncClient:
    """Sends requests to the API at ``url`` with an API key; close it, or use it with ``async with``.

    Every method raises ``ApiError`` where the API refuses, ``NotSlowrank`` where something else answers, and
    ``httpx.HTTPError`` where nothing does.
    """

    def __init__(self, url: str, key: str, *, timeout: float = wire.TIMEOUT_SECONDS) -> None:
        self._http = httpx.AsyncClient(**wire.options(url, key, timeout))

    async def send(self, request: Request[T]) -> T:
        """Return the decoded answer to one request."""
        return (await self.send_for_tag(request))[0]

    async def send_for_tag(self, request: Request[T]) -> tuple[T, str]:
        """Return the answer and its ETag, which a change of what was read is conditional on."""
        answer = await self._http.request(**wire.message(request))
        value: T = wire.decoded(answer)
        return value, answer.headers.get("etag", "")

    async def each(self, request: Request[Page[T]]) -> AsyncIterator[T]:
        """Yield the items of every page of a list."""
        cursor = ""
        while True:
            wanted = request.after(cursor) if cursor else request
            items, cursor = wire.page(await self.send(wanted))
            for item in items:
                yield item
            if not cursor:
                return

    async def events(self, last_id: str = "") -> AsyncIterator[Event]:
        """Yield events for ever, from now or after the event ``last_id``.

        A stream that is lost is opened again where it ended. Raises where the first one cannot be opened.
        """
        reader = Reader(last_id)
        while True:
            try:
                async for event in self._stream(reader):
                    yield event
            except httpx.TransportError:
                if not reader.opened:
                    raise
            except ApiError as error:
                if not (reader.opened and error.is_passing):
                    raise
            await asyncio.sleep(RECONNECT_SECONDS)

    async def _stream(self, reader: Reader) -> AsyncIterator[Event]:
        limit = wire.STREAM_TIMEOUT_SECONDS
        async with self._http.stream(
            "GET", wire.BASE + PATH, headers=reader.headers(), timeout=limit
        ) as answer:
            if not answer.is_success:
                await answer.aread()
                raise wire.refused(answer)
            reader.open()
            async for line in answer.aiter_lines():
                event = reader.event_at(line)
                if event is not None:
                    yield event

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
