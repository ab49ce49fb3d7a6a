"""NVIDIA GPUs, read through child processes with a deadline, so that no GPU can block the tick.

A GPU that does not answer in time has no values in that tick; a late answer counts in the tick in which it
arrives.
"""

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from exporters.collector import Columns, Instant, Reading
from exporters.host.kernel_files import names_in
from exporters.host.kmsg import pci_address
from exporters.nvml.calls import CALL_SECONDS, COLUMNS
from exporters.nvml.child_handle import Reply
from exporters.nvml.deadlines import SOFT_SECONDS, START_SECONDS, GpuState
from exporters.nvml.gpu_names import GpuNames
from exporters.nvml.pool import ReaderPool
from slowrank.telemetry.hardware.boards import board_label
from slowrank.telemetry.records import GPUS_RELEASED

NVML_CHILD = (sys.executable, "-m", "exporters.nvml.child")

# Where the driver lists its GPUs by PCI address; listing the names accesses no GPU.
DRIVER_GPUS = Path("/proc/driver/nvidia/gpus")
# How often samples name the boards of the GPUs, which they do at once when one has changed. Chosen: a
# consumer that starts anew has them before its first findings; they take half as much as a sample's values.
BOARDS_SECONDS = 60.0
# Seconds (61 µs) to which the time of a read is rounded. Chosen: far below what a rule looks at (0.25 s). The
# digits after it would take two bytes a GPU in the log.
CALL_STEP = 2.0**-14


class NvmlCollector:
    """Read all GPUs through children started from ``argv``.

    ``released`` returns whether the devices are to be closed at a Unix time, ``listed`` the GPUs that the
    driver has.
    """

    name = "nvml"
    columns: Mapping[str, str] = COLUMNS

    def __init__(
        self,
        argv: Sequence[str] = NVML_CHILD,
        *,
        released: Callable[[float], bool] = lambda wall: False,
        listed: Callable[[], Sequence[str]] = lambda: names_in(DRIVER_GPUS),
    ) -> None:
        self._pool = ReaderPool(argv)
        self._names = GpuNames()
        self._released, self._listed = released, listed
        self._driver_gpus = tuple(listed())
        self._addresses: dict[str, int] = {}
        self._boards: dict[str, str] = {}
        self._boards_sent: tuple[float, dict[str, str]] = (-math.inf, {})
        # Time of the last tick with the devices released, None once a GPU has answered since.
        self._released_at: float | None = None
        self._misses = 0
        # As of the last tick, for the thread that serves /metrics.
        self._metrics: Mapping[str, float] = self._measured()

    def collect(self, now: Instant) -> Reading:
        reading = self._reading(now)
        self._metrics = self._measured()
        return reading

    def _reading(self, now: Instant) -> Reading:
        if self._released(now.wall):
            if self._pool.running:
                self._pool.end()
            self._released_at = now.monotonic
            return Reading(gpu={name: {} for name in self._names.all()}, labels=GPUS_RELEASED)
        if (driver_gpus := tuple(self._listed())) != self._driver_gpus:
            self._driver_gpus = driver_gpus
            self._pool.renew()
        replies = self._pool.read(now.monotonic)
        self._names.found(len(self._pool.gpus))
        for index, reply in sorted(replies.items()):
            self._identify(index, reply.identity)
        columns: dict[str, Columns] = {name: {} for name in self._names.all()}
        for index, gpu in self._pool.gpus.items():
            self._misses += index not in replies
            columns[self._names.name(index)] = _columns(gpu, replies.get(index), now.monotonic)
        # The driver takes seconds to open a GPU that no other process holds open: it is not missing then.
        at = self._released_at
        if at is not None and (replies or now.monotonic - at > 2 * START_SECONDS):
            self._released_at = None
        labels = {} if self._released_at is None else GPUS_RELEASED
        return Reading(gpu=columns, labels={**labels, **self._boards_due(now.monotonic)})

    def gpu_indices(self) -> Mapping[str, int]:
        """Return the index of every GPU read so far, by its PCI address."""
        return self._addresses

    def gpu_uuids(self) -> Mapping[str, int]:
        """Return the index of every GPU read so far, by its UUID."""
        return {uuid: int(name) for uuid, name in self._names.by_uuid().items()}

    def metrics(self) -> Mapping[str, float]:
        return self._metrics

    def _measured(self) -> Mapping[str, float]:
        gpus = self._pool.gpus
        seconds = {f'gpu_read_seconds{{gpu="{self._names.name(i)}"}}': g.seconds for i, g in gpus.items()}
        return {
            "gpus": len(gpus),
            "gpus_apart": sum(gpu.apart for gpu in gpus.values()),
            "gpus_released": float(self._released_at is not None),
            "nvml_children": self._pool.children,
            "nvml_children_unkillable": self._pool.stuck,
            "nvml_child_restarts_total": self._pool.restarts,
            "nvml_misses_total": self._misses,
            **seconds,
        }

    def close(self) -> None:
        self._pool.end()

    def _boards_due(self, now: float) -> Mapping[str, str]:
        at, boards = self._boards_sent
        if boards == self._boards and now - at < BOARDS_SECONDS:
            return {}
        self._boards_sent = (now, dict(self._boards))
        return self._boards

    def _identify(self, index: int, identity: Mapping[str, str]) -> None:
        if "uuid" in identity:
            self._names.learn(index, identity["uuid"])
            name = self._names.name(index)
            self._boards |= board_label(name, identity["uuid"], identity.get("serial"))
        if "pci_bus_id" in identity:
            self._addresses[pci_address(identity["pci_bus_id"])] = int(self._names.name(index))


def _columns(gpu: GpuState, reply: Reply | None, now: float) -> Columns:
    """Return the values of a GPU and the seconds of its last read, or of the present one if longer."""
    if reply is not None:
        return {**reply.values, CALL_SECONDS: round(reply.seconds / CALL_STEP) * CALL_STEP}
    if gpu.unanswered is None:
        return {}
    return {CALL_SECONDS: max(gpu.seconds, SOFT_SECONDS, now - gpu.unanswered)}
