from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from exporters.nvml.calls import COLUMNS
from exporters.nvml.device import RETRY_UNSUPPORTED_SECONDS, GpuGone, NvmlGpus
from slowrank.telemetry.schema import CURRENT_SAMPLE_SCHEMA, SAMPLE_SCHEMAS


def field(value, *, kind=pynvml.NVML_VALUE_TYPE_UNSIGNED_INT, status=pynvml.NVML_SUCCESS):
    union = SimpleNamespace(dVal=-1.0, uiVal=-1, ulVal=-1, ullVal=-1, sllVal=-1, siVal=-1, usVal=-1)
    names = {
        pynvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
        pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
    }
    setattr(union, names[kind], value)
    return SimpleNamespace(valueType=kind, nvmlReturn=status, value=union)


class Library:
    """The part of NVML that is called, for a board that is not here; constants are the real ones."""

    def __init__(self) -> None:
        self.refused: dict[str, int] = {}
        # GPM samples that were not given back; whether the board has GPM, and refuses one of its metrics.
        self.samples, self.gpm, self.dram_refused = 0, True, False
        self.calls: list[str] = []
        self.fields = {
            pynvml.NVML_FI_DEV_MEMORY_TEMP: field(85),
            pynvml.NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL: field(3),
            pynvml.NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL: field(4),
            pynvml.NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL: field(
                2**40, kind=pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG
            ),
            pynvml.NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL: field(
                0, status=pynvml.NVML_ERROR_NOT_SUPPORTED
            ),
            pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION: field(0),
        }
        self.answers: dict[str, Any] = {
            "nvmlInit": lambda: None,
            "nvmlDeviceGetCount": lambda: 1,
            "nvmlDeviceGetHandleByIndex": lambda index: f"handle{index}",
            "nvmlDeviceGetUtilizationRates": lambda gpu: SimpleNamespace(gpu=97, memory=40),
            "nvmlDeviceGetMemoryInfo": lambda gpu: SimpleNamespace(used=60 << 30, total=80 << 30),
            "nvmlDeviceGetFieldValues": lambda gpu, ids: [self.fields[i] for i in ids],
            "nvmlDeviceGetClockInfo": lambda gpu, kind: {1: 1755, 2: 2619}[kind],
            "nvmlDeviceGetMaxClockInfo": lambda gpu, kind: 1980,
            "nvmlDeviceGetPowerUsage": lambda gpu: 412_500,
            "nvmlDeviceGetTemperature": lambda gpu, sensor: 61,
            "nvmlDeviceGetMarginTemperature": lambda gpu: 26,
            "nvmlDeviceGetCurrentClocksEventReasons": lambda gpu: 0,
            "nvmlDeviceGetTotalEnergyConsumption": lambda gpu: 2**53,
            "nvmlDeviceGetRemappedRows": lambda gpu: (2, 0, 1, 0),
            "nvmlDeviceGetEnforcedPowerLimit": lambda gpu: 700_000,
            "nvmlDeviceGetCurrPcieLinkGeneration": lambda gpu: 5,
            "nvmlDeviceGetCurrPcieLinkWidth": lambda gpu: 16,
            "nvmlDeviceGetMaxPcieLinkWidth": lambda gpu: 16,
            "nvmlDeviceGetPcieThroughput": lambda gpu, direction: 2000 + direction,
            "nvmlDeviceGetPcieReplayCounter": lambda gpu: 0,
            "nvmlDeviceGetViolationStatus": lambda gpu, policy: SimpleNamespace(
                violationTime=10**12 + policy
            ),
            "nvmlDeviceGetTotalEccErrors": lambda gpu, kind, counter: 5 + kind,
            "nvmlGpmQueryDeviceSupport": lambda gpu: SimpleNamespace(isSupportedDevice=int(self.gpm)),
            "nvmlGpmSampleAlloc": self._allocate,
            "nvmlGpmSampleGet": lambda gpu, sample: sample,
            "nvmlGpmSampleFree": self._free,
            "nvmlGpmMetricsGet": self._means,
            "nvmlDeviceGetPciInfo": lambda gpu: SimpleNamespace(busId=b"00000000:3B:00.0"),
            "nvmlDeviceGetUUID": lambda gpu: "GPU-8f1c",
        }

    def _allocate(self):
        self.samples += 1
        return pynvml.c_nvmlGpmSample_t()

    def _free(self, sample):
        self.samples -= 1

    def _means(self, wanted):
        assert wanted.version == pynvml.NVML_GPM_METRICS_GET_VERSION
        per_cent = {pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL: 62.0, pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL: 48.0}
        for metric in wanted.metrics[: wanted.numMetrics]:
            metric.value = per_cent[metric.metricId]
            dram = metric.metricId == pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL
            metric.nvmlReturn = pynvml.NVML_ERROR_UNKNOWN if dram and self.dram_refused else 0
        return wanted

    def __getattr__(self, name):
        if name not in self.answers:
            return getattr(pynvml, name)

        def call(*arguments):
            self.calls.append(name)
            if name in self.refused:
                raise pynvml.NVMLError(self.refused[name])
            return self.answers[name](*arguments)

        return call


