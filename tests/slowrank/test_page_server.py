"""The small servers of `/metrics` answer while clients hold connections open."""

import socket
import threading
import time
import urllib.request
from contextlib import ExitStack

import pytest
from prometheus_client import CollectorRegistry, Gauge

from slowrank.page_server import MAX_CONNECTIONS, PageServer
from slowrank.settings import Settings
from streams.runtime.monitoring.metrics import serve

HALF_OPEN = b"GET /metrics HTTP/1.1\r\nX-Slow: "


def connections(held, port, count, data=HALF_OPEN):
    made = [
        held.enter_context(socket.create_connection(("127.0.0.1", port), timeout=5)) for _ in range(count)
    ]
    for one in made:
        one.sendall(data)
    return made


def get(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as reply:
        return reply.read()


def until(condition, seconds=10.0):
    """Return whether a condition comes true in time."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


@pytest.fixture
def page():
    """Start servers of one page: ``page(seconds=…)``."""
    servers = []

    def start(**options):
        servers.append(PageServer("127.0.0.1", 0, lambda path: b"x" * 2**23, **options))
        return servers[-1].port

    yield start
    for server in servers:
        server.close()


@pytest.mark.slow
def test_half_open_requests_cost_a_worker_few_threads():
    """The page of a worker answers beside 300 requests that never end, of which it holds 32."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    registry = CollectorRegistry()
    Gauge("slowrank_there", "x", registry=registry).set(1)
    before = threading.active_count()
    serve(Settings(streams_metrics_port=port), "detect", registry)
    with ExitStack() as held:
        connections(held, port, 300)
        assert b"slowrank_there 1.0" in get(port)
        assert until(lambda: threading.active_count() - before <= MAX_CONNECTIONS + 1)


@pytest.mark.slow
@pytest.mark.parametrize("data", [b"", HALF_OPEN], ids=["silent", "dripping"])
def test_a_request_has_its_time(page, data):
    """One that sends nothing, or a byte at a time, is ended."""
    port = page(seconds=1.0)
    with ExitStack() as held:
        (slow,) = connections(held, port, 1, data)
        slow.settimeout(0.1)

        def ended():
            try:
                if data:
                    slow.sendall(b"x")
                return slow.recv(1) == b""
            except TimeoutError:
                return False
            except ConnectionError:
                return True

        assert until(ended, 5.0)


@pytest.mark.slow
def test_an_answer_that_is_not_read_has_its_time(page):
    """A client that asks and does not read keeps no thread."""
    port = page(seconds=1.0)
    with ExitStack() as held:
        before = threading.active_count()
        connections(held, port, 8, b"GET /metrics HTTP/1.1\r\n\r\n")
        assert until(lambda: threading.active_count() > before)
        assert until(lambda: threading.active_count() <= before)
        assert len(get(port)) == 2**23
