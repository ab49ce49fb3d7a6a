"""Receivers of every kind on loopback, HTTP and SMTP, which keep what arrives in order of arrival."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from benchmarks.delivery.mails import serving_mail
from benchmarks.loopback import serving

SLACK_TOKEN = "xoxb-0123456789-abcdefghij"
MAILBOX = "mailto:oncall@example.org"
PAGERDUTY_KEY = "0123456789abcdefghijklmnopqrstuv"
OPSGENIE_KEY = "eb243592-faa2-4ba2-a551-1afdf565c889"


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request that a receiver took: which one, for what path, the ``webhook-id`` and the exact body."""

    receiver: str
    path: str
    webhook_id: str
    body: bytes


@dataclass(slots=True)
class Receivers:
    """What arrived at all receivers. ``fault`` is the share of requests that are taken and answered badly.

    Such a request is answered 503, or the connection is closed without an answer: the receiver has it, and
    the notifier has to send it again.
    """

    fault: float = 0.0
    seed: int = 0
    port: int = 0
    mail_port: int = 0
    arrivals: list[Arrival] = field(default_factory=list)
    _chance: random.Random = field(init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)

    def url(self, name: str) -> str:
        """Return the URL to register for the receiver of this name (that of its format)."""
        if name == "email":
            return MAILBOX
        path = {
            "slack_bot": "/api/chat.postMessage?channel=C0123456789",
            "alertmanager_push": "/api/v2/alerts",
            "opsgenie": "/v2/alerts",
        }.get(name, "/hook")
        return f"http://127.0.0.1:{self.port}/{name}{path}"

    def take(self, path: str, webhook_id: str, body: bytes) -> tuple[int, bytes] | None:
        """Keep a request; return status and body of the answer, None to close the connection without one."""
        _, receiver, *rest = path.split("/", 2)
        with self._lock:
            self.arrivals.append(Arrival(receiver, "/" + "/".join(rest), webhook_id, body))
            count, lot = len(self.arrivals), self._chance.random()
        if lot < self.fault:
            return None if lot < self.fault / 3 else (503, b"")
        if receiver != "slack_bot":
            return 202, b"{}"
        asked = json.loads(body)
        time = asked.get("ts") or f"1795160042.{count:06}"
        return 200, json.dumps({"ok": True, "channel": asked["channel"], "ts": time}).encode()


@contextmanager
def served(receivers: Receivers) -> Iterator[None]:
    """Serve the receivers on free ports, which become their ``port`` and ``mail_port``."""
    with (
        serving(_Server(receivers)) as receivers.port,
        serving_mail(receivers.take) as receivers.mail_port,
    ):
        yield


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, receivers: Receivers) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.receivers = receivers

    def handle_error(self, request: object, client_address: object) -> None:
        """Print nothing: the notifier is killed in the middle of requests on purpose."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_POST(self) -> None:
        length = int(self.headers.get("content-length", "0"))
        body = self.rfile.read(length)
        if len(body) < length:
            # The notifier was killed while it sent.
            self.close_connection = True
            return
        answer = self.server.receivers.take(self.path, self.headers.get("webhook-id", ""), body)
        if answer is None:
            self.close_connection = True
            return
        status, content = answer
        self.send_response(status)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""
