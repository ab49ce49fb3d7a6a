"""A child process that exchanges JSON lines over pipes; the parent never blocks on it."""

import contextlib
import json
import os
import select
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

# Exit statuses of the child: an error of its own, and no NVML or driver.
FAILED, NO_DRIVER = 1, 3

# Bytes of one read, and of a line. Chosen: far above the answer about all GPUs of a node.
_CHUNK = 65536
_MAX_LINE = 1 << 20


class ChildGone(Exception):
    """The child has ended, or broken the protocol; ``status`` is its exit status, None if it still runs."""

    def __init__(self, status: int | None) -> None:
        super().__init__(f"the child ended with status {status}")
        self.status = status


class Child:
    """One started child. Raises ``ChildGone`` where it cannot be started."""

    def __init__(self, argv: Sequence[str]) -> None:
        self._buffer = b""
        try:
            # stderr is discarded: an unread pipe fills and blocks. Unbuffered, so that `write` reports a
            # short write.
            self._process = subprocess.Popen(
                argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0
            )
        except OSError as error:
            raise ChildGone(None) from error
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self._out = self._process.stdin, self._process.stdout
        os.set_blocking(self._in.fileno(), False)
        os.set_blocking(self._out.fileno(), False)

    def fileno(self) -> int:
        """Return the file descriptor of the child's output, for ``select``."""
        return self._out.fileno()

    def send(self, message: Mapping[str, object]) -> None:
        """Send ``message`` as one JSON line without blocking.

        Raises ``ChildGone`` when the pipe is closed, or full because the child does not read.
        """
        line = json.dumps(message).encode() + b"\n"
        try:
            if self._in.write(line) != len(line):
                raise ChildGone(self.status())
        except OSError as error:
            raise ChildGone(self.wait(0.2)) from error

    def messages(self, timeout: float) -> Iterator[Any]:
        """Yield the messages that arrive within ``timeout`` seconds, decoded.

        Raises ``ChildGone`` at the end of the child's output and for a line that is too long or not JSON.
        """
        deadline = time.monotonic() + timeout
        while True:
            line, found, rest = self._buffer.partition(b"\n")
            if found:
                self._buffer = rest
                yield self._parsed(line)
                continue
            ready, _, _ = select.select([self._out], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                return
            chunk = self._out.read(_CHUNK)
            if not chunk or len(self._buffer) > _MAX_LINE:
                raise ChildGone(self.wait(0.2))
            self._buffer += chunk

    def kill(self) -> None:
        """Send SIGKILL and close the pipes, without waiting for the end."""
        self._process.kill()
        self._in.close()
        self._out.close()

    def status(self) -> int | None:
        """Return the exit status, None while it lives."""
        return self._process.poll()

    def wait(self, timeout: float) -> int | None:
        """Wait at most ``timeout`` seconds for the end; return the exit status, None if it lives on."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(timeout)
        return None

    def _parsed(self, line: bytes) -> Any:
        try:
            return json.loads(line)
        except ValueError as error:
            raise ChildGone(self.status()) from error
