"""Read devices whose files may block, each in a thread, so that one that hangs loses only its own values.

The driver of a network adapter asks the firmware for each counter and may wait for it up to a minute.
"""

import threading
import time
from collections.abc import Callable, Iterable
from queue import SimpleQueue
from typing import Generic, TypeVar

Read = TypeVar("Read")

# How long one tick waits for its devices, within the half second of a collector. The tick goes on without a
# device that is late; its answer counts in the tick in which it arrives.
WAIT_SECONDS = 0.4


class DeviceThreads(Generic[Read]):
    """Read every device with ``read`` in a thread of its own, named ``name``."""

    def __init__(self, name: str, read: Callable[[str], Read]) -> None:
        self._name = name
        self._read = read
        self._asked: dict[str, SimpleQueue[bool]] = {}
        self._busy: set[str] = set()
        self._done = threading.Condition()
        self._found: dict[str, Read] = {}

    @property
    def blocked(self) -> int:
        """Number of devices whose read has not returned."""
        with self._done:
            return len(self._busy)

    def collect(self, devices: Iterable[str]) -> dict[str, Read]:
        """Return what was read of each device that answers in time."""
        names = list(devices)
        with self._done:
            for gone in self._asked.keys() - set(names) - self._busy:
                self._asked.pop(gone).put(False)
            asked = {name for name in names if name not in self._busy}
            self._busy |= asked
            # A late answer since the last tick counts unless the device answers again now.
            late, self._found = self._found, {}
        for name in asked:
            self._thread_of(name).put(True)
        deadline = time.monotonic() + WAIT_SECONDS
        with self._done:
            self._done.wait_for(lambda: not asked & self._busy, deadline - time.monotonic())
            found, self._found = {**late, **self._found}, {}
        return {name: found[name] for name in names if name in found}

    def close(self) -> None:
        """End the threads; those that hang end with the process."""
        for asked in self._asked.values():
            asked.put(False)
        self._asked = {}

    def _thread_of(self, device: str) -> SimpleQueue[bool]:
        if device not in self._asked:
            self._asked[device] = SimpleQueue()
            threading.Thread(
                target=self._serve, args=(device, self._asked[device]), name=self._name, daemon=True
            ).start()
        return self._asked[device]

    def _serve(self, device: str, asked: SimpleQueue[bool]) -> None:
        while asked.get():
            read = self._read(device)
            with self._done:
                self._found[device] = read
                self._busy.discard(device)
                self._done.notify_all()
