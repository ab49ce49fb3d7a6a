"""The exporter's own ``/metrics`` and ``/healthz``, on the loopback address."""

import math
from collections.abc import Callable, Mapping

from exporters.metric_help import help_of
from slowrank.page_server import PageServer

PREFIX = "slowrank_exporter_"


def text(metrics: Mapping[str, float]) -> str:
    """Return the Prometheus text form of ``metrics``, whose keys may carry labels."""
    lines: list[str] = []
    typed: set[str] = set()
    for key in sorted(metrics):
        family = PREFIX + key.partition("{")[0]
        if family not in typed:
            typed.add(family)
            lines.append(f"# HELP {family} {help_of(family.removeprefix(PREFIX))}")
            lines.append(f"# TYPE {family} {'counter' if family.endswith('_total') else 'gauge'}")
        value = metrics[key]
        lines.append(f"{PREFIX}{key} {'NaN' if math.isnan(value) else f'{value:.10g}'}")
    return "\n".join(lines) + "\n"


def serve(port: int, read: Callable[[], Mapping[str, float]], host: str = "127.0.0.1") -> PageServer:
    """Serve what ``read`` returns. Raises ``OSError`` when the port is taken."""

    def page(path: str) -> bytes:
        if path == "/metrics":
            return text(read()).encode()
        return b"ok\n" if path == "/healthz" else b""

    return PageServer(host, port, page)
