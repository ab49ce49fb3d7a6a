"""NVIDIA GPUs: asks a killable child for readings, and never waits longer than a tick allows.

A GPU that does not answer in time has no values in that tick; one that blocks the child for good costs the
child its life, is left out for a growing while, and keeps being reported, as silent. The child of the other
GPUs is replaced at once.
"""

import logging
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from exporters.collector import Columns, Instant, Reading
from exporters.kmsg import pci_address
from exporters.nvml_calls import COLUMNS
from exporters.nvml_child import NO_DRIVER
from exporters.nvml_process import Child, ChildGone

_log = logging.getLogger(__name__)

SOFT_SECONDS = 0.3
"""How long a tick waits for the readings of all GPUs together."""
HARD_SECONDS = 2.0
"""How long one GPU may block the child."""
# How long a new child may take until it has said how many GPUs there are.
START_SECONDS = 10.0
EXCLUDE_SECONDS = (30.0, 300.0)
"""For how long a GPU that blocked is left out: at first, and at most."""
# After a child that ended by itself; a driver that is not there seldom comes.
RETRY_SECONDS = 5.0
RETRY_WITHOUT_DRIVER_SECONDS = 600.0
SLOW_EVERY = 5
"""Every GPU has its slow set (ECC, PCIe, NVLink, remapped rows) read once in so many ticks."""
# Killed children in a call that cannot be interrupted; a GPU with more of them is asked no more.
ABANDONED_PER_GPU = 2

NVML_CHILD = (sys.executable, "-m", "exporters.nvml_child")


