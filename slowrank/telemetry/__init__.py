"""The wire: records, their layouts, their codec, their JSON twin and the topics they travel in."""

from slowrank.telemetry.checks import BadRecord
from slowrank.telemetry.codec import (
    decode_dead_letter,
    decode_event,
    decode_sample,
    decode_steps,
    decode_suspicion,
    encode,
)
from slowrank.telemetry.records import (
    UNKNOWN_NODE,
    Baseline,
    DeadLetter,
    Evidence,
    JobSteps,
    Lost,
    NodeEvent,
    NodeSample,
    Peers,
    Record,
    Subject,
    Suspicion,
)

__all__ = [
    "UNKNOWN_NODE",
    "BadRecord",
    "Baseline",
    "DeadLetter",
    "Evidence",
    "JobSteps",
    "Lost",
    "NodeEvent",
    "NodeSample",
    "Peers",
    "Record",
    "Subject",
    "Suspicion",
    "decode_dead_letter",
    "decode_event",
    "decode_sample",
    "decode_steps",
    "decode_suspicion",
    "encode",
]
