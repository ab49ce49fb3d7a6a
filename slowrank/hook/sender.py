"""Sending step rows from the training process: a bounded ring, a daemon thread, a datagram socket."""

import functools
import json
import os
import socket
import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from slowrank.hook.misuse import harmless, misuse

# Far more than the steps of a second: rows wait for the next flush only, and not for an absent exporter.
RING_ROWS = 4096
# Some 4 kB of JSON; a listener accepts up to 256 rows (telemetry.datagram).
DATAGRAM_ROWS = 32
# The exporter reads once a second: rows sent sooner would only wait there.
FLUSH_SECONDS = 1.0
# How often a rank reports the step that it does not end. Chosen: twice before a job counts as stalled (15 s).
OPEN_EVERY_FLUSHES = 5

Row = tuple[float | int | None, ...]
"""step, ts, step_seconds, the five phases in the order of ``timer.PHASES``, the four ``timer.NOTES``."""


OpenStep = tuple[int, str, float, str]
"""A step that has not ended: its number, the phase the rank is in ("": none), seconds since the last one, and
the line of code."""


class Sender:
    """The ring, the daemon thread and the socket of one timer.

    ``open_step`` is asked by the thread while no rows come, and returns the step that takes too long, if any:
    what a rank is doing where its job stops cannot be told from the rows of steps that ended.

    Belongs to the process that created it: after a fork the child starts with an empty ring and its own
    thread and socket, and rows queued by the parent stay with the parent.
    """

    def __init__(
        self, header: Mapping[str, Any], address: str, open_step: Callable[[], OpenStep | None] = lambda: None
    ) -> None:
        self.dropped = 0
        self._open_step = open_step
        self._header = dict(header)
        self._address = address
        self._pid = 0
        self._ring: deque[Row] = deque(maxlen=RING_ROWS)
        self._socket: socket.socket | None = None

    def put(self, row: Row) -> None:
        if self._address == "off":
            return
        if self._pid != os.getpid():
            self._start()
        # No lock: training never waits for a flush. append and popleft of a deque are atomic; dropped may be
        # off by one.
        if len(self._ring) == RING_ROWS:
            self.dropped += 1
        self._ring.append(row)

    def flush(self) -> None:
        if self._pid != os.getpid():
            return
        # Bounded, as the caller may be the training loop or interpreter exit.
        if not self._lock.acquire(timeout=FLUSH_SECONDS):
            return
        try:
            while self._ring:
                self._send([self._ring.popleft() for _ in range(min(DATAGRAM_ROWS, len(self._ring)))])
        finally:
            self._lock.release()

    def report_open_step(self) -> None:
        """Send the step that takes too long, if there is one and no rows wait."""
        if self._ring or not self._lock.acquire(timeout=FLUSH_SECONDS):
            return
        try:
            if (found := self._open_step()) is not None:
                # Beside the step: an older exporter refuses a longer one.
                self._send([], {"open": found[:-1], "at": found[-1]})
        finally:
            self._lock.release()

    def close(self) -> None:
        if self._pid == os.getpid():
            self._stop.set()
            self.flush()
            self._disconnect()
            self._pid = 0

    def _start(self) -> None:
        # First, so that a process that cannot start threads does not try again every step.
        self._pid = os.getpid()
        self._ring.clear()
        self._sequence = 0
        self._disconnect()
        # A new lock: the parent's thread may have held the old one during the fork, which nothing releases.
        self._lock = threading.Lock()
        self._stop = threading.Event()
        run = functools.partial(_run, self, self._stop)
        threading.Thread(target=run, name="slowrank-step-timer", daemon=True).start()

    def _send(self, rows: list[Row], more: Mapping[str, Any] | None = None) -> None:
        self._sequence += 1
        message = self._header | {"seq": self._sequence, "dropped": self.dropped} | dict(more or {})
        message["rows"] = [row[:-1] for row in rows]
        squares = [row[-1] for row in rows]
        if any(s is not None for s in squares):
            # Beside the rows: inside them an older exporter refuses unknown columns.
            message["seq_len_sq_sum"] = squares
        try:
            # JSON has no NaN, and the listener refuses the token that Python writes for it.
            payload = json.dumps(message, separators=(",", ":"), allow_nan=False).encode()
            self._connected().send(payload)
        except (OSError, ValueError):
            self.dropped += len(rows)
            self._disconnect()
            misuse.note(f"no exporter accepts datagrams at {self._address}")

    def _connected(self) -> socket.socket:
        if self._socket is None:
            self._socket = _open_socket(self._address)
        return self._socket

    def _disconnect(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


@harmless
def _run(sender: Sender, stop: threading.Event) -> None:
    flushes = 0
    while not stop.wait(FLUSH_SECONDS):
        sender.flush()
        flushes += 1
        if flushes % OPEN_EVERY_FLUSHES == 0:
            sender.report_open_step()


def _open_socket(address: str) -> socket.socket:
    family, target = _target(address)
    opened = socket.socket(family, socket.SOCK_DGRAM)
    try:
        # Non-blocking: a full buffer is an error. Connected: a UDP socket reports that no process listens.
        opened.setblocking(False)
        opened.connect(target)
    except OSError:
        opened.close()
        raise
    return opened


def _target(address: str) -> tuple[socket.AddressFamily, str | tuple[str, int]]:
    if address.startswith(("/", "unix:")):
        return socket.AF_UNIX, address.removeprefix("unix:")
    host, _, port = address.rpartition(":")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return family, (host.strip("[]"), int(port))
