"""The NVML calls that read one GPU, as tables: the columns that a call fills, and what the GPU must support.

The library is an argument, so that this module can be imported where it is not installed.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from slowrank.telemetry.columns import Value

_MHZ = 1_000_000
# NVML documents KB/s; of 1000 or of 1024 bytes was not verified.
_KILOBYTE = 1000

# Members of NVML's value union by its type number.
_VALUE_FIELDS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")

_GPU = "an NVIDIA GPU"
_HBM = "an NVIDIA GPU with a sensor in its memory"
_MARGIN = "an NVIDIA GPU from Ada or Hopper on"
_ECC = "an NVIDIA GPU with ECC memory"
_AMPERE = "an NVIDIA data centre GPU from Ampere on"
_NVLINK = "an NVIDIA GPU with NVLink"
_RECOVERY = "an NVIDIA driver from R570 on"

Columns = dict[str, Value]


@dataclass(frozen=True, slots=True)
class NvmlCall:
    """One call: the ``columns`` it fills, what the GPU ``needs`` (text), and ``read`` (library, GPU)."""

    columns: tuple[str, ...]
    needs: str
    read: Callable[[Any, Any], Columns]

    @property
    def name(self) -> str:
        """Return the identity of the call."""
        return self.columns[0]


def _utilization(nvml: Any, gpu: Any) -> Columns:
    used = nvml.nvmlDeviceGetUtilizationRates(gpu)
    return {"gpu.utilization_ratio": used.gpu / 100, "gpu.memory_utilization_ratio": used.memory / 100}


def _memory(nvml: Any, gpu: Any) -> Columns:
    memory = nvml.nvmlDeviceGetMemoryInfo(gpu)
    return {"gpu.memory.used_bytes": memory.used, "gpu.memory.total_bytes": memory.total}


_REMAP_COLUMNS = (
    "gpu.row_remap.correctable_total",
    "gpu.row_remap.uncorrectable_total",
    "gpu.row_remap.pending",
    "gpu.row_remap.failed",
)


def _row_remap(nvml: Any, gpu: Any) -> Columns:
    return dict(zip(_REMAP_COLUMNS, nvml.nvmlDeviceGetRemappedRows(gpu), strict=True))


def _nvlink_crc(values: list[Value]) -> Value:
    counts = [int(v) for v in values if v is not None]
    return sum(counts) if counts else None


def _fields(nvml: Any, gpu: Any, ids: list[int]) -> list[Value]:
    """Read several fields in one call; None for each that NVML could not read."""
    return [
        getattr(field.value, _VALUE_FIELDS[field.valueType])
        if field.nvmlReturn == nvml.NVML_SUCCESS and field.valueType < len(_VALUE_FIELDS)
        else None
        for field in nvml.nvmlDeviceGetFieldValues(gpu, ids)
    ]


def _core_fields(nvml: Any, gpu: Any) -> Columns:
    (memory_temp,) = _fields(nvml, gpu, [nvml.NVML_FI_DEV_MEMORY_TEMP])
    # A board without a memory sensor returns 0.
    return {"gpu.temp.mem_celsius": memory_temp or None}


_NVLINK_COLUMNS = (
    "gpu.nvlink.crc_errors_total",
    "gpu.nvlink.replay_errors_total",
    "gpu.nvlink.recovery_errors_total",
)


def _nvlink(nvml: Any, gpu: Any) -> Columns:
    crc_flit, crc_data, replay, recovery = _fields(
        nvml,
        gpu,
        [
            nvml.NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL,
            nvml.NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL,
            nvml.NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL,
            nvml.NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL,
        ],
    )
    return dict(zip(_NVLINK_COLUMNS, (_nvlink_crc([crc_flit, crc_data]), replay, recovery), strict=True))


def _recovery_action(nvml: Any, gpu: Any) -> Value:
    (action,) = _fields(nvml, gpu, [nvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])
    return action


def _one(column: str, read: Callable[[Any, Any], Value], needs: str = _GPU) -> NvmlCall:
    return NvmlCall((column,), needs, lambda nvml, gpu: {column: read(nvml, gpu)})


def _throttled(policy: str) -> Callable[[Any, Any], Value]:
    return lambda n, g: (
        n.nvmlDeviceGetViolationStatus(g, getattr(n, f"NVML_PERF_POLICY_{policy}")).violationTime
    )


def _ecc(error: str) -> Callable[[Any, Any], Value]:
    return lambda n, g: n.nvmlDeviceGetTotalEccErrors(
        g, getattr(n, f"NVML_MEMORY_ERROR_TYPE_{error}"), n.NVML_VOLATILE_ECC
    )


def _pcie(direction: str) -> Callable[[Any, Any], Value]:
    return lambda n, g: (
        n.nvmlDeviceGetPcieThroughput(g, getattr(n, f"NVML_PCIE_UTIL_{direction}_BYTES")) * _KILOBYTE
    )


# Read in every tick. NVML's units are MHz, mW, mJ and per cent.
CORE: tuple[NvmlCall, ...] = (
    NvmlCall(("gpu.utilization_ratio", "gpu.memory_utilization_ratio"), _GPU, _utilization),
    NvmlCall(("gpu.memory.used_bytes", "gpu.memory.total_bytes"), _GPU, _memory),
    NvmlCall(("gpu.temp.mem_celsius",), _HBM, _core_fields),
    _one("gpu.clock.sm_hz", lambda n, g: n.nvmlDeviceGetClockInfo(g, n.NVML_CLOCK_SM) * _MHZ),
    _one("gpu.clock.mem_hz", lambda n, g: n.nvmlDeviceGetClockInfo(g, n.NVML_CLOCK_MEM) * _MHZ),
    _one("gpu.power_watts", lambda n, g: n.nvmlDeviceGetPowerUsage(g) / 1000),
    _one("gpu.temp_celsius", lambda n, g: n.nvmlDeviceGetTemperature(g, n.NVML_TEMPERATURE_GPU)),
    _one("gpu.temp.margin_celsius", lambda n, g: n.nvmlDeviceGetMarginTemperature(g), _MARGIN),
    _one("gpu.throttle_reasons", lambda n, g: n.nvmlDeviceGetCurrentClocksEventReasons(g)),
    _one("gpu.energy_millijoules_total", lambda n, g: n.nvmlDeviceGetTotalEnergyConsumption(g)),
)

# Read every SLOW_EVERY ticks: counters, which lose nothing in between, values that seldom change, and PCIe
# throughput, each read of which takes the driver 20 ms.
SLOW: tuple[NvmlCall, ...] = (
    NvmlCall(_REMAP_COLUMNS, _AMPERE, _row_remap),
    NvmlCall(_NVLINK_COLUMNS, _NVLINK, _nvlink),
    _one("gpu.recovery_action", _recovery_action, _RECOVERY),
    _one("gpu.clock.sm_max_hz", lambda n, g: n.nvmlDeviceGetMaxClockInfo(g, n.NVML_CLOCK_SM) * _MHZ),
    _one("gpu.power_limit_watts", lambda n, g: n.nvmlDeviceGetEnforcedPowerLimit(g) / 1000),
    _one("gpu.pcie.link_gen", lambda n, g: n.nvmlDeviceGetCurrPcieLinkGeneration(g)),
    _one("gpu.pcie.link_width", lambda n, g: n.nvmlDeviceGetCurrPcieLinkWidth(g)),
    _one("gpu.pcie.link_width_max", lambda n, g: n.nvmlDeviceGetMaxPcieLinkWidth(g)),
    _one("gpu.pcie.tx_bytes_per_second", _pcie("TX")),
    _one("gpu.pcie.rx_bytes_per_second", _pcie("RX")),
    _one("gpu.pcie.replay_total", lambda n, g: n.nvmlDeviceGetPcieReplayCounter(g)),
    _one("gpu.throttle.power_nanoseconds_total", _throttled("POWER")),
    _one("gpu.throttle.thermal_nanoseconds_total", _throttled("THERMAL")),
    _one("gpu.ecc.corrected_total", _ecc("CORRECTED"), _ECC),
    _one("gpu.ecc.uncorrected_total", _ecc("UNCORRECTED"), _ECC),
)

# Filled by ``gpm``, which keeps a sample from one reading to the next.
GPM_COLUMNS = ("gpu.tensor_active_ratio", "gpu.dram_active_ratio")
# Filled by ``collector``, which waits for the readings.
CALL_SECONDS = "gpu.nvml_call_seconds"

# Every column that is read through NVML, with what the GPU must support for it.
COLUMNS: Mapping[str, str] = {
    **{column: call.needs for call in (*CORE, *SLOW) for column in call.columns},
    **dict.fromkeys(GPM_COLUMNS, "an NVIDIA GPU from Hopper on, not divided by MIG"),
    CALL_SECONDS: _GPU,
}
