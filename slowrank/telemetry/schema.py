"""The registry of column layouts: names, units, dtypes, kinds and roll-ups, by schema id.

Ids are append-only: each schema appends its columns to those of the one before. Blocks are stored column
after column, so the columns of an older schema are the first bytes of a newer one: a record of a later
schema names the size of its rows (``row_bytes``), and an older reader cuts off the rest. Readers map columns
by name, so a newer reader sees missing values in an older record.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

Dtype = Literal["<f4", "<f8", "<i2", "<i4", "<i8"]
Kind = Literal["gauge", "counter", "state", "key"]
Owner = Literal["gpu", "nic", "host"]
"""What a sample column is measured on."""

Aggregate = Literal["mean", "min", "max", "delta", "or"]
"""How a column is rolled up over a bucket: ``delta`` is the sum of a counter's increases (a reset counts from
zero), ``or`` the union of a bitmask."""

ITEM_SIZE: dict[Dtype, int] = {"<f4": 4, "<f8": 8, "<i2": 2, "<i4": 4, "<i8": 8}

# Stands for "not read" in an integer column, as NaN does in a float column: the least number of its type.
MISSING: dict[Dtype, int] = {"<i2": -(2**15), "<i4": -(2**31), "<i8": -(2**63)}

MISSING_INT = MISSING["<i8"]


# Value of a loss or a gradient norm that is NaN or infinite: NaN means a missing value, and JSON has no
# infinity. In its 32-bit column it becomes infinity.
NOT_FINITE = 1e300


@dataclass(frozen=True, slots=True)
class Column:
    """One column: public name, SI unit, little-endian dtype and kind.

    ``since`` is the id of the first schema that has it, ``rollup`` its aggregates in the 10 s roll-ups.
    """

    name: str
    unit: str
    dtype: Dtype
    kind: Kind
    since: int = 1
    rollup: tuple[Aggregate, ...] = ()


@dataclass(frozen=True, slots=True)
class Block:
    """Columns over the same instances (GPUs, NIC ports, one host, step rows), stored column after column.

    Columns of one dtype stand together, so that a reader takes each run of them as one [columns, n] array.
    """

    columns: tuple[Column, ...]
    row_size: int = field(init=False)
    """Bytes one instance takes."""

    offsets: dict[str, tuple[int, Dtype]] = field(init=False, compare=False, repr=False)
    """By column, the bytes of one instance that stand before it, and its dtype."""

    def __post_init__(self) -> None:
        offsets, size = {}, 0
        for column in self.columns:
            offsets[column.name] = size, column.dtype
            size += ITEM_SIZE[column.dtype]
        object.__setattr__(self, "row_size", size)
        object.__setattr__(self, "offsets", offsets)

    @property
    def names(self) -> tuple[str, ...]:
        """Column names in storage order."""
        return tuple(c.name for c in self.columns)


def _gauge(name: str, unit: str, *rollup: Aggregate, since: int = 1) -> Column:
    return Column(name, unit, "<f4", "gauge", since, rollup)


def _state(name: str, unit: str, *rollup: Aggregate, since: int = 1) -> Column:
    return Column(name, unit, "<i8", "state", since, rollup)


def _counter(name: str, unit: str, *rollup: Aggregate, since: int = 1) -> Column:
    return Column(name, unit, "<i8", "counter", since, rollup)


# A new column is one row here, with ``since`` one above the largest: that makes the next schema id.
GPU_COLUMNS = (
    _gauge("gpu.utilization_ratio", "1", "mean"),
    _gauge("gpu.memory_utilization_ratio", "1"),
    _gauge("gpu.tensor_active_ratio", "1", "mean"),
    _gauge("gpu.dram_active_ratio", "1", "mean"),
    _gauge("gpu.clock.sm_hz", "Hz", "mean", "min"),
    _gauge("gpu.clock.mem_hz", "Hz"),
    _gauge("gpu.clock.sm_max_hz", "Hz"),
    _gauge("gpu.power_watts", "W", "mean", "max"),
    _gauge("gpu.power_limit_watts", "W"),
    _gauge("gpu.temp_celsius", "Cel", "mean", "max"),
    _gauge("gpu.temp.mem_celsius", "Cel", "max"),
    _gauge("gpu.temp.margin_celsius", "Cel", "min"),
    _gauge("gpu.memory.used_bytes", "By", "max"),
    _gauge("gpu.memory.total_bytes", "By"),
    _gauge("gpu.pcie.link_gen", "1", "min"),
    _gauge("gpu.pcie.link_width", "1", "min"),
    _gauge("gpu.pcie.link_width_max", "1"),
    _gauge("gpu.pcie.tx_bytes_per_second", "By/s", "mean"),
    _gauge("gpu.pcie.rx_bytes_per_second", "By/s", "mean"),
    _gauge("gpu.nvml_call_seconds", "s"),
    _state("gpu.throttle_reasons", "bitmask", "or"),
    _state("gpu.row_remap.pending", "1", "max"),
    _state("gpu.row_remap.failed", "1", "max"),
    _state("gpu.recovery_action", "1"),
    # In the driver's own units, whole numbers, of which 64 bits lose nothing (docs/decisions/0009).
    _counter("gpu.energy_millijoules_total", "mJ", "delta"),
    _counter("gpu.throttle.power_nanoseconds_total", "ns", "delta"),
    _counter("gpu.throttle.thermal_nanoseconds_total", "ns", "delta"),
    _counter("gpu.xid_events_total", "1", "delta"),
    _counter("gpu.ecc.corrected_total", "1", "delta"),
    _counter("gpu.ecc.uncorrected_total", "1", "delta"),
    _counter("gpu.row_remap.correctable_total", "1"),
    _counter("gpu.row_remap.uncorrectable_total", "1"),
    _counter("gpu.pcie.replay_total", "1", "delta"),
    _counter("gpu.nvlink.crc_errors_total", "1", "delta"),
    _counter("gpu.nvlink.replay_errors_total", "1", "delta"),
    _counter("gpu.nvlink.recovery_errors_total", "1", "delta"),
)

NIC_COLUMNS = (
    _gauge("nic.port.up", "1", "min"),
    _gauge("nic.port.speed_bits_per_second", "bit/s", "min"),
    _counter("nic.port.rx_bytes_total", "By", "delta"),
    _counter("nic.port.tx_bytes_total", "By", "delta"),
    _counter("nic.port.rx_packets_total", "1", "delta"),
    _counter("nic.port.tx_packets_total", "1", "delta"),
    _counter("nic.port.rx_errors_total", "1", "delta"),
    _counter("nic.port.tx_errors_total", "1", "delta"),
    _counter("nic.port.rx_dropped_total", "1", "delta"),
    _counter("nic.port.tx_dropped_total", "1", "delta"),
    _counter("nic.port.carrier_changes_total", "1", "delta"),
    _counter("nic.port.link_downed_total", "1", "delta"),
    _counter("nic.port.link_error_recovery_total", "1", "delta"),
    _counter("nic.port.symbol_errors_total", "1", "delta"),
    _counter("nic.port.xmit_discards_total", "1", "delta"),
    _counter("nic.port.xmit_wait_ticks_total", "1", "delta"),
    _counter("nic.port.out_of_sequence_total", "1", "delta"),
    _counter("nic.port.local_ack_timeout_total", "1", "delta"),
    _counter("nic.port.roce_slow_restart_total", "1", "delta"),
    _counter("nic.port.cnp_handled_total", "1", "delta"),
    _counter("nic.port.rnr_nak_retry_errors_total", "1", since=2),
    _counter("nic.port.local_link_integrity_errors_total", "1", since=2),
    _counter("nic.port.excessive_buffer_overrun_errors_total", "1", since=2),
)

HOST_COLUMNS = (
    _gauge("host.cpu.utilization_ratio", "1", "mean"),
    _gauge("host.cpu.iowait_ratio", "1", "mean"),
    _gauge("host.cpu.steal_ratio", "1", "mean"),
    _gauge("host.load1", "1", "mean"),
    _gauge("host.run_queue", "1", "mean", "max"),
    _gauge("host.cpu_count", "1"),
    _gauge("host.memory.available_bytes", "By", "min"),
    _gauge("host.memory.total_bytes", "By"),
    _gauge("host.pressure.cpu_some_ratio", "1", "mean"),
    _gauge("host.pressure.memory_some_ratio", "1", "mean"),
    _gauge("host.pressure.io_some_ratio", "1", "mean"),
    _gauge("host.clock_offset_seconds", "s", "mean"),
    _gauge("exporter.scrape_duration_seconds", "s", "max"),
    _gauge("exporter.spool_bytes", "By", "max"),
    _counter("host.oom_kills_total", "1", "delta"),
    _counter("host.major_page_faults_total", "1", "delta"),
    _counter("host.context_switches_total", "1", "delta"),
    _counter("exporter.spool_dropped_total", "1", "delta"),
    _counter("exporter.step_rows_dropped_total", "1", "delta"),
    _gauge("exporter.spool_free_bytes", "By", since=3),
    _counter("host.tcp.sent_segments_total", "1", since=4),
    _counter("host.tcp.received_segments_total", "1", since=4),
    _counter("host.tcp.retransmitted_segments_total", "1", since=4),
    _counter("host.tcp.out_of_order_segments_total", "1", since=4),
    _gauge("host.tcp.sent_round_trip_seconds", "s", since=5),
    _gauge("host.tcp.received_round_trip_seconds", "s", since=5),
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

    def block(self, owner: Owner) -> Block:
        """Return the columns of one kind of device."""
        return {"gpu": self.gpu, "nic": self.nic, "host": self.host}[owner]


@dataclass(frozen=True, slots=True)
class StepSchema:
    """Layout of one ``job-steps`` record."""

    id: int
    rows: Block

    @property
    def row_bytes(self) -> int | None:
        """Bytes of one row as a record declares them, which it does from schema 2 on."""
        return None if self.id == 1 else self.rows.row_size


def sample_schemas(
    gpu: Sequence[Column], nic: Sequence[Column], host: Sequence[Column]
) -> dict[int, SampleSchema]:
    """Return all sample schemas by id: each has the columns of the one before, and then its own."""
    latest = max(column.since for column in (*gpu, *nic, *host))
    return {
        number: SampleSchema(number, _block(gpu, number), _block(nic, number), _block(host, number))
        for number in range(1, latest + 1)
    }


def _block(columns: Sequence[Column], schema: int) -> Block:
    held = [column for column in columns if column.since <= schema]
    return Block(tuple(sorted(held, key=lambda column: column.since)))


SAMPLE_SCHEMAS = sample_schemas(GPU_COLUMNS, NIC_COLUMNS, HOST_COLUMNS)
GPU_V1, NIC_V1, HOST_V1 = SAMPLE_SCHEMAS[1].gpu, SAMPLE_SCHEMAS[1].nic, SAMPLE_SCHEMAS[1].host
STEP_SCHEMAS: dict[int, StepSchema] = {1: StepSchema(1, STEP_V1), 2: StepSchema(2, STEP_V2)}

CURRENT_SAMPLE_SCHEMA = max(SAMPLE_SCHEMAS)
CURRENT_STEP_SCHEMA = max(STEP_SCHEMAS)


def step_schema(*, squares: bool) -> StepSchema:
    """Return the schema to write rows in; rows without ``seq_len_sq_sum`` take no room for it."""
    return STEP_SCHEMAS[CURRENT_STEP_SCHEMA if squares else 1]
