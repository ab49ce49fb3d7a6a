"""What NVML gives on this host, read by the exporter's own collector: columns, and what a read takes."""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import psutil

from exporters.collector import Columns, Instant
from exporters.nvml.calls import CALL_SECONDS, COLUMNS
from exporters.nvml.collector import NvmlCollector
from slowrank.telemetry.hardware.boards import boards_in

_PERIOD_SECONDS = 1.0
# Means of these say how busy a GPU was.
ACTIVITY = (
    "gpu.utilization_ratio",
    "gpu.tensor_active_ratio",
    "gpu.dram_active_ratio",
    "gpu.clock.sm_hz",
    "gpu.power_watts",
    "gpu.temp_celsius",
)


@dataclass(frozen=True, slots=True)
class Read:
    """One tick of the collector in one part of the run: the columns of each GPU, and the boards named."""

    part: str
    gpus: Mapping[str, Columns]
    boards: Mapping[str, str]


class Sampler:
    """Reads the GPUs once a second; ``part`` is what the host does meanwhile."""

    def __init__(self) -> None:
        self.part = "idle"
        self.reads: list[Read] = []
        self._from: tuple[float, int] | None = None
        self._child_seconds: float | None = None

    @contextmanager
    def sampling(self) -> Iterator[None]:
        """Read in a thread of its own as long as the context lasts."""
        stop = threading.Event()
        thread = threading.Thread(target=self._run, args=(stop,), name="nvml", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(5.0)

    @property
    def child_seconds(self) -> float | None:
        """Processor time of the collector's children per read, after their start; None before that."""
        return self._child_seconds

    def _run(self, stop: threading.Event) -> None:
        collector = NvmlCollector()
        try:
            while not stop.wait(_PERIOD_SECONDS):
                part = self.part
                reading = collector.collect(Instant(wall=time.time(), monotonic=time.monotonic()))
                self.reads.append(Read(part, reading.gpu, boards_in(reading.labels)))
                self._measure()
        finally:
            collector.close()

    def _measure(self) -> None:
        answers = sum(any(len(gpu) > 1 for gpu in read.gpus.values()) for read in self.reads)
        if not answers:
            return
        used = _used_by_children()
        if self._from is None:
            self._from = used, answers
        elif answers > self._from[1]:
            self._child_seconds = (used - self._from[0]) / (answers - self._from[1])


def _used_by_children() -> float:
    """Return the processor time so far of the processes that read NVML for this one."""
    used = 0.0
    for child in psutil.Process(os.getpid()).children():
        with suppress(psutil.Error):
            if "exporters.nvml.child" in child.cmdline():
                times = child.cpu_times()
                used += times.user + times.system
    return used


def summary(reads: Sequence[Read]) -> dict[str, dict[str, Any]]:
    """Return by GPU which columns have values, the last of each part, and which have none; pure."""
    names = sorted({name for read in reads for name in read.gpus})
    return {name: _of_gpu(name, reads) for name in names}


def _of_gpu(name: str, reads: Sequence[Read]) -> dict[str, Any]:
    present: dict[str, dict[str, object]] = {}
    for read in reads:
        for column, value in read.gpus.get(name, {}).items():
            if value is not None:
                present.setdefault(column, {})[read.part] = value
    board = next((read.boards[name] for read in reads if name in read.boards), "")
    uuid, _, serial = board.partition("/")
    return {
        "present": present,
        "missing": sorted(set(COLUMNS) - set(present)),
        "read_seconds": {part: _read_seconds(name, reads, part) for part in _parts(reads)},
        "uuid": bool(uuid),
        "serial": bool(serial),
    }


def _parts(reads: Sequence[Read]) -> list[str]:
    return list(dict.fromkeys(read.part for read in reads))


def _read_seconds(name: str, reads: Sequence[Read], part: str) -> dict[str, object]:
    took = _values(name, reads, part, CALL_SECONDS)
    return (
        {"reads": len(took), "median": statistics.median(took), "most": max(took)} if took else {"reads": 0}
    )


def activity(reads: Sequence[Read], part: str) -> dict[str, dict[str, float]]:
    """Return by GPU the means of ``ACTIVITY`` in one part of the run; pure."""
    names = sorted({name for read in reads for name in read.gpus})
    return {
        name: {
            column: statistics.fmean(values)
            for column in ACTIVITY
            if (values := _values(name, reads, part, column))
        }
        for name in names
    }


def _values(name: str, reads: Sequence[Read], part: str, column: str) -> list[float]:
    found = (read.gpus.get(name, {}).get(column) for read in reads if read.part == part)
    return [float(value) for value in found if value is not None]
