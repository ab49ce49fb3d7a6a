"""What is read of one GPU through NVML, call by call; runs inside the killable child only."""

import contextlib
import time
from collections.abc import Callable, Mapping
from typing import Any

import pynvml

from slowrank.telemetry.columns import Value

RETRY_UNSUPPORTED_SECONDS = 3600.0
_MHZ = 1_000_000
# NVML documents KB/s; of 1000 or of 1024 bytes was not verified.
_KILOBYTE = 1000
_VALUE_FIELDS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""Members of NVML's value union by its type number."""

Columns = dict[str, Value]
Call = Callable[[Any, Any], Columns]


def _utilization(nvml: Any, gpu: Any) -> Columns:
    used = nvml.nvmlDeviceGetUtilizationRates(gpu)
    return {"gpu.utilization_ratio": used.gpu / 100, "gpu.memory_utilization_ratio": used.memory / 100}


def _memory(nvml: Any, gpu: Any) -> Columns:
    memory = nvml.nvmlDeviceGetMemoryInfo(gpu)
    return {"gpu.memory.used_bytes": memory.used, "gpu.memory.total_bytes": memory.total}


def _row_remap(nvml: Any, gpu: Any) -> Columns:
    correctable, uncorrectable, pending, failed = nvml.nvmlDeviceGetRemappedRows(gpu)
    return {
        "gpu.row_remap.correctable_total": correctable,
        "gpu.row_remap.uncorrectable_total": uncorrectable,
        "gpu.row_remap.pending": pending,
        "gpu.row_remap.failed": failed,
    }


def _nvlink_crc(values: list[Value]) -> Value:
    known = [int(v) for v in values if v is not None]
    return sum(known) if known else None


def _fields(nvml: Any, gpu: Any, ids: list[int]) -> list[Value]:
    """Read several fields in one call; NVML answers for each whether it was read."""
    return [
        getattr(field.value, _VALUE_FIELDS[field.valueType])
        if field.nvmlReturn == nvml.NVML_SUCCESS and field.valueType < len(_VALUE_FIELDS)
        else None
        for field in nvml.nvmlDeviceGetFieldValues(gpu, ids)
    ]


def _core_fields(nvml: Any, gpu: Any) -> Columns:
    (memory_temp,) = _fields(nvml, gpu, [nvml.NVML_FI_DEV_MEMORY_TEMP])
    # A board without a sensor in its memory answers 0.
    return {"gpu.temp.mem_celsius": memory_temp or None}


def _slow_fields(nvml: Any, gpu: Any) -> Columns:
    crc_flit, crc_data, replay, recovery, action = _fields(
        nvml,
        gpu,
        [
            nvml.NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL,
            nvml.NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL,
            nvml.NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL,
            nvml.NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL,
            nvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION,
        ],
    )
    return {
        "gpu.nvlink.crc_errors_total": _nvlink_crc([crc_flit, crc_data]),
        "gpu.nvlink.replay_errors_total": replay,
        "gpu.nvlink.recovery_errors_total": recovery,
        "gpu.recovery_action": action,
    }


def _one(column: str, read: Callable[[Any, Any], Value]) -> tuple[str, Call]:
    return column, lambda nvml, gpu: {column: read(nvml, gpu)}


# Read in every tick. NVML counts in MHz, mW, mJ and per cent.
CORE: tuple[tuple[str, Call], ...] = (
    ("utilization", _utilization),
    ("memory", _memory),
    ("fields", _core_fields),
    _one("gpu.clock.sm_hz", lambda n, g: n.nvmlDeviceGetClockInfo(g, n.NVML_CLOCK_SM) * _MHZ),
    _one("gpu.clock.mem_hz", lambda n, g: n.nvmlDeviceGetClockInfo(g, n.NVML_CLOCK_MEM) * _MHZ),
    _one("gpu.power_watts", lambda n, g: n.nvmlDeviceGetPowerUsage(g) / 1000),
    _one("gpu.temp_celsius", lambda n, g: n.nvmlDeviceGetTemperature(g, n.NVML_TEMPERATURE_GPU)),
    _one("gpu.temp.margin_celsius", lambda n, g: n.nvmlDeviceGetMarginTemperature(g)),
    _one("gpu.throttle_reasons", lambda n, g: n.nvmlDeviceGetCurrentClocksEventReasons(g)),
    _one("gpu.energy_millijoules_total", lambda n, g: n.nvmlDeviceGetTotalEnergyConsumption(g)),
)

