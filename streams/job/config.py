"""Settings of the job stage."""

from dataclasses import dataclass, field

from detectors.job.loss import LossConfig
from detectors.straggler.config import StragglerConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStageConfig:
    """``update_seconds``: event time between two suspicions about the same thing."""

    update_seconds: float = 30.0
    straggler: StragglerConfig = field(default_factory=StragglerConfig)
    loss: LossConfig = field(default_factory=LossConfig)
