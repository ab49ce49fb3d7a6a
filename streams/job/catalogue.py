"""The detectors of every job, in the order in which they see a step."""

from collections.abc import Callable

from streams.job.config import JobStageConfig
from streams.job.detector import JobDetector
from streams.job.detectors.flapping import FlappingDetector
from streams.job.detectors.group_transfers import GroupTransfers
from streams.job.detectors.job_slowness import JobSlownessDetector
from streams.job.detectors.loss import LossDetector
from streams.job.detectors.missing_ranks import MissingRanks
from streams.job.detectors.shared_loading import SharedLoading
from streams.job.detectors.slow_groups import SlowGroups
from streams.job.detectors.slow_network import SlowNetworkDetector
from streams.job.detectors.slow_ranks import IntermittentRanks, SlowRanks
from streams.job.detectors.slow_saving import SlowSavingDetector

# Each is made once per job. A new one is a file in ``streams.job.detectors`` and a line here.
JOB_DETECTORS: list[Callable[[JobStageConfig], JobDetector]] = [
    SlowRanks,
    SharedLoading,
    SlowGroups,
    IntermittentRanks,
    SlowNetworkDetector,
    FlappingDetector,
    JobSlownessDetector,
    SlowSavingDetector,
    MissingRanks,
    GroupTransfers,
    LossDetector,
]
