"""The process that touches the GPUs, so that a call that never returns can be killed from outside.

Writes JSON lines: first how many GPUs there are, then one line for every GPU asked for by
``{"gpus", "slow"}``, as soon as it is read. Each GPU has a thread of its own, since a call into the driver
holds only the thread that made it: one GPU that is slow, or hangs, delays no other.
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
    """The devices as the child needs them: NVML, or a test's fixture. Calls may hang.

    Calls for different GPUs come from different threads. ``read`` raises ``GpuGone`` for a GPU that the
    driver has lost.
    """

    def count(self) -> int: ...

    def identity(self, index: int) -> Mapping[str, str]: ...

    def read(self, index: int, *, slow: bool) -> Mapping[str, Value]: ...


class _Replies:
    """Lines to the parent, whole ones, from any thread."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()

    def say(self, message: Mapping[str, object]) -> None:
        with self._lock:
            self._stream.write(json.dumps(message) + "\n")
            # A pipe is buffered in blocks, and the parent waits for this line.
            self._stream.flush()


def serve(gpus: Gpus, requests: TextIO, replies: TextIO, clock: Callable[[], float]) -> None:
    """Answer requests until the parent closes the pipe. A thread that hangs is left behind."""
    out = _Replies(replies)
    out.say({"gpus": gpus.count()})
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
        # Once: it does not change while the child lives, and each call is one more that may hang.
        if not identity and "gone" not in reply:
            identity = gpus.identity(index)
            reply["identity"] = identity
        out.say(reply)


def _end(_: object) -> None:
    # A thread that met an error would look like a GPU that hangs; the parent starts another child.
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
    # Not by way of the interpreter's end, which a thread in a call that hangs may hold up.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
