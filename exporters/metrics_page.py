"""The exporter's own ``/metrics`` and ``/healthz``, on the loopback address."""

import math
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

PREFIX = "slowrank_exporter_"


def text(metrics: Mapping[str, float]) -> str:
    """Return the Prometheus text form of ``metrics``, whose keys may carry labels."""
    lines: list[str] = []
    typed: set[str] = set()
    for key in sorted(metrics):
        family = PREFIX + key.partition("{")[0]
        if family not in typed:
            typed.add(family)
            lines.append(f"# TYPE {family} {'counter' if family.endswith('_total') else 'gauge'}")
        value = metrics[key]
        lines.append(f"{PREFIX}{key} {'NaN' if math.isnan(value) else f'{value:.10g}'}")
    return "\n".join(lines) + "\n"


def _page(path: str, read: Callable[[], Mapping[str, float]]) -> str:
    if path == "/metrics":
        return text(read())
    return "ok\n" if path == "/healthz" else ""


class MetricsServer:
    """Serves what ``read`` returns. Raises ``OSError`` when the port is taken."""

    def __init__(self, port: int, read: Callable[[], Mapping[str, float]], host: str = "127.0.0.1") -> None:
        class Handler(BaseHTTPRequestHandler):
            # Seconds: a client that asks nothing gives its thread back.
            timeout = 5

            def do_GET(self) -> None:
                body = _page(self.path, read).encode()
                self.send_response(200 if body else 404)
                self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None: ...

        self._server = ThreadingHTTPServer((host, port), Handler)
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        self._thread = Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5.0)
