"""Messages that are stored without passing the finding stage: paces of ranks, and what jobs declare."""

from detectors.fleet.chronic import Machine, Pace
from slowrank.telemetry import JobDeclared, RankPace
from store.telemetry.buckets import JobEvent

MessageRow = Pace | JobEvent
"""What a message becomes."""


def row_of(message: RankPace | JobDeclared) -> MessageRow:
    """Return the row that the store keeps."""
    if isinstance(message, JobDeclared):
        return JobEvent(message.cluster, message.job_id, message.code, message.ts, message.message)
    return pace_row(message)


def pace_row(message: RankPace) -> Pace:
    """Return the row of a rank's pace."""
    return Pace(
        machine=Machine(message.cluster, message.node, message.gpu_index),
        job=message.job_id,
        rank=message.rank,
        at=message.ts,
        log_ratio=message.log_ratio,
        spread=message.spread,
    )
