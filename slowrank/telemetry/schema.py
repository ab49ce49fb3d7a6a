"""The registry of column layouts: names, units, dtypes and kinds of the byte columns, by schema id.

Ids are append-only. A new column at the end of a block is a new id. Blocks are stored column after column,
so the columns of an older schema are the first bytes of a newer one: a record of a later schema names the
size of its rows (``row_bytes``), and an older reader cuts off what it does not know. Readers map columns by
name, so a newer reader sees missing values in an older record.
"""

from dataclasses import dataclass, field
from typing import Literal

Dtype = Literal["<f4", "<f8", "<i2", "<i4", "<i8"]
Kind = Literal["gauge", "counter", "state", "key"]

ITEM_SIZE: dict[Dtype, int] = {"<f4": 4, "<f8": 8, "<i2": 2, "<i4": 4, "<i8": 8}

MISSING: dict[Dtype, int] = {"<i2": -(2**15), "<i4": -(2**31), "<i8": -(2**63)}
"""Stands for "not read" in an integer column, as NaN does in a float column: the least number of its type."""

MISSING_INT = MISSING["<i8"]


NOT_FINITE = 1e300
"""Written for a loss or a gradient norm that is no number: a missing value is none either, and JSON has no
infinity. In its 32-bit column it is one."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its public name, SI unit, little-endian dtype and kind."""

    name: str
    unit: str
    dtype: Dtype
    kind: Kind


@dataclass(frozen=True, slots=True)
class Block:
    """Columns over the same instances (GPUs, NIC ports, one host, step rows), stored column after column.

    Columns of one dtype stand together, so that a reader takes each run of them as one [columns, n] array.
    """

    columns: tuple[Column, ...]
    row_size: int = field(init=False)
    """Bytes one instance takes."""

    places: dict[str, tuple[int, Dtype]] = field(init=False, compare=False, repr=False)
    """By column, the bytes of one instance that stand before it, and its dtype."""

    def __post_init__(self) -> None:
        places, size = {}, 0
        for column in self.columns:
            places[column.name] = size, column.dtype
            size += ITEM_SIZE[column.dtype]
        object.__setattr__(self, "row_size", size)
        object.__setattr__(self, "places", places)

    @property
    def names(self) -> tuple[str, ...]:
        """Column names in storage order."""
        return tuple(c.name for c in self.columns)


def _gauges(*columns: tuple[str, str]) -> tuple[Column, ...]:
    return tuple(Column(name, unit, "<f4", "gauge") for name, unit in columns)


def _counters(*columns: tuple[str, str]) -> tuple[Column, ...]:
    return tuple(Column(name, unit, "<i8", "counter") for name, unit in columns)


GPU_V1 = Block(
    (
        *_gauges(
            ("gpu.utilization_ratio", "1"),
            ("gpu.memory_utilization_ratio", "1"),
            ("gpu.tensor_active_ratio", "1"),
            ("gpu.dram_active_ratio", "1"),
            ("gpu.clock.sm_hz", "Hz"),
            ("gpu.clock.mem_hz", "Hz"),
            ("gpu.clock.sm_max_hz", "Hz"),
            ("gpu.power_watts", "W"),
            ("gpu.power_limit_watts", "W"),
            ("gpu.temp_celsius", "Cel"),
            ("gpu.temp.mem_celsius", "Cel"),
            ("gpu.temp.margin_celsius", "Cel"),
            ("gpu.memory.used_bytes", "By"),
            ("gpu.memory.total_bytes", "By"),
            ("gpu.pcie.link_gen", "1"),
            ("gpu.pcie.link_width", "1"),
            ("gpu.pcie.link_width_max", "1"),
            ("gpu.pcie.tx_bytes_per_second", "By/s"),
            ("gpu.pcie.rx_bytes_per_second", "By/s"),
            ("gpu.nvml_call_seconds", "s"),
        ),
        Column("gpu.throttle_reasons", "bitmask", "<i8", "state"),
        Column("gpu.row_remap.pending", "1", "<i8", "state"),
        Column("gpu.row_remap.failed", "1", "<i8", "state"),
        Column("gpu.recovery_action", "1", "<i8", "state"),
        # In the driver's own units, whole numbers, of which 64 bits lose nothing (docs/decisions/0009).
        *_counters(
            ("gpu.energy_millijoules_total", "mJ"),
            ("gpu.throttle.power_nanoseconds_total", "ns"),
            ("gpu.throttle.thermal_nanoseconds_total", "ns"),
            ("gpu.xid_events_total", "1"),
            ("gpu.ecc.corrected_total", "1"),
            ("gpu.ecc.uncorrected_total", "1"),
            ("gpu.row_remap.correctable_total", "1"),
            ("gpu.row_remap.uncorrectable_total", "1"),
            ("gpu.pcie.replay_total", "1"),
            ("gpu.nvlink.crc_errors_total", "1"),
            ("gpu.nvlink.replay_errors_total", "1"),
            ("gpu.nvlink.recovery_errors_total", "1"),
        ),
    )
)

