"""Settings of the job stage."""

from dataclasses import dataclass, field

from detectors.job.loss import LossConfig
from detectors.straggler.config import StragglerConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStageConfig:
    """``update_seconds``: event time between two suspicions about the same thing. ``decision``: whether the
    second decision core runs beside the first, in shadow."""

    update_seconds: float = 30.0
    decision: bool = False
    straggler: StragglerConfig = field(default_factory=StragglerConfig)
    loss: LossConfig = field(default_factory=LossConfig)
