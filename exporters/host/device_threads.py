"""Reading devices whose files may block: a thread each, so that one that hangs costs only its own values.

A counter of a network adapter is a question to its firmware, which a driver waits for up to a minute.
"""

import threading
import time
from collections.abc import Callable, Iterable
from queue import SimpleQueue

from exporters.collector import Columns

WAIT_SECONDS = 0.4
"""How long one tick waits for its devices, within the half second of a collector. A device that has not
answered is waited for no more; its answer counts in the tick in which it comes."""


class DeviceThreads:
    """Reads every device by ``read`` in a thread of its own, named ``name``."""

    def __init__(self, name: str, read: Callable[[str], Columns]) -> None:
        self._name = name
        self._read = read
        self._asked: dict[str, SimpleQueue[bool]] = {}
        self._busy: set[str] = set()
        self._done = threading.Condition()
        self._found: dict[str, Columns] = {}

    @property
    def blocked(self) -> int:
        """How many devices owe an answer."""
        with self._done:
            return len(self._busy)

    def collect(self, devices: Iterable[str]) -> dict[str, Columns]:
        """Return what each device reads now, nothing for one that does not answer."""
        names = list(devices)
        with self._done:
            for gone in self._asked.keys() - set(names) - self._busy:
                self._asked.pop(gone).put(False)
            asked = {name for name in names if name not in self._busy}
            self._busy |= asked
            # What a device that was late has answered since the last tick stands unless it answers again.
            late, self._found = self._found, {}
        for name in asked:
            self._thread_of(name).put(True)
        deadline = time.monotonic() + WAIT_SECONDS
        with self._done:
            self._done.wait_for(lambda: not asked & self._busy, deadline - time.monotonic())
            found, self._found = {**late, **self._found}, {}
        return {name: found.get(name, {}) for name in names}

    def close(self) -> None:
        """End the threads, but those that hang, which end with the process."""
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
            columns = self._read(device)
            with self._done:
                self._found[device] = columns
                self._busy.discard(device)
                self._done.notify_all()
