"""How far the clock of a node is off, as its samples report."""

import struct

from slowrank.telemetry import NodeSample
from slowrank.telemetry.schema import SAMPLE_SCHEMAS

OFFSET = "host.clock_offset_seconds"

# Chosen: onsets on a node and in its job are compared to the second, so half of one is too much.
SKEW_SECONDS = 0.5

# A larger offset is no measurement. Chosen: a day; applied, it would keep the node from counting as silent.
BELIEVED_SECONDS = 86_400.0


def measured_error(sample: NodeSample) -> float | None:
    """Return the seconds by which ``ts`` is ahead of the cluster's clock, 0 where negligible; None where the
    sample does not measure it, or ``ts`` was put right already.
    """
    if not sample.host or sample.rx_hint is not None:
        return None
    # With one host, the offset of a column is the offset of its only value.
    (offset,) = struct.unpack_from("<f", sample.host, SAMPLE_SCHEMAS[sample.schema].host.offsets[OFFSET][0])
    if not abs(offset) <= BELIEVED_SECONDS:
        return None
    return offset if abs(offset) > SKEW_SECONDS else 0.0


def clock_error(sample: NodeSample) -> float:
    """Return the seconds by which ``ts`` is ahead of the cluster's clock, 0 also where that is not known."""
    return measured_error(sample) or 0.0
