"""The 10 s roll-ups: which columns each table has and how a bucket's samples become one value.

Plain data, no database: whoever makes the roll-ups reads the aggregates here, ``rollups`` writes the rows.
"""

from dataclasses import dataclass
from typing import Literal

# Also in the names of the tables.
BUCKET_SECONDS = 10.0

Block = Literal["gpu", "nic", "host"]
Aggregate = Literal["mean", "min", "max", "delta", "or"]


@dataclass(frozen=True, slots=True)
class Rolled:
    """One column of a roll-up: ``aggregate`` of ``metric`` over the bucket.

    ``delta`` is the sum of a counter's increases (a reset counts from zero), ``or`` the union of a bitmask.
    """

    metric: str
    aggregate: Aggregate

    @property
    def column(self) -> str:
        """Name in the table: ``gpu.clock.sm_hz`` and ``min`` give ``clock_sm_hz_min``."""
        name = self.metric.split(".", 1)[1] if not self.metric.startswith("exporter.") else self.metric
        return f"{name.removesuffix('_total').replace('.', '_')}_{self.aggregate}"


def _each(aggregate: Aggregate, *metrics: str) -> tuple[Rolled, ...]:
    return tuple(Rolled(metric, aggregate) for metric in metrics)


ROLLED: dict[Block, tuple[Rolled, ...]] = {
    "gpu": (
        *_each("mean", "gpu.utilization_ratio", "gpu.tensor_active_ratio", "gpu.dram_active_ratio"),
        *_each("mean", "gpu.clock.sm_hz", "gpu.power_watts", "gpu.temp_celsius"),
        *_each("mean", "gpu.pcie.tx_bytes_per_second", "gpu.pcie.rx_bytes_per_second"),
        *_each("min", "gpu.clock.sm_hz", "gpu.temp.margin_celsius"),
        *_each("min", "gpu.pcie.link_gen", "gpu.pcie.link_width"),
        *_each("max", "gpu.power_watts", "gpu.temp_celsius", "gpu.temp.mem_celsius"),
        *_each("max", "gpu.memory.used_bytes", "gpu.row_remap.pending", "gpu.row_remap.failed"),
        *_each("or", "gpu.throttle_reasons"),
        *_each("delta", "gpu.energy_millijoules_total", "gpu.throttle.power_nanoseconds_total"),
        *_each("delta", "gpu.throttle.thermal_nanoseconds_total", "gpu.xid_events_total"),
        *_each("delta", "gpu.ecc.corrected_total", "gpu.ecc.uncorrected_total"),
        *_each("delta", "gpu.pcie.replay_total", "gpu.nvlink.crc_errors_total"),
        *_each("delta", "gpu.nvlink.replay_errors_total", "gpu.nvlink.recovery_errors_total"),
    ),
    "nic": (
        *_each("min", "nic.port.up", "nic.port.speed_bits_per_second"),
        *_each("delta", "nic.port.rx_bytes_total", "nic.port.tx_bytes_total"),
        *_each("delta", "nic.port.rx_packets_total", "nic.port.tx_packets_total"),
        *_each("delta", "nic.port.rx_errors_total", "nic.port.tx_errors_total"),
        *_each("delta", "nic.port.rx_dropped_total", "nic.port.tx_dropped_total"),
        *_each("delta", "nic.port.carrier_changes_total", "nic.port.link_downed_total"),
        *_each("delta", "nic.port.link_error_recovery_total", "nic.port.symbol_errors_total"),
        *_each("delta", "nic.port.xmit_discards_total", "nic.port.xmit_wait_ticks_total"),
        *_each("delta", "nic.port.out_of_sequence_total", "nic.port.local_ack_timeout_total"),
        *_each("delta", "nic.port.roce_slow_restart_total", "nic.port.cnp_handled_total"),
    ),
    "host": (
        *_each("mean", "host.cpu.utilization_ratio", "host.cpu.iowait_ratio", "host.cpu.steal_ratio"),
        *_each("mean", "host.load1", "host.run_queue", "host.clock_offset_seconds"),
        *_each("mean", "host.pressure.cpu_some_ratio", "host.pressure.memory_some_ratio"),
        *_each("mean", "host.pressure.io_some_ratio"),
        *_each("min", "host.memory.available_bytes"),
        *_each("max", "host.run_queue", "exporter.scrape_duration_seconds", "exporter.spool_bytes"),
        *_each("delta", "host.oom_kills_total", "host.major_page_faults_total"),
        *_each("delta", "host.context_switches_total", "exporter.spool_dropped_total"),
        *_each("delta", "exporter.step_rows_dropped_total"),
    ),
}

TABLE: dict[Block, str] = {"gpu": "samples_10s", "nic": "nic_10s", "host": "host_10s"}


@dataclass(frozen=True, slots=True)
class SampleRollup:
    """One instance (GPU index, ``device/port``, ``""`` for the host) of a node over one bucket.

    ``bucket`` is its start in Unix seconds, a multiple of ``BUCKET_SECONDS``; ``n`` the samples in it;
    ``values`` stand in the order of ``ROLLED[block]``, NaN where nothing was read.
    """

    block: Block
    cluster: str
    node: str
    instance: str
    bucket: float
    n: int
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRollup:
    """The steps one rank finished in one bucket; sums and maxima in seconds, NaN where nothing was read."""

    cluster: str
    job_id: str
    attempt: int
    rank: int
    node: str
    bucket: float
    n_steps: int
    step_seconds_sum: float
    step_seconds_max: float
    compute_seconds_sum: float
    compute_seconds_max: float
    wait_seconds_sum: float
    first_step: int
    last_step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLatest:
    """What was last heard of a node: the row behind every list of nodes."""

    cluster: str
    node: str
    last_seen_at: float
    boot_id: str
    seq: int
    gpus: int
    nics: int
    job_id: str | None = None
