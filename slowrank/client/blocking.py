"""The blocking client."""

import time
from collections.abc import Iterator
from types import TracebackType
from typing import Self, TypeVar

import httpx

from slowrank.client import wire
from slowrank.client.errors import ApiError
from slowrank.client.events import PATH, RECONNECT_SECONDS, Event, Reader
from slowrank.client.objects import Page
from slowrank.client.request import Request

T = TypeVar("T")


class Client:
    """Sends requests to the API at ``url`` with an API key; close it, or use it as a context manager.

    Every method raises ``ApiError`` where the API refuses, ``NotSlowrank`` where something else answers, and
    ``httpx.HTTPError`` where nothing does.
    """

    def __init__(self, url: str, key: str, *, timeout: float = wire.TIMEOUT_SECONDS) -> None:
        self._http = httpx.Client(**wire.options(url, key, timeout))

    def send(self, request: Request[T]) -> T:
        """Return the decoded answer to one request."""
        return self.send_for_tag(request)[0]

    def send_for_tag(self, request: Request[T]) -> tuple[T, str]:
        """Return the answer and its ETag, which a change of what was read is conditional on."""
        answer = self._http.request(**wire.message(request))
        value: T = wire.decoded(answer)
        return value, answer.headers.get("etag", "")

    def each(self, request: Request[Page[T]]) -> Iterator[T]:
        """Yield the items of every page of a list."""
        cursor = ""
        while True:
            wanted = request.after(cursor) if cursor else request
            items, cursor = wire.page(self.send(wanted))
            yield from items
            if not cursor:
                return

    def events(self, last_id: str = "") -> Iterator[Event]:
        """Yield events for ever, from now or after the event ``last_id``.

        A stream that is lost is opened again where it ended. Raises where the first one cannot be opened.
        """
        reader = Reader(last_id)
        while True:
            try:
                yield from self._stream(reader)
            except httpx.TransportError:
                if not reader.opened:
                    raise
            except ApiError as error:
                if not (reader.opened and error.is_passing):
                    raise
            time.sleep(RECONNECT_SECONDS)

    def _stream(self, reader: Reader) -> Iterator[Event]:
        limit = wire.STREAM_TIMEOUT_SECONDS
        with self._http.stream("GET", wire.BASE + PATH, headers=reader.headers(), timeout=limit) as answer:
            if not answer.is_success:
                answer.read()
                raise wire.refused(answer)
            reader.open()
            for line in answer.iter_lines():
                event = reader.event_at(line)
                if event is not None:
                    yield event

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