@pytest.fixture
def library():
    return Library()


def test_a_healthy_gpu_fills_its_columns_in_si_units(library):
    """Hertz, watts, bytes, ratios; counters stay integers; zero is zero."""
    read = NvmlGpus(library, lambda: 0.0).read(0, slow=True)

    assert read["gpu.utilization_ratio"] == 0.97
    assert read["gpu.clock.sm_hz"] == 1_755_000_000
    assert read["gpu.clock.sm_max_hz"] == 1_980_000_000
    assert read["gpu.power_watts"] == 412.5
    assert read["gpu.temp.mem_celsius"] == 85
    assert read["gpu.pcie.tx_bytes_per_second"] == 2_000_000
    assert read["gpu.energy_millijoules_total"] == 2**53
    assert read["gpu.throttle_reasons"] == 0
    assert read["gpu.row_remap.pending"] == 1
    assert read["gpu.nvlink.crc_errors_total"] == 7
    assert read["gpu.nvlink.replay_errors_total"] == 2**40
    assert read["gpu.ecc.uncorrected_total"] == 6


def test_a_board_that_has_everything_fills_every_column_declared(library):
    """What is declared is read; what the parent fills itself, and this board refuses, is known by name."""
    now = [0.0]
    gpus = NvmlGpus(library, lambda: now[0])
    gpus.read(0, slow=True)
    now[0] += 1.0
    read = set(gpus.read(0, slow=True))

    assert COLUMNS.keys() - read == {"gpu.nvml_call_seconds", "gpu.nvlink.recovery_errors_total"}
    assert not read - COLUMNS.keys()
    # The count of XIDs comes from the kernel log.
    schema = set(SAMPLE_SCHEMAS[CURRENT_SAMPLE_SCHEMA].gpu.names)
    assert schema - COLUMNS.keys() == {"gpu.xid_events_total"}


def test_tensor_and_dram_activity_are_means_between_two_readings(library):
    """The first reading has none; each older sample is given back to the library."""
    now = [0.0]
    gpus = NvmlGpus(library, lambda: now[0])
    first = gpus.read(0, slow=False)
    now[0] += 0.05
    too_soon = gpus.read(0, slow=False)
    now[0] += 1.0
    later = gpus.read(0, slow=False)

    assert "gpu.tensor_active_ratio" not in first | too_soon
    assert later["gpu.tensor_active_ratio"] == pytest.approx(0.62)
    assert later["gpu.dram_active_ratio"] == pytest.approx(0.48)
    assert library.samples == 1


def test_one_refused_activity_leaves_the_other(library):
    """NVML answers for each metric whether it was read."""
    now = [0.0]
    library.dram_refused = True
    gpus = NvmlGpus(library, lambda: now[0])
    gpus.read(0, slow=False)
    now[0] += 1.0
    later = gpus.read(0, slow=False)

    assert later["gpu.tensor_active_ratio"] == pytest.approx(0.62)
    assert "gpu.dram_active_ratio" not in later


