"""The process that reads the GPUs, so that a call that never returns can be ended with a kill from outside.

Writes JSON lines: first the number of GPUs, then one line for every GPU of a request ``{"gpus", "slow"}``, as
soon as it is read. Each GPU has a thread of its own, since a call into the driver blocks only its own thread:
one GPU that is slow, or hangs, does not delay the others.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from queue import SimpleQueue
from typing import Protocol, TextIO

import pynvml

from exporters.nvml.device import GpuGone, NvmlGpus
from exporters.nvml.process import FAILED, NO_DRIVER
from slowrank.telemetry.columns import Value


class Gpus(Protocol):
    """The devices that the child reads: NVML, or a test's fixture. Calls may hang.

    Calls for different GPUs come from different threads. ``read`` raises ``GpuGone`` for a GPU that the
    driver has lost.
    """

    def count(self) -> int: ...

    def identity(self, index: int) -> Mapping[str, str]: ...

    def read(self, index: int, *, slow: bool) -> Mapping[str, Value]: ...


class _Replies:
    """Writes whole lines to the parent, from any thread."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()

    def send(self, message: Mapping[str, object]) -> None:
        with self._lock:
            self._stream.write(json.dumps(message) + "\n")
            # A pipe is block-buffered, and the parent waits for this line.
            self._stream.flush()


def serve(gpus: Gpus, requests: TextIO, replies: TextIO, clock: Callable[[], float]) -> None:
    """Answer requests until the parent closes the pipe. A thread that hangs is left behind."""
    out = _Replies(replies)
    out.send({"gpus": gpus.count()})
    queues: dict[int, SimpleQueue[bool]] = {}
    for line in requests:
        request = json.loads(line)
        for index in request["gpus"]:
            if index not in queues:
                queues[index] = SimpleQueue()
                threading.Thread(
                    target=_read_one, args=(gpus, index, queues[index], out, clock), daemon=True
                ).start()
            queues[index].put(index in request["slow"])


def _read_one(
    gpus: Gpus, index: int, asked: SimpleQueue[bool], out: _Replies, clock: Callable[[], float]
) -> None:
    identity: Mapping[str, str] = {}
    while True:
        slow = asked.get()
        began = clock()
        try:
            reply: dict[str, object] = {"gpu": index, "values": gpus.read(index, slow=slow)}
        except GpuGone:
            reply = {"gpu": index, "values": {}, "gone": True}
        reply["seconds"] = clock() - began
        # Read once: it does not change while the child runs, and every call may hang.
        if not identity and "gone" not in reply:
            identity = gpus.identity(index)
            reply["identity"] = identity
        out.send(reply)


def _end(_: object) -> None:
    # A thread that ended with an error would look like a GPU that hangs; the parent starts another child.
    os._exit(FAILED)


def main() -> int:
    """Serve NVML on standard input and output."""
    threading.excepthook = _end
    try:
        gpus = NvmlGpus()
    except pynvml.NVMLError as error:
        sys.stderr.write(f"NVML is not available: {error}\n")
        return NO_DRIVER
    serve(gpus, sys.stdin, sys.stdout, time.monotonic)
    # Without the interpreter's shutdown, which a thread in a hanging call may block.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
