"""Removal of columns that the simulator fills and some nodes do not, for runs without them."""

import struct
from collections.abc import Collection

from msgspec.structs import replace

from slowrank.telemetry import NodeSample
from slowrank.telemetry.schema import (
    CURRENT_SAMPLE_SCHEMA,
    ITEM_SIZE,
    MISSING,
    SAMPLE_SCHEMAS,
    Block,
    Dtype,
)

# Columns missing on nodes with GPUs before Hopper or with MIG, and without clock synchronisation.
BARE = ("gpu.tensor_active_ratio", "gpu.dram_active_ratio", "host.clock_offset_seconds")

_SCHEMA = SAMPLE_SCHEMAS[CURRENT_SAMPLE_SCHEMA]
COLUMNS = (*_SCHEMA.gpu.names, *_SCHEMA.nic.names, *_SCHEMA.host.names)

_FLOATS: dict[Dtype, str] = {"<f4": "<f", "<f8": "<d"}


def without(sample: NodeSample, columns: Collection[str]) -> NodeSample:
    """Return ``sample`` with ``columns`` missing in every instance, as if they had not been read."""
    schema = SAMPLE_SCHEMAS[sample.schema]
    return replace(
        sample,
        gpu=_blanked(schema.gpu, sample.gpu, columns),
        nic=_blanked(schema.nic, sample.nic, columns),
        host=_blanked(schema.host, sample.host, columns),
    )


def _blanked(block: Block, data: bytes, columns: Collection[str]) -> bytes:
    count, held = len(data) // block.row_size, bytearray(data)
    for column in columns:
        if column in block.offsets:
            start, dtype = block.offsets[column]
            held[start * count : (start + ITEM_SIZE[dtype]) * count] = _missing(dtype) * count
    return bytes(held)


def _missing(dtype: Dtype) -> bytes:
    if dtype in _FLOATS:
        return struct.pack(_FLOATS[dtype], float("nan"))
    return MISSING[dtype].to_bytes(ITEM_SIZE[dtype], "little", signed=True)