NIC_V1 = Block(
    (
        *_gauges(("nic.port.up", "1"), ("nic.port.speed_bits_per_second", "bit/s")),
        *_counters(
            ("nic.port.rx_bytes_total", "By"),
            ("nic.port.tx_bytes_total", "By"),
            ("nic.port.rx_packets_total", "1"),
            ("nic.port.tx_packets_total", "1"),
            ("nic.port.rx_errors_total", "1"),
            ("nic.port.tx_errors_total", "1"),
            ("nic.port.rx_dropped_total", "1"),
            ("nic.port.tx_dropped_total", "1"),
            ("nic.port.carrier_changes_total", "1"),
            ("nic.port.link_downed_total", "1"),
            ("nic.port.link_error_recovery_total", "1"),
            ("nic.port.symbol_errors_total", "1"),
            ("nic.port.xmit_discards_total", "1"),
            ("nic.port.xmit_wait_ticks_total", "1"),
            ("nic.port.out_of_sequence_total", "1"),
            ("nic.port.local_ack_timeout_total", "1"),
            ("nic.port.roce_slow_restart_total", "1"),
            ("nic.port.cnp_handled_total", "1"),
        ),
    )
)

NIC_V2 = Block(
    (
        *NIC_V1.columns,
        *_counters(
            ("nic.port.rnr_nak_retry_errors_total", "1"),
            ("nic.port.local_link_integrity_errors_total", "1"),
            ("nic.port.excessive_buffer_overrun_errors_total", "1"),
        ),
    )
)

HOST_V1 = Block(
    (
        *_gauges(
            ("host.cpu.utilization_ratio", "1"),
            ("host.cpu.iowait_ratio", "1"),
            ("host.cpu.steal_ratio", "1"),
            ("host.load1", "1"),
            ("host.run_queue", "1"),
            ("host.cpu_count", "1"),
            ("host.memory.available_bytes", "By"),
            ("host.memory.total_bytes", "By"),
            ("host.pressure.cpu_some_ratio", "1"),
            ("host.pressure.memory_some_ratio", "1"),
            ("host.pressure.io_some_ratio", "1"),
            ("host.clock_offset_seconds", "s"),
            ("exporter.scrape_duration_seconds", "s"),
            ("exporter.spool_bytes", "By"),
        ),
        *_counters(
            ("host.oom_kills_total", "1"),
            ("host.major_page_faults_total", "1"),
            ("host.context_switches_total", "1"),
            ("exporter.spool_dropped_total", "1"),
            ("exporter.step_rows_dropped_total", "1"),
        ),
    )
)

STEP_V1 = Block(
    (
        Column("step", "1", "<i8", "key"),
        Column("ts", "s", "<f8", "key"),
        Column("rank", "1", "<i4", "key"),
        Column("dp", "1", "<i4", "key"),
        Column("local_rank", "1", "<i2", "key"),
        Column("gpu_index", "1", "<i2", "key"),
        Column("pp", "1", "<i2", "key"),
        Column("tp", "1", "<i2", "key"),
        Column("cp", "1", "<i2", "key"),
        Column("ep", "1", "<i2", "key"),
        Column("step_seconds", "s", "<f4", "gauge"),
        Column("compute_seconds", "s", "<f4", "gauge"),
        Column("wait_seconds", "s", "<f4", "gauge"),
        Column("data_seconds", "s", "<f4", "gauge"),
        Column("comm_seconds", "s", "<f4", "gauge"),
        Column("checkpoint_seconds", "s", "<f4", "gauge"),
        Column("tokens", "1", "<f4", "gauge"),
        Column("loss", "1", "<f4", "gauge"),
        Column("grad_norm", "1", "<f4", "gauge"),
    )
)

# A sum of squares passes 2^31 in one batch, and no fit of times needs more than seven digits of it.
STEP_V2 = Block((*STEP_V1.columns, Column("seq_len_sq_sum", "1", "<f4", "gauge")))


@dataclass(frozen=True, slots=True)
class SampleSchema:
    """Layout of one ``node-samples`` record."""

    id: int
    gpu: Block
    nic: Block
    host: Block
    row_bytes: tuple[int, int, int] = field(init=False)
    """Bytes of one instance in each block, as a record of a later schema declares them."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "row_bytes", (self.gpu.row_size, self.nic.row_size, self.host.row_size))


@dataclass(frozen=True, slots=True)
class StepSchema:
    """Layout of one ``job-steps`` record."""

    id: int
    rows: Block

    @property
    def row_bytes(self) -> int | None:
        """Bytes of one row as a record declares them, which it does from schema 2 on."""
        return None if self.id == 1 else self.rows.row_size


SAMPLE_SCHEMAS: dict[int, SampleSchema] = {
    1: SampleSchema(1, GPU_V1, NIC_V1, HOST_V1),
    2: SampleSchema(2, GPU_V1, NIC_V2, HOST_V1),
}
STEP_SCHEMAS: dict[int, StepSchema] = {1: StepSchema(1, STEP_V1), 2: StepSchema(2, STEP_V2)}

CURRENT_SAMPLE_SCHEMA = 2
CURRENT_STEP_SCHEMA = 2


def step_schema(*, squares: bool) -> StepSchema:
    """Return the schema to write rows in; rows without ``seq_len_sq_sum`` take no room for it."""
    return STEP_SCHEMAS[CURRENT_STEP_SCHEMA if squares else 1]
