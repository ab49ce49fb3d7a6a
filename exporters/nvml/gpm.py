"""Tensor and DRAM activity through NVML's GPU performance monitoring: means between two samples of a GPU."""

from collections.abc import Callable
from typing import Any

from exporters.nvml.calls import GPM_COLUMNS, Columns

# Least time between the two samples of a mean, as NVML documents.
MIN_SECONDS = 0.1


class Gpm:
    """Keeps the last sample of each GPU. The first reading of a GPU has no mean yet."""

    def __init__(self, nvml: Any, clock: Callable[[], float]) -> None:
        self._nvml = nvml
        self._clock = clock
        self._last: dict[int, tuple[float, Any]] = {}

    def read(self, index: int, gpu: Any) -> Columns:
        """Return the means since the last reading, nothing where there was none.

        Raises ``NVMLError_NotSupported`` for a GPU that has no such counters, or not as a whole (MIG).
        """
        now, before = self._clock(), self._last.get(index)
        if before is None and not self._nvml.nvmlGpmQueryDeviceSupport(gpu).isSupportedDevice:
            raise self._nvml.NVMLError_NotSupported
        if before is not None and now - before[0] < MIN_SECONDS:
            return {}
        self._last[index] = now, self._sample(gpu)
        if before is None:
            return {}
        try:
            return self._means(before[1], self._last[index][1])
        finally:
            self._nvml.nvmlGpmSampleFree(before[1])

    def _sample(self, gpu: Any) -> Any:
        sample = self._nvml.nvmlGpmSampleAlloc()
        try:
            return self._nvml.nvmlGpmSampleGet(gpu, sample)
        except self._nvml.NVMLError:
            self._nvml.nvmlGpmSampleFree(sample)
            raise

    def _means(self, earlier: Any, later: Any) -> Columns:
        nvml = self._nvml
        wanted = nvml.c_nvmlGpmMetricsGet_t()
        wanted.version = nvml.NVML_GPM_METRICS_GET_VERSION
        wanted.numMetrics = len(GPM_COLUMNS)
        wanted.sample1, wanted.sample2 = earlier, later
        # In the order of GPM_COLUMNS, in per cent of the time, and of the peak bandwidth.
        ids = (nvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL, nvml.NVML_GPM_METRIC_DRAM_BW_UTIL)
        for place, metric in enumerate(ids):
            wanted.metrics[place].metricId = metric
        found = nvml.nvmlGpmMetricsGet(wanted).metrics
        return {
            column: found[place].value / 100 if found[place].nvmlReturn == nvml.NVML_SUCCESS else None
            for place, column in enumerate(GPM_COLUMNS)
        }