# Read in one of nvml.SLOW_EVERY ticks: counters, which lose nothing by it, what seldom changes, and PCIe
# throughput, each reading of which takes the driver 20 ms.
SLOW: tuple[tuple[str, Call], ...] = (
    ("row_remap", _row_remap),
    ("slow_fields", _slow_fields),
    _one("gpu.clock.sm_max_hz", lambda n, g: n.nvmlDeviceGetMaxClockInfo(g, n.NVML_CLOCK_SM) * _MHZ),
    _one("gpu.power_limit_watts", lambda n, g: n.nvmlDeviceGetEnforcedPowerLimit(g) / 1000),
    _one("gpu.pcie.link_gen", lambda n, g: n.nvmlDeviceGetCurrPcieLinkGeneration(g)),
    _one("gpu.pcie.link_width", lambda n, g: n.nvmlDeviceGetCurrPcieLinkWidth(g)),
    _one("gpu.pcie.link_width_max", lambda n, g: n.nvmlDeviceGetMaxPcieLinkWidth(g)),
    _one(
        "gpu.pcie.tx_bytes_per_second",
        lambda n, g: n.nvmlDeviceGetPcieThroughput(g, n.NVML_PCIE_UTIL_TX_BYTES) * _KILOBYTE,
    ),
    _one(
        "gpu.pcie.rx_bytes_per_second",
        lambda n, g: n.nvmlDeviceGetPcieThroughput(g, n.NVML_PCIE_UTIL_RX_BYTES) * _KILOBYTE,
    ),
    _one("gpu.pcie.replay_total", lambda n, g: n.nvmlDeviceGetPcieReplayCounter(g)),
    _one(
        "gpu.throttle.power_nanoseconds_total",
        lambda n, g: n.nvmlDeviceGetViolationStatus(g, n.NVML_PERF_POLICY_POWER).violationTime,
    ),
    _one(
        "gpu.throttle.thermal_nanoseconds_total",
        lambda n, g: n.nvmlDeviceGetViolationStatus(g, n.NVML_PERF_POLICY_THERMAL).violationTime,
    ),
    _one(
        "gpu.ecc.corrected_total",
        lambda n, g: n.nvmlDeviceGetTotalEccErrors(
            g, n.NVML_MEMORY_ERROR_TYPE_CORRECTED, n.NVML_VOLATILE_ECC
        ),
    ),
    _one(
        "gpu.ecc.uncorrected_total",
        lambda n, g: n.nvmlDeviceGetTotalEccErrors(
            g, n.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, n.NVML_VOLATILE_ECC
        ),
    ),
)


class NvmlGpus:
    """The GPUs of this machine through NVML; a call a GPU does not support is left out for an hour.

    Handles are opened when first read, so that a GPU that hangs is touched only when asked for. Raises
    ``pynvml.NVMLError`` when there is no driver.
    """

    def __init__(self, nvml: Any = pynvml, clock: Callable[[], float] = time.monotonic) -> None:
        self._nvml = nvml
        self._clock = clock
        self._handles: dict[int, Any] = {}
        self._unsupported: dict[tuple[int, str], float] = {}
        nvml.nvmlInit()

    def count(self) -> int:
        """Return the number of GPUs."""
        return int(self._nvml.nvmlDeviceGetCount())

    def identity(self, index: int) -> Mapping[str, str]:
        """Return what names this GPU: its PCI bus id and UUID, as far as NVML tells."""
        names: dict[str, str] = {}
        with contextlib.suppress(self._nvml.NVMLError):
            handle = self._handle(index)
            names["pci_bus_id"] = _text(self._nvml.nvmlDeviceGetPciInfo(handle).busId)
            names["uuid"] = _text(self._nvml.nvmlDeviceGetUUID(handle))
        return names

    def read(self, index: int, *, slow: bool) -> Columns:
        """Return the columns of one GPU; what could not be read is not in them."""
        columns: Columns = {}
        for name, call in (*CORE, *SLOW) if slow else CORE:
            if self._clock() < self._unsupported.get((index, name), 0.0):
                continue
            try:
                columns.update(call(self._nvml, self._handle(index)))
            except self._nvml.NVMLError_NotSupported:
                self._unsupported[index, name] = self._clock() + RETRY_UNSUPPORTED_SECONDS
            except self._nvml.NVMLError:
                continue
        return {name: value for name, value in columns.items() if value is not None}

    def _handle(self, index: int) -> Any:
        if index not in self._handles:
            self._handles[index] = self._nvml.nvmlDeviceGetHandleByIndex(index)
        return self._handles[index]


def _text(name: str | bytes) -> str:
    return name.decode(errors="replace") if isinstance(name, bytes) else name
