"""Gives simulated records the values that an exporter would have read: in resolution, and missing or not."""

from __future__ import annotations

import math
from typing import TypeVar

import msgspec
import numpy as np

from exporters.host.seldom import PACKETS
from exporters.nvml.calls import SLOW
from exporters.nvml.collector import CALL_STEP
from exporters.nvml.deadlines import SLOW_EVERY
from slowrank.telemetry import JobSteps, NodeSample
from slowrank.telemetry.schema import MISSING, SAMPLE_SCHEMAS, STEP_SCHEMAS, STEP_V1, Block

# Least difference of two values of a column where it is larger than that of the simulator's: NVML counts mW
# and kB/s, InfiniBand words of 4 bytes, /proc jiffies (192 cores at 100 Hz), hundredths and KiB.
UNITS = {
    "gpu.nvml_call_seconds": CALL_STEP,
    "gpu.power_watts": 1e-3,
    "gpu.pcie.tx_bytes_per_second": 1e3,
    "gpu.pcie.rx_bytes_per_second": 1e3,
    "nic.port.rx_bytes_total": 4,
    "nic.port.tx_bytes_total": 4,
    "host.cpu.utilization_ratio": 1 / 19_200,
    "host.cpu.iowait_ratio": 1 / 19_200,
    "host.load1": 0.01,
    "host.memory.available_bytes": 1024,
}

STEP_SECONDS = tuple(name for name in STEP_V1.names if name.endswith("_seconds"))

# Of the seconds of step rows: what the training hook rounds to.
STEP_UNIT = 1e-7

# Columns that are read in one of ``SLOW_EVERY`` ticks: those of GPUs in turn, those of ports together.
SELDOM = {**{name: "gpu" for call in SLOW for name in call.columns}, **dict.fromkeys(PACKETS, "nic")}


R = TypeVar("R", bound=NodeSample | JobSteps)


def sent(record: R) -> R:
    """Return a simulated record with the values that an exporter would have read."""
    if isinstance(record, JobSteps):
        return msgspec.structs.replace(record, rows=_read(STEP_SCHEMAS[record.schema].rows, record.rows))
    schema, tick = SAMPLE_SCHEMAS[record.schema], record.seq
    return msgspec.structs.replace(
        record,
        gpu=_read(schema.gpu, record.gpu, tick),
        nic=_read(schema.nic, record.nic, tick),
        host=_read(schema.host, record.host, tick),
    )


def _read(block: Block, data: bytes, tick: int = 0) -> bytes:
    held = bytearray(data)
    count = len(data) // block.row_size
    for name, (start, dtype) in block.offsets.items():
        values = np.frombuffer(held, dtype, count, start * count)
        unit = UNITS.get(name) or (STEP_UNIT if name in STEP_SECONDS else None)
        if unit is not None and dtype == "<i8":
            values[:] = values // unit * unit
        elif unit is not None:
            values[:] = np.rint(values.astype(float) / unit) * unit
        if name in SELDOM:
            turn = np.arange(count) if SELDOM[name] == "gpu" else np.zeros(count, int)
            values[(turn + tick) % SLOW_EVERY != 0] = MISSING.get(dtype, math.nan)
    return bytes(held)
