"""Settings of the node stage."""

from dataclasses import dataclass, field

from detectors.changepoint.acceptance import ChangeConfig
from streams.silent_nodes import SilenceConfig


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """Settings of the node stage, times in seconds of event time.

    ``gone``: how long a GPU must be missing from live records; chosen: three ticks. ``events``: how long
    events are counted, the longest window of their rules. ``level_changes``: whether to search for change
    points. ``loaded_minutes``, ``readings``, ``readings_of_jobs``: whether to emit clocks under load and
    minute means of all nodes or of those in a job, for the comparisons of nodes in the cluster stage.
    """

    silence: SilenceConfig = field(default_factory=SilenceConfig)
    change: ChangeConfig = field(default_factory=ChangeConfig)
    level_changes: bool = True
    loaded_minutes: bool = True
    readings: bool = False
    readings_of_jobs: bool = True
    gone: float = 3.0
    events: float = 86400.0
