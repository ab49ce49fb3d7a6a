"""The minutes in which nodes are compared: what is read of them, and when a minute is due.

The node stage computes the means of a node's minute, the cluster stage compares those of all its nodes.
"""

import math

from slowrank.telemetry import MinuteMeans

FEATURES = (
    "gpu.utilization_ratio", "gpu.memory_utilization_ratio", "gpu.tensor_active_ratio",
    "gpu.dram_active_ratio", "gpu.clock.sm_hz", "gpu.clock.mem_hz", "gpu.power_watts", "gpu.temp_celsius",
    "gpu.temp.mem_celsius", "gpu.pcie.tx_bytes_per_second", "gpu.pcie.rx_bytes_per_second",
    "gpu.nvml_call_seconds", "host.cpu.utilization_ratio", "host.cpu.iowait_ratio", "host.cpu.steal_ratio",
    "host.load1", "host.run_queue", "host.pressure.cpu_some_ratio", "host.pressure.memory_some_ratio",
    "host.pressure.io_some_ratio",
)  # fmt: skip
"""What a healthy region is fitted to."""

GAUGES = (*FEATURES, "host.memory.available_bytes", "host.memory.total_bytes")
"""Whose means over a node's devices are sent."""

COUNTERS = ("nic.port.tx_bytes_total", "nic.port.rx_bytes_total", "nic.port.xmit_wait_ticks_total")
"""Of which the increase per second over all ports is sent."""

OF_GPUS = ("gpu.utilization_ratio", "gpu.tensor_active_ratio", "gpu.power_watts")
"""Whose means are sent for each GPU as well."""

# Chosen: averages over the steps of a job, which last seconds.
WINDOW_SECONDS = 60.0
# Delay after the end of a minute until its means are sent and compared. Chosen: ten ticks of an exporter.
LATE_SECONDS = 10.0

# Larger values are no reading of any feature, in its unit. Chosen: above memory in bytes and rates.
LARGEST = 1e15


def due(start: float) -> float:
    """Return when (event time) the minute that begins at ``start`` is sent and compared."""
    return start + WINDOW_SECONDS + LATE_SECONDS


def means_of(minute: MinuteMeans) -> list[float]:
    """Return the means of ``FEATURES`` in a node's minute; NaN is not read."""
    return [minute.means.get(name, math.nan) for name in FEATURES]
