"""The decoder of each telemetry topic, as readers of the log call it."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from slowrank.telemetry import JobEnded, Record, decode_event, decode_sample, decode_steps_or_end
from slowrank.telemetry.topics import JOB_STEPS, NODE_EVENTS, NODE_SAMPLES

# Decoder by topic; takes the log's time (Unix seconds; None: no limits). Raises ``BadRecord``.
#
# The log's time decides whether a record is too old or from the future, not the reader's clock: a partition
# that is read again next week must give the same records.
TELEMETRY: Mapping[str, Callable[[bytes, float | None], Record | JobEnded]] = MappingProxyType(
    {
        NODE_SAMPLES: lambda data, then: decode_sample(data, now=then),
        NODE_EVENTS: lambda data, then: decode_event(data, now=then),
        JOB_STEPS: lambda data, then: decode_steps_or_end(data, now=then),
    }
)
