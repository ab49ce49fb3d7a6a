"""Limits the number of open connections and the duration of each phase of a connection.

uvicorn closes only connections that are idle after a response: one that never sends its request, sends it a
byte at a time, or never reads its response stays open until the process runs out of file descriptors. Here
each phase has a time limit, and when all connections are in use the oldest one without a request is closed.
"""

import asyncio
import logging
import resource
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from api.deps import Services
from api.http.client_address import Network, canonical, is_within, networks

log = logging.getLogger(__name__)

Phase = Literal["head", "body", "answer", "sending"]

# Connections queued by the kernel, and accepted by one turn of the event loop. Four turns may pass until a
# refused one has released its descriptor.
BACKLOG = 64
# Descriptors for everything else: the database's pool (10), Kafka, logs, the exporter's files in `slowrank
# up` (some 60 in all, counted in /proc), and 4 x BACKLOG that are accepted and not yet refused.
RESERVED_FILES = 4 * BACKLOG + 64
# A client that reads less than 16 KiB in 30 s (546 B/s) is disconnected; Apache's mod_reqtimeout requires
# 500 B/s.
PROGRESS_BYTES = 16 * 1024
SWEEP_SECONDS = 1.0
_LOG_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """Limits of connections in ``total`` and per address, and of the seconds in each phase."""

    total: int
    per_address: int
    trusted: Sequence[Network] = ()
    """Proxies: many clients share their address, so the limit per address does not apply."""

    head_seconds: float = 10.0
    """A request's head is one packet or a few; nginx gives it 60 s, Apache 20 s."""

    body_seconds: float = 65.0
    """Longer than the limit of ``middleware.OuterLayer`` (60 s), so that the client gets its 408."""

    sending_seconds: float = 30.0
    """For every ``PROGRESS_BYTES`` of an answer."""

    @classmethod
    def of(cls, wanted: int, trusted: Sequence[Network] = ()) -> "ConnectionLimits":
        """Return limits for up to ``wanted`` connections within the process's file descriptors."""
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        # With few descriptors, a quarter of them.
        total = min(wanted, max(files - RESERVED_FILES, files // 4))
        # Half, so that one client alone cannot shut out all others.
        return cls(total=total, per_address=max(total // 2, 1), trusted=trusted)


@dataclass(slots=True)
class Connections:
    """The open connections of one server, the oldest first."""

    limits: ConnectionLimits
    on_end: Callable[[str], None] = lambda reason: None
    """Called with the reason for every connection that is ended here."""

    _open: "dict[BoundedProtocol, None]" = field(default_factory=dict)
    _by_address: Counter[str] = field(default_factory=Counter)
    _sweep: asyncio.TimerHandle | None = None
    _logged: float = -_LOG_SECONDS

    def __len__(self) -> int:
        return len(self._open)

    def opened(self, connection: "BoundedProtocol") -> None:
        """Register a new connection; when there are too many, close the oldest without a request."""
        self._open[connection] = None
        self._by_address[connection.address] += 1
        if self._sweep is None:
            self._sweep = connection.loop.call_later(SWEEP_SECONDS, self._look, connection.loop)
        mine = not is_within(connection.address, self.limits.trusted)
        if mine and self._by_address[connection.address] > self.limits.per_address:
            among = [one for one in self._open if one.address == connection.address]
            self._end(_least_wanted(among), "address")
        elif len(self._open) > self.limits.total:
            self._end(_least_wanted(list(self._open)), "total")

    def closed(self, connection: "BoundedProtocol") -> None:
        """Unregister a connection that is closed or about to be."""
        if connection in self._open:
            del self._open[connection]
            self._by_address -= Counter([connection.address])

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        longest = {
            "head": self.limits.head_seconds,
            "body": self.limits.body_seconds,
            "sending": self.limits.sending_seconds,
        }
        for connection in list(self._open):
            phase = connection.phase()
            if phase in longest and connection.unchanged_for(now) > longest[phase]:
                self._end(connection, phase)
        self._sweep = loop.call_later(SWEEP_SECONDS, self._look, loop) if self._open else None

    def _end(self, connection: "BoundedProtocol", reason: str) -> None:
        self.on_end(reason)
        now = connection.loop.time()
        if now - self._logged >= _LOG_SECONDS:
            self._logged = now
            log.warning(
                "closed a connection of %s: %s; %d are open, at most %d in all and %d per address "
                "(SLOWRANK_API_MAX_CONNECTIONS, SLOWRANK_API_TRUSTED_PROXIES)",
                connection.address,
                _WHY[reason],
                len(self._open),
                self.limits.total,
                self.limits.per_address,
            )
        self.closed(connection)
        # Not close(), which waits for the client to read the rest of the response.
        connection.transport.abort()


def _least_wanted(oldest_first: "Sequence[BoundedProtocol]") -> "BoundedProtocol":
    """Return the oldest without a request, else the oldest that is sending one, else the newest."""
    *others, newest = oldest_first
    for phase in ("head", "body"):
        for one in others:
            if one.phase() == phase:
                return one
    return newest


_WHY = {
    "address": "too many from one address",
    "total": "too many in all",
    "head": "its request did not arrive in time",
    "body": "its body did not arrive in time",
    "sending": "it does not read its response",
}


class BoundedProtocol(H11Protocol):
    """uvicorn's connection with its current phase."""

    counted: ClassVar[Connections]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's own
        """Register the connection."""
        super().connection_made(transport)
        peer = transport.get_extra_info("peername")
        self.address = canonical(peer[0]) if isinstance(peer, tuple) else ""
        self._served = 0
        self._mark: tuple[Phase, int, int] = ("head", 0, 0)
        self._since = self.loop.time()
        self.counted.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Unregister the connection."""
        self.counted.closed(self)
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Count the response; another request may follow."""
        self._served += 1
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse a malformed request; close the connection if it has been answered already."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.abort()

    def phase(self) -> Phase:
        """Return the current phase; ``answer`` is the application's own time."""
        if self.transport.is_closing() or self.flow.write_paused:
            return "sending"
        if self.conn.their_state is h11.IDLE:
            return "head"
        return "body" if self.conn.their_state is h11.SEND_BODY else "answer"

    def unchanged_for(self, now: float) -> float:
        """Return for how long (s) the phase has lasted without progress in sending."""
        phase = self.phase()
        # uvicorn writes nothing until the buffer is drained, so it can only shrink.
        left = self.transport.get_write_buffer_size() // PROGRESS_BYTES if phase == "sending" else 0
        mark = (phase, self._served, left)
        if mark != self._mark:
            self._mark, self._since = mark, now
        return now - self._since


def server(app: FastAPI, **options: Any) -> uvicorn.Server:
    """Return the server of an app from ``create_app``; ``options`` are passed to ``uvicorn.Config``."""
    services: Services = app.state.services
    trusted = networks(services.settings.api_trusted_proxies)
    limits = ConnectionLimits.of(services.settings.api_max_connections, trusted)
    connections = Connections(limits, on_end=lambda reason: services.metrics.ended.labels(reason).inc())
    services.metrics.connections.set_function(lambda: len(connections))
    config = uvicorn.Config(
        app,
        http=type("Protocol", (BoundedProtocol,), {"counted": connections}),
        # No route is a WebSocket, and an upgraded connection would escape the limits.
        ws="none",
        backlog=BACKLOG,
        # The application reads X-Forwarded-For itself, from the proxies in the settings.
        proxy_headers=False,
        access_log=False,
        server_header=False,
        **options,
    )
    return uvicorn.Server(config)