class NvmlCollector:
    """Reads all GPUs through one child process, started from ``argv``."""

    name = "nvml"
    columns: Mapping[str, str] = COLUMNS

    def __init__(self, argv: Sequence[str] = NVML_CHILD) -> None:
        self._argv = tuple(argv)
        self._child: Child | None = None
        self._gpus = 0
        self._greeted = False
        self._indices: dict[str, int] = {}
        self._uuids: dict[str, int] = {}
        # GPU -> (monotonic time it is tried again at, how long it was left out).
        self._excluded: dict[int, tuple[float, float]] = {}
        # With the GPU it hung on, -1 where that is not known.
        self._abandoned: list[tuple[int, Child]] = []
        self._pending: list[int] = []
        self._since = 0.0
        self._seq = 0
        self._retry_at = 0.0
        self._restarts = 0
        self._misses = 0

    def collect(self, now: Instant) -> Reading:
        self._reap()
        readings: dict[int, Columns] = {}
        try:
            child = self._ready(now)
            if child is not None:
                self._read(child, now, readings)
        except ChildGone as gone:
            self._lose_child(now, gone.status)
        self._misses += len(self._pending)
        return Reading(gpu={str(index): readings.get(index, {}) for index in range(self._gpus)})

    def gpu_indices(self) -> Mapping[str, int]:
        """Return the index of every GPU read so far by its PCI address."""
        return self._indices

    def gpu_uuids(self) -> Mapping[str, int]:
        """Return the index of every GPU read so far by its UUID."""
        return self._uuids

    def metrics(self) -> Mapping[str, float]:
        return {
            "gpus": self._gpus,
            "gpus_excluded": len(self._excluded),
            "nvml_child_restarts_total": self._restarts,
            "nvml_misses_total": self._misses,
        }

    def close(self) -> None:
        children = [child for _, child in self._abandoned]
        if self._child is not None:
            children.append(self._child)
        for child in children:
            child.kill()
            child.wait(1.0)
        self._child, self._abandoned = None, []

    def _ready(self, now: Instant) -> Child | None:
        """Return the child when it can take a request now."""
        if self._child is None:
            if now.monotonic < self._retry_at:
                return None
            self._child = Child(self._argv)
            self._pending, self._greeted, self._since = [], False, now.monotonic
        if not self._greeted:
            self._greet(self._child, now)
        return self._child if self._greeted else None

    def _greet(self, child: Child, now: Instant) -> None:
        for message in child.messages(SOFT_SECONDS):
            self._gpus, self._greeted = int(message["gpus"]), True
            _log.info("reading %d GPUs through NVML", self._gpus)
            return
        if now.monotonic - self._since > START_SECONDS:
            self._kill(None, now)

    def _read(self, child: Child, now: Instant, readings: dict[int, Columns]) -> None:
        if self._pending:
            # Answers to the last tick's request come too late to be this tick's values.
            before = len(self._pending)
            self._take(child, 0.0, {})
            if len(self._pending) < before:
                # Any answer gives the next GPU its own HARD_SECONDS.
                self._since = now.monotonic
        if self._pending and now.monotonic - self._since > HARD_SECONDS:
            # The child reads in the order asked: the first without an answer is the one it hangs on.
            self._kill(self._pending[0], now)
            return
        if not self._pending:
            self._request(child, now)
            self._take(child, SOFT_SECONDS, readings)
        if self._pending:
            # The call that hangs is the only news of this GPU.
            waited = max(SOFT_SECONDS, now.monotonic - self._since)
            readings.setdefault(self._pending[0], {"gpu.nvml_call_seconds": waited})

    def _request(self, child: Child, now: Instant) -> None:
        back = [gpu for gpu, (until, _) in self._excluded.items() if now.monotonic >= until]
        # A GPU on probation is read last, so that it cannot hold up the others.
        wanted = [g for g in range(self._gpus) if g not in self._excluded] + back
        self._seq += 1
        # Spread over the ticks, so that no tick reads all slow sets; the first does, for limits to be known.
        slow = [g for g in wanted if g % SLOW_EVERY == self._seq % SLOW_EVERY or self._seq == 1]
        self._pending = list(wanted)
        self._since = now.monotonic
        child.send({"seq": self._seq, "gpus": self._pending, "slow": slow})

    def _take(self, child: Child, timeout: float, readings: dict[int, Columns]) -> None:
        if not self._pending:
            return
        for message in child.messages(timeout):
            gpu = int(message["gpu"])
            if message["seq"] != self._seq or gpu not in self._pending:
                continue
            self._pending.remove(gpu)
            self._excluded.pop(gpu, None)
            self._know(gpu, message.get("identity"))
            readings[gpu] = {**message["values"], "gpu.nvml_call_seconds": message["seconds"]}
            if not self._pending:
                return

    def _know(self, gpu: int, identity: Any) -> None:
        if identity and "pci_bus_id" in identity:
            self._indices[pci_address(identity["pci_bus_id"])] = gpu
        if identity and "uuid" in identity:
            self._uuids[identity["uuid"]] = gpu

    def _kill(self, gpu: int | None, now: Instant) -> None:
        if self._child is None:
            return
        self._child.kill()
        self._abandoned.append((-1 if gpu is None else gpu, self._child))
        self._child, self._pending = None, []
        self._restarts += 1
        self._retry_at = now.monotonic if gpu is not None else now.monotonic + RETRY_SECONDS
        if gpu is not None:
            self._exclude(gpu, now)

    def _exclude(self, gpu: int, now: Instant) -> None:
        shortest, longest = EXCLUDE_SECONDS
        _, last = self._excluded.get(gpu, (0.0, shortest / 2))
        pause = min(longest, 2 * last)
        # A child in an uninterruptible call cannot be killed; do not pile them up.
        stuck = sum(1 for owner, child in self._abandoned if owner == gpu and child.status() is None)
        until = now.monotonic + pause if stuck <= ABANDONED_PER_GPU else float("inf")
        self._excluded[gpu] = (until, pause)

    def _lose_child(self, now: Instant, status: int | None) -> None:
        if self._child is not None:
            self._child.kill()
            self._abandoned.append((-1, self._child))
        self._child, self._pending = None, []
        without_driver = status == NO_DRIVER
        self._restarts += not without_driver
        if without_driver:
            again = RETRY_WITHOUT_DRIVER_SECONDS / 60
            _log.info(
                "no GPU is read: NVML or its driver is not here (nvidia-smi?); again in %.0f min", again
            )
        self._retry_at = now.monotonic + (RETRY_WITHOUT_DRIVER_SECONDS if without_driver else RETRY_SECONDS)

    def _reap(self) -> None:
        self._abandoned = [(gpu, child) for gpu, child in self._abandoned if child.status() is None]
