"""Real things around the API: receivers of webhooks, a migrated database, the app on it."""

import ssl
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest


@dataclass
class Got:
    """One request as it arrived."""

    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Receiver:
    """Answers with ``answers`` in turn (the last one for ever) and remembers what came."""

    answers: list[tuple[int, dict[str, str], bytes]] = field(default_factory=lambda: [(200, {}, b"ok")])
    got: list[Got] = field(default_factory=list)
    before_answer: Callable[[Got], None] = lambda got: None
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    def wait_for(self, count: int, seconds: float = 20.0) -> list[Got]:
        """Return the first ``count`` requests, or fail saying how many came."""
        deadline = time.monotonic() + seconds
        while len(self.got) < count:
            if time.monotonic() > deadline:
                raise AssertionError(f"{len(self.got)} of {count} requests after {seconds} s")
            time.sleep(0.02)
        return self.got[:count]


def serve(receiver: Receiver, tls=None) -> ThreadingHTTPServer:
    """Start ``receiver`` on a free loopback port; the caller shuts the server down."""
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers.get("content-length", "0")))
            got = Got(self.path, {k.lower(): v for k, v in self.headers.items()}, body)
            with lock:
                receiver.got.append(got)
                answer = receiver.answers[min(len(receiver.got), len(receiver.answers)) - 1]
            receiver.before_answer(got)
            status, headers, payload = answer
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(payload)))
            self.end_headers()
            self.wfile.write(payload)

        def log_message(self, format, *args):
            pass

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request, client_address):
            pass

    server = Quiet(("127.0.0.1", 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    receiver.port = server.server_address[1]
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    return server


@pytest.fixture
def start_receiver():
    """Start receivers: ``start_receiver()`` or ``start_receiver(tls_context)``."""
    servers = []

    def start(tls=None, **fields):
        receiver = Receiver(**fields)
        servers.append(serve(receiver, tls))
        return receiver

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def receiver(start_receiver):
    """One receiver that answers 200."""
    return start_receiver()


@pytest.fixture(scope="session")
def certificate(tmp_path_factory):
    """Path of a PEM with key and certificate for hooks.example.test, made for this run."""
    pem = tmp_path_factory.mktemp("tls") / "both.pem"
    command = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 "
        "-subj /CN=hooks.example.test -addext subjectAltName=DNS:hooks.example.test "
        f"-keyout {pem} -out {pem}.crt"
    )
    subprocess.run(command.split(), check=True, capture_output=True)
    with pem.open("a") as both:
        both.write(pem.with_suffix(".pem.crt").read_text())
    return pem


@pytest.fixture
def tls_server_context(certificate):
    """The receiver's side of TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context
