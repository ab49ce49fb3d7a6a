"""The mapping of metric names of dcgm-exporter, node_exporter and OpenTelemetry to sample columns, as data.

``series`` applies the table to one series, ``node_values`` to all series of a node. Names that are not listed
are not used; readers count them. A new name is one row here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from slowrank.telemetry.schema import Owner

How = Literal["value", "sum", "bits", "is", "rate", "share", "busy", "count", "xid"]
"""How the values of the series of one device make its column:

``value`` the value, ``sum`` the sum over the series (links of a GPU), ``bits`` the union of bitmasks, each
series with a value above 0 adding ``factor``; ``is`` 1 where the value is ``factor``, else 0; ``rate`` the
increase of the sum a second; ``share`` the same divided by the number of CPUs, ``busy`` one less that;
``count`` the number of series. ``xid`` is no column: a change of the value is an event.
"""


@dataclass(frozen=True, slots=True)
class Rule:
    """One column that a metric fills: the column's unit is the metric's times ``factor``.

    ``only`` names the values that labels must have for a series to count; "" stands for a missing label.
    """

    owner: Owner
    column: str
    factor: float = 1.0
    how: How = "value"
    only: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


MHZ, PERCENT, MEBIBYTE, BITS = 1e6, 0.01, 2.0**20, 8.0


def _gpu(column: str, factor: float = 1.0, how: How = "value", **only: str) -> tuple[Rule, ...]:
    return (Rule("gpu", f"gpu.{column}", factor, how, {name: (value,) for name, value in only.items()}),)


def _nic(column: str, factor: float = 1.0, how: How = "value", **only: str) -> tuple[Rule, ...]:
    return (Rule("nic", f"nic.port.{column}", factor, how, {name: (value,) for name, value in only.items()}),)


def _host(column: str, factor: float = 1.0, how: How = "value", **only: str) -> tuple[Rule, ...]:
    return (Rule("host", f"host.{column}", factor, how, {name: (value,) for name, value in only.items()}),)


# Names and units: etc/default-counters.csv of dcgm-exporter 4; fields that are not in that file: the DCGM
# field identifiers (dcgm_fields.h), whose values are NVML's own.
_DCGM_DEVICE = {
    "SM_CLOCK": _gpu("clock.sm_hz", MHZ),
    "MEM_CLOCK": _gpu("clock.mem_hz", MHZ),
    "MAX_SM_CLOCK": _gpu("clock.sm_max_hz", MHZ),
    "MEMORY_TEMP": _gpu("temp.mem_celsius"),
    "GPU_TEMP": _gpu("temp_celsius"),
    "POWER_USAGE": _gpu("power_watts"),
    "ENFORCED_POWER_LIMIT": _gpu("power_limit_watts"),
    "TOTAL_ENERGY_CONSUMPTION": _gpu("energy_millijoules_total"),
    "PCIE_REPLAY_COUNTER": _gpu("pcie.replay_total"),
    "PCIE_LINK_GEN": _gpu("pcie.link_gen"),
    "PCIE_LINK_WIDTH": _gpu("pcie.link_width"),
    "PCIE_MAX_LINK_WIDTH": _gpu("pcie.link_width_max"),
    "GPU_UTIL": _gpu("utilization_ratio", PERCENT),
    "MEM_COPY_UTIL": _gpu("memory_utilization_ratio", PERCENT),
    "FB_USED": _gpu("memory.used_bytes", MEBIBYTE),
    "FB_TOTAL": _gpu("memory.total_bytes", MEBIBYTE),
    "XID_ERRORS": _gpu("xid", how="xid"),
    "CLOCKS_EVENT_REASONS": _gpu("throttle_reasons"),
    "CLOCK_THROTTLE_REASONS": _gpu("throttle_reasons"),
    "POWER_VIOLATION": _gpu("throttle.power_nanoseconds_total"),
    "THERMAL_VIOLATION": _gpu("throttle.thermal_nanoseconds_total"),
    "ECC_SBE_VOL_TOTAL": _gpu("ecc.corrected_total"),
    "ECC_DBE_VOL_TOTAL": _gpu("ecc.uncorrected_total"),
    "CORRECTABLE_REMAPPED_ROWS": _gpu("row_remap.correctable_total"),
    "UNCORRECTABLE_REMAPPED_ROWS": _gpu("row_remap.uncorrectable_total"),
    "ROW_REMAP_PENDING": _gpu("row_remap.pending"),
    "ROW_REMAP_FAILURE": _gpu("row_remap.failed"),
    # Of the GPU, or one series for each of its links.
    "NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL": _gpu("nvlink.crc_errors_total", how="sum"),
    "NVLINK_CRC_DATA_ERROR_COUNT_TOTAL": _gpu("nvlink.crc_errors_total", how="sum"),
    "NVLINK_REPLAY_ERROR_COUNT_TOTAL": _gpu("nvlink.replay_errors_total", how="sum"),
    "NVLINK_RECOVERY_ERROR_COUNT_TOTAL": _gpu("nvlink.recovery_errors_total", how="sum"),
}
_DCGM_PROFILING = {
    "PIPE_TENSOR_ACTIVE": _gpu("tensor_active_ratio"),
    "DRAM_ACTIVE": _gpu("dram_active_ratio"),
    "PCIE_TX_BYTES": _gpu("pcie.tx_bytes_per_second"),
    "PCIE_RX_BYTES": _gpu("pcie.rx_bytes_per_second"),
}
# Names of dcgm-exporter's clock_events_collector.go; bits of NVML's reasons.
_CLOCK_EVENTS = {
    "gpu_idle": 1,
    "clocks_setting": 2,
    "power_cap": 4,
    "hw_slowdown": 8,
    "sync_boost": 16,
    "sw_thermal": 32,
    "hw_thermal": 64,
    "hw_power_brake": 128,
    "display_clocks": 256,
}
DCGM: dict[str, tuple[Rule, ...]] = {
    **{f"DCGM_FI_DEV_{name}": rules for name, rules in _DCGM_DEVICE.items()},
    **{f"DCGM_FI_PROF_{name}": rules for name, rules in _DCGM_PROFILING.items()},
    "DCGM_EXP_CLOCK_EVENTS_COUNT": tuple(
        rule
        for name, bit in _CLOCK_EVENTS.items()
        for rule in _gpu("throttle_reasons", bit, "bits", clock_event=name)
    ),
}

# Names and units: collector/fixtures/e2e-output.txt and infiniband_linux.go of node_exporter; the hw_counters
# (from local_ack_timeout on) are metrics of its newer versions only.
_INFINIBAND = {
    "port_data_received_bytes_total": "rx_bytes_total",
    "port_data_transmitted_bytes_total": "tx_bytes_total",
    "port_packets_received_total": "rx_packets_total",
    "port_packets_transmitted_total": "tx_packets_total",
    "port_errors_received_total": "rx_errors_total",
    "port_discards_received_total": "rx_dropped_total",
    "port_discards_transmitted_total": "xmit_discards_total",
    "port_transmit_wait_total": "xmit_wait_ticks_total",
    "link_downed_total": "link_downed_total",
    "link_error_recovery_total": "link_error_recovery_total",
    "symbol_error_total": "symbol_errors_total",
    "local_link_integrity_errors_total": "local_link_integrity_errors_total",
    "excessive_buffer_overrun_errors_total": "excessive_buffer_overrun_errors_total",
    "local_ack_timeout_errors_total": "local_ack_timeout_total",
    "out_of_sequence_packets_received_total": "out_of_sequence_total",
    "rnr_nak_retry_packets_received_total": "rnr_nak_retry_errors_total",
    "roce_slow_restart_total": "roce_slow_restart_total",
    "rp_cnp_packets_handled_total": "cnp_handled_total",
}
_NETWORK = {
    "receive_bytes_total": "rx_bytes_total",
    "transmit_bytes_total": "tx_bytes_total",
    "receive_packets_total": "rx_packets_total",
    "transmit_packets_total": "tx_packets_total",
    "receive_errs_total": "rx_errors_total",
    "transmit_errs_total": "tx_errors_total",
    "receive_drop_total": "rx_dropped_total",
    "transmit_drop_total": "tx_dropped_total",
    "carrier_changes_total": "carrier_changes_total",
    "carrier_down_changes_total": "link_downed_total",
    "up": "up",
}
_NOT_BUSY = ("idle", "iowait")
NODE_EXPORTER: dict[str, tuple[Rule, ...]] = {
    **{f"node_infiniband_{name}": _nic(column) for name, column in _INFINIBAND.items()},
    "node_infiniband_rate_bytes_per_second": _nic("speed_bits_per_second", BITS),
    # 4: ACTIVE.
    "node_infiniband_state_id": _nic("up", 4, "is"),
    **{f"node_network_{name}": _nic(column) for name, column in _NETWORK.items()},
    "node_network_speed_bytes": _nic("speed_bits_per_second", BITS),
    "node_load1": _host("load1"),
    "node_procs_running": _host("run_queue"),
    "node_memory_MemAvailable_bytes": _host("memory.available_bytes"),
    "node_memory_MemTotal_bytes": _host("memory.total_bytes"),
    "node_vmstat_oom_kill": _host("oom_kills_total"),
    "node_vmstat_pgmajfault": _host("major_page_faults_total"),
    "node_context_switches_total": _host("context_switches_total"),
    "node_netstat_Tcp_OutSegs": _host("tcp.sent_segments_total"),
    "node_netstat_Tcp_InSegs": _host("tcp.received_segments_total"),
    "node_netstat_Tcp_RetransSegs": _host("tcp.retransmitted_segments_total"),
    "node_netstat_TcpExt_TCPOFOQueue": _host("tcp.out_of_order_segments_total"),
    **{
        f"node_pressure_{name}_waiting_seconds_total": _host(f"pressure.{name}_some_ratio", how="rate")
        for name in ("cpu", "memory", "io")
    },
    "node_cpu_seconds_total": (
        Rule("host", "host.cpu.utilization_ratio", how="busy", only={"mode": _NOT_BUSY}),
        *_host("cpu.iowait_ratio", how="share", mode="iowait"),
        *_host("cpu.steal_ratio", how="share", mode="steal"),
        *_host("cpu_count", how="count", mode="idle"),
    ),
}

# Semantic conventions for hardware 1.37 (status: development).
OTEL: dict[str, tuple[Rule, ...]] = {
    "hw.gpu.utilization": (Rule("gpu", "gpu.utilization_ratio", only={"hw_gpu_task": ("", "general")}),),
    "hw.gpu.memory.usage": _gpu("memory.used_bytes"),
    "hw.gpu.memory.limit": _gpu("memory.total_bytes"),
    "hw.gpu.io": (
        *_gpu("pcie.tx_bytes_per_second", how="rate", network_io_direction="transmit"),
        *_gpu("pcie.rx_bytes_per_second", how="rate", network_io_direction="receive"),
    ),
    "hw.power": _gpu("power_watts", hw_type="gpu"),
    # Joules to millijoules.
    "hw.energy": _gpu("energy_millijoules_total", 1e3, hw_type="gpu"),
    "hw.temperature": _gpu("temp_celsius", hw_type="gpu"),
    "hw.errors": (
        *_gpu("ecc.corrected_total", hw_type="gpu", error_type="corrected"),
        *_gpu("ecc.uncorrected_total", hw_type="gpu", error_type="uncorrected"),
        *_nic("rx_errors_total", hw_type="network", network_io_direction="receive"),
        *_nic("tx_errors_total", hw_type="network", network_io_direction="transmit"),
    ),
    "hw.network.io": (
        *_nic("rx_bytes_total", network_io_direction="receive"),
        *_nic("tx_bytes_total", network_io_direction="transmit"),
    ),
    "hw.network.packets": (
        *_nic("rx_packets_total", network_io_direction="receive"),
        *_nic("tx_packets_total", network_io_direction="transmit"),
    ),
    "hw.network.up": _nic("up"),
    "hw.network.bandwidth.limit": _nic("speed_bits_per_second", BITS),
    "system.cpu.load_average.1m": _host("load1"),
    "system.cpu.logical.count": _host("cpu_count"),
    "system.memory.limit": _host("memory.total_bytes"),
}

# All rules by metric name.
RULES: Mapping[str, tuple[Rule, ...]] = {**DCGM, **NODE_EXPORTER, **OTEL}
