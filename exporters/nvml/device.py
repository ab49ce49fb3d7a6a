"""Reads of one GPU through NVML, call by call; runs inside the child process only."""

import contextlib
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pynvml

from exporters.nvml.calls import CORE, SLOW, Columns
from exporters.nvml.gpm import Gpm

# How long a call that a GPU does not support is left out. Chosen: support changes with the driver or MIG.
RETRY_UNSUPPORTED_SECONDS = 3600.0
# NVML errors that invalidate a handle: its GPU fell off the bus, was reset or taken out.
_GONE = ("GPU_IS_LOST", "RESET_REQUIRED", "GPU_NOT_FOUND", "UNINITIALIZED", "DRIVER_NOT_LOADED")


class GpuGone(Exception):
    """The driver has lost this GPU, or its handle is not valid any more."""


class NvmlGpus:
    """The GPUs of this machine through NVML; an unsupported call is left out for an hour.

    Handles are opened at the first read, so that a GPU that hangs is accessed only on request, and opened
    anew for a GPU that was gone. Different GPUs may be read from different threads. Raises
    ``pynvml.NVMLError`` when there is no driver.
    """

    def __init__(self, nvml: Any = pynvml, clock: Callable[[], float] = time.monotonic) -> None:
        self._nvml = nvml
        self._clock = clock
        self._handles: dict[int, Any] = {}
        self._unsupported: dict[tuple[int, str], float] = {}
        self._gpm = Gpm(nvml, clock)
        self._gone = {getattr(nvml, f"NVML_ERROR_{name}") for name in _GONE}
        nvml.nvmlInit()

    def count(self) -> int:
        """Return the number of GPUs."""
        return int(self._nvml.nvmlDeviceGetCount())

    def identity(self, index: int) -> Mapping[str, str]:
        """Return the PCI bus id, the UUID and the board's serial number, as far as NVML reports them."""
        names: dict[str, str] = {}
        with contextlib.suppress(self._nvml.NVMLError):
            handle = self._handle(index)
            names["pci_bus_id"] = _text(self._nvml.nvmlDeviceGetPciInfo(handle).busId)
            names["uuid"] = _text(self._nvml.nvmlDeviceGetUUID(handle))
            # The last, as boards without one are usual.
            names["serial"] = _text(self._nvml.nvmlDeviceGetSerial(handle))
        return names

    def read(self, index: int, *, slow: bool) -> Columns:
        """Return the columns of one GPU without those that could not be read.

        Raises ``GpuGone`` where the driver has lost the GPU; no further call is made then.
        """
        columns: Columns = {}
        for call in (*CORE, *SLOW) if slow else CORE:
            columns.update(self._called(index, call.name, partial(call.read, self._nvml)))
        columns.update(self._called(index, "gpm", partial(self._gpm.read, index)))
        return {name: value for name, value in columns.items() if value is not None}

    def _called(self, index: int, name: str, read: Callable[[Any], Columns]) -> Columns:
        if self._clock() < self._unsupported.get((index, name), 0.0):
            return {}
        try:
            return read(self._handle(index))
        except self._nvml.NVMLError_NotSupported:
            self._unsupported[index, name] = self._clock() + RETRY_UNSUPPORTED_SECONDS
        except self._nvml.NVMLError as error:
            if error.value in self._gone:
                self._handles.pop(index, None)
                raise GpuGone from error
        return {}

    def _handle(self, index: int) -> Any:
        if index not in self._handles:
            self._handles[index] = self._nvml.nvmlDeviceGetHandleByIndex(index)
        return self._handles[index]


def _text(name: str | bytes) -> str:
    return name.decode(errors="replace") if isinstance(name, bytes) else name
