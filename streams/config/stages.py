"""The stages under a tuning: one for each distinct setting, with the detectors' modes applied to the
outputs."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, Generic, TypeVar

from slowrank.telemetry import JobEnded, JobSteps
from streams.cluster.gray_nodes import GrayNodes
from streams.cluster.stage import FindingStage
from streams.config.settings import REMEMBERED, Tuning
from streams.job.config import JobStageConfig
from streams.job.memory import JobMemory
from streams.job.stage import DEFAULT_MEMORY_BYTES, JobStage
from streams.node.batching import BatchBySecond
from streams.node.config import NodeConfig
from streams.node.stage import NodeStage
from streams.stage import Buffering, Input, Output, Resumable, Stage

C = TypeVar("C", bound=Hashable)


class Tuned(Generic[C]):
    """Routes each record to the stage with its settings; clusters or jobs with equal settings share one."""

    def __init__(
        self, tuning: Tuning, *, config_of: Callable[[Any], C | None], make: Callable[[C], Stage]
    ) -> None:
        self._tuning = tuning
        self._config_of = config_of
        self._make = make
        self._stages: dict[C, Stage] = {}

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages made so far."""
        return tuple(self._stages.values())

    def process(self, record: Input) -> Sequence[Output]:
        """Process one record; records of other stages give nothing."""
        config = self._config_of(record)
        if config is None:
            return ()
        stage = self._stages.get(config)
        if stage is None:
            stage = self._stages[config] = self._make(config)
        return self._judged(stage.process(record))

    def tick(self, event_time: float) -> Sequence[Output]:
        """Advance event time for all."""
        found: list[Output] = []
        for stage in self._stages.values():
            found += self._judged(stage.tick(event_time))
        return found

    def flush(self) -> Sequence[Output]:
        """Process what the stages keep back until its second has passed."""
        found: list[Output] = []
        for stage in self._stages.values():
            if isinstance(stage, Buffering):
                found += self._judged(stage.flush())
        return found

    def snapshot(self) -> dict[C, Stage]:
        """Return the stages by their settings."""
        return self._stages

    def restore(self, kept: dict[C, Stage]) -> None:
        """Take the stages of a ``snapshot``."""
        self._stages = kept

    def resume(self, event_time: float) -> None:
        """Resume the stages: records of before ``event_time`` may be lost."""
        for stage in self._stages.values():
            if isinstance(stage, Resumable):
                stage.resume(event_time)

    def _judged(self, outputs: Sequence[Output]) -> Sequence[Output]:
        if not outputs:
            return outputs
        judged = map(self._tuning.judged, outputs)
        return [output for output in judged if output is not None]


def node_stage(tuning: Tuning) -> Stage:
    """Return the node stage; its settings differ by cluster only, as a node outlives its jobs."""

    @lru_cache(REMEMBERED)
    def config_at(cluster: str) -> NodeConfig:
        configs = tuning.configs(cluster)
        # Level changes take most of the stage's time: like what is only compared in the cluster stage, they
        # are not computed where their output is off.
        return replace(
            configs.node,
            level_changes=configs.node.level_changes
            and not tuning.silent("level_changes", cluster, rules="change."),
            loaded_minutes=configs.node.loaded_minutes
            and not tuning.silent("node_clocks", cluster, rules="node_clocks."),
            readings=configs.gray is not None and not tuning.silent("gray", cluster, rules="gray."),
            readings_of_jobs=configs.node.readings_of_jobs
            and not tuning.silent("job_peers", cluster, rules="job_peers."),
        )

    def make(config: NodeConfig) -> Stage:
        return BatchBySecond(NodeStage(config))

    return Tuned(tuning, config_of=lambda record: config_at(record.cluster), make=make)


def job_stage(
    tuning: Tuning, *, name: str = "job-steps", memory_bytes: int = DEFAULT_MEMORY_BYTES
) -> "Tuned[JobStageConfig]":
    """Return the job stage; ``memory_bytes`` bounds the jobs of each distinct setting."""

    def config_of(record: Input) -> Any:
        if not isinstance(record, JobSteps | JobEnded):
            return None
        return tuning.configs(record.cluster, record.job_id).job

    make = partial(JobStage, name=name, memory_bytes=memory_bytes)
    return Tuned(tuning, config_of=config_of, make=make)


def job_memory(stage: Stage) -> JobMemory:
    """Return the memory of the jobs of a stage; zero for a stage without jobs."""
    stages = stage.stages if isinstance(stage, Tuned) else (stage,)
    return sum((s.memory for s in stages if isinstance(s, JobStage)), start=JobMemory())


def finding_stage(tuning: Tuning) -> Stage:
    """Return the finding stage; its settings differ by cluster only, as a cause may cost several jobs."""
    findings = Tuned(tuning, config_of=lambda s: tuning.finding(s.cluster), make=FindingStage)
    return gray_nodes(findings, tuning)


def gray_nodes(inner: Stage, tuning: Tuning) -> GrayNodes:
    """Return ``inner`` behind the comparison of nodes, with the healthy regions of the tuning."""
    return GrayNodes(inner, region_of=lambda cluster: tuning.configs(cluster).gray, judged=tuning.judged)
