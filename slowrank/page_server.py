"""A small HTTP server for pages of text, such as ``/metrics``, that no client can block.

One thread for each connection, at most 32, and ten seconds for each: for the request, however slowly it
arrives, and for reading the answer.
"""

import contextlib
import socket
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

# A few Prometheus servers scrape one page, one connection each.
MAX_CONNECTIONS = 32
# The default scrape_timeout of Prometheus.
SECONDS = 10.0
TEXT = "text/plain; version=0.0.4; charset=utf-8"

Page = Callable[[str], bytes]
"""Return the page of a path; empty where there is none."""


class PageServer:
    """Serves ``page`` in the background. Raises ``OSError`` when the address is in use."""

    def __init__(
        self, host: str, port: int, page: Page, *, media_type: str = TEXT, seconds: float = SECONDS
    ) -> None:
        self._server = _BoundedServer(host, port, _handler(page, media_type), seconds)
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._serve, name="metrics", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        # The interval of service_actions: a connection may live a quarter of a second longer.
        self._server.serve_forever(poll_interval=0.25)

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5.0)


def _handler(page: Page, media_type: str) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = page(self.path.partition("?")[0])
            self.send_response(200 if body else 404)
            self.send_header("Content-Type", media_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None: ...

    return Handler


class _BoundedServer(ThreadingHTTPServer):
    """Closes the oldest connection above the limit, and each connection after its time."""

    daemon_threads = True
    request_queue_size = MAX_CONNECTIONS

    def __init__(self, host: str, port: int, handler: type[BaseHTTPRequestHandler], seconds: float) -> None:
        self._seconds = seconds
        self._open: dict[socket.socket, float] = {}
        self._lock = threading.Lock()
        self.address_family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        super().__init__((host, port), handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Register a connection; close the oldest where there are too many."""
        with self._lock:
            self._open[request] = time.monotonic()
            if len(self._open) > MAX_CONNECTIONS:
                self._end(next(iter(self._open)))
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Unregister a connection."""
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Close expired connections; called between two requests, and four times a second."""
        with self._lock:
            oldest = time.monotonic() - self._seconds
            for request in [one for one, since in self._open.items() if since < oldest]:
                self._end(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore disconnected clients; print the traceback of an error in the page itself."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)

    def _end(self, request: socket.socket) -> None:
        self._open.pop(request, None)
        # Its thread, which waits in a read or write, returns and closes it.
        with contextlib.suppress(OSError):
            request.shutdown(socket.SHUT_RDWR)
