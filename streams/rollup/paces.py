"""A rank's pace as the row that the store keeps."""

from detectors.fleet.chronic import Machine, Pace
from slowrank.telemetry import RankPace


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
