"""The process that touches the GPUs, so that a call that never returns can be killed from outside.

Speaks JSON lines: it says how many GPUs there are, then answers each request
``{"seq", "gpus", "slow"}`` with one line per GPU as soon as that GPU is read.
"""

import json
import sys
import time
from collections.abc import Callable, Mapping
from typing import Protocol, TextIO

import pynvml

from exporters.nvml_device import NvmlGpus
from slowrank.telemetry.columns import Value

NO_DRIVER = 3
"""Exit status where NVML or its driver is not there."""


class Gpus(Protocol):
    """The devices as the child needs them: NVML, or a test's fixture. Calls may hang."""

    def count(self) -> int: ...

    def identity(self, index: int) -> Mapping[str, str]: ...

    def read(self, index: int, *, slow: bool) -> Mapping[str, Value]: ...


def serve(gpus: Gpus, requests: TextIO, replies: TextIO, clock: Callable[[], float]) -> None:
    """Answer requests until the parent closes the pipe."""
    _say(replies, {"gpus": gpus.count()})
    known: set[int] = set()
    for line in requests:
        request = json.loads(line)
        slow = set(request["slow"])
        for index in request["gpus"]:
            began = clock()
            values = gpus.read(index, slow=index in slow)
            reply = {"seq": request["seq"], "gpu": index, "values": values, "seconds": clock() - began}
            # Once: it does not change while the driver is loaded, and each call is one more that may hang.
            if index not in known:
                known.add(index)
                reply["identity"] = gpus.identity(index)
            _say(replies, reply)


def _say(replies: TextIO, message: Mapping[str, object]) -> None:
    replies.write(json.dumps(message) + "\n")
    # A pipe is buffered in blocks: this answer must be out before the next GPU can hang.
    replies.flush()


def main() -> int:
    """Serve NVML on standard input and output."""
    try:
        gpus = NvmlGpus()
    except pynvml.NVMLError as error:
        sys.stderr.write(f"NVML is not available: {error}\n")
        return NO_DRIVER
    serve(gpus, sys.stdin, sys.stdout, time.monotonic)
    return 0


if __name__ == "__main__":
    sys.exit(main())