def test_a_board_without_activity_counters_has_none_and_keeps_the_rest(library):
    """Before Hopper, or under MIG, both are absent and are not asked for again within the hour."""
    now = [0.0]
    library.gpm = False
    gpus = NvmlGpus(library, lambda: now[0])
    for _ in range(3):
        now[0] += 1.0
        read = gpus.read(0, slow=False)

    assert not {"gpu.tensor_active_ratio", "gpu.dram_active_ratio"} & read.keys()
    assert read["gpu.temp_celsius"] == 61
    assert library.calls.count("nvmlGpmQueryDeviceSupport") == 1


def test_an_unsupported_call_is_absent_and_not_repeated_for_an_hour(library):
    """NotSupported is remembered per call, and tried again later."""
    now = [0.0]
    gpus = NvmlGpus(library, lambda: now[0])
    library.refused["nvmlDeviceGetMarginTemperature"] = pynvml.NVML_ERROR_NOT_SUPPORTED

    assert "gpu.temp.margin_celsius" not in gpus.read(0, slow=False)
    gpus.read(0, slow=False)
    assert library.calls.count("nvmlDeviceGetMarginTemperature") == 1

    now[0] = RETRY_UNSUPPORTED_SECONDS + 1
    library.refused.clear()
    assert gpus.read(0, slow=False)["gpu.temp.margin_celsius"] == 26


def test_another_error_costs_one_value_once(library):
    """A call that fails otherwise leaves its own column out and is asked again next time."""
    gpus = NvmlGpus(library, lambda: 0.0)
    library.refused["nvmlDeviceGetPowerUsage"] = pynvml.NVML_ERROR_UNKNOWN

    assert "gpu.power_watts" not in gpus.read(0, slow=False)
    assert gpus.read(0, slow=False)["gpu.temp_celsius"] == 61
    library.refused.clear()
    assert gpus.read(0, slow=False)["gpu.power_watts"] == 412.5


@pytest.mark.parametrize("error", ["GPU_IS_LOST", "RESET_REQUIRED", "UNINITIALIZED"])
def test_a_lost_gpu_is_gone_until_a_new_handle_is_good(library, error):
    """After the first such error no further call is made; after a reset the GPU is opened anew and read
    again."""
    gpus = NvmlGpus(library, lambda: 0.0)
    gpus.read(0, slow=False)
    library.refused["nvmlDeviceGetUtilizationRates"] = getattr(pynvml, f"NVML_ERROR_{error}")
    library.calls.clear()

    with pytest.raises(GpuGone):
        gpus.read(0, slow=True)

    assert library.calls == ["nvmlDeviceGetUtilizationRates"]
    library.refused.clear()
    assert gpus.read(0, slow=False)["gpu.temp_celsius"] == 61
    assert library.calls.count("nvmlDeviceGetHandleByIndex") == 1


def test_a_gpu_without_a_handle_has_no_identity(library):
    """When not even the handle can be had, nothing names the GPU."""
    library.refused["nvmlDeviceGetHandleByIndex"] = pynvml.NVML_ERROR_GPU_IS_LOST

    assert NvmlGpus(library, lambda: 0.0).identity(0) == {}


def test_identity_is_text(library):
    """PCI bus id and UUID come as text, whether the library gives bytes or not."""
    assert NvmlGpus(library, lambda: 0.0).identity(0) == {
        "pci_bus_id": "00000000:3B:00.0",
        "uuid": "GPU-8f1c",
    }


@pytest.mark.skipif(not Path("/dev/nvidiactl").exists(), reason="this machine has no NVIDIA driver")
def test_the_gpus_of_this_machine_are_read():
    """With a real driver every GPU has a plausible temperature, memory size and power."""
    gpus = NvmlGpus()
    for index in range(gpus.count()):
        read = gpus.read(index, slow=True)
        assert 0 < (read["gpu.temp_celsius"] or 0) < 120
        assert (read["gpu.memory.total_bytes"] or 0) > 1 << 30
        assert (read["gpu.power_watts"] or 0) > 1
        assert gpus.identity(index)["uuid"].startswith("GPU-")
