"""The stages under a tuning: one for each distinct setting, and the modes applied to what they say."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, Generic, TypeVar

from slowrank.telemetry import JobSteps, Record, Suspicion
from streams.finding_stage import FindingStage
from streams.gather import Gathered
from streams.gray_nodes import GrayNodes
from streams.job_memory import JobMemory
from streams.job_stage import DEFAULT_MEMORY_BYTES, JobStage, JobStageConfig
from streams.node_stage import NodeConfig, NodeStage
from streams.stage import Output, Stage
from streams.tuning import REMEMBERED, Tuning

C = TypeVar("C", bound=Hashable)


class Tuned(Generic[C]):
    """A stage that hands each record to the stage made with the settings that hold for it.

    Clusters or jobs with equal settings share one.
    """

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

    def process(self, record: Record | Suspicion) -> Sequence[Output]:
        """Take one record; one that is not for the stage gives rise to nothing."""
        config = self._config_of(record)
        if config is None:
            return ()
        stage = self._stages.get(config)
        if stage is None:
            stage = self._stages[config] = self._make(config)
        return self._judged(stage.process(record))

    def tick(self, event_time: float) -> Sequence[Output]:
        """Let event time pass for all."""
        found: list[Output] = []
        for stage in self._stages.values():
            found += self._judged(stage.tick(event_time))
        return found

    def _judged(self, outputs: Sequence[Output]) -> Sequence[Output]:
        if not outputs:
            return outputs
        judged = (self._tuning.judged(o) if isinstance(o, Suspicion) else o for o in outputs)
        return [output for output in judged if output is not None]


def node_stage(tuning: Tuning) -> Stage:
    """Return the node stage; its settings differ by cluster only, as a node outlives its jobs."""

    @lru_cache(REMEMBERED)
    def config_at(cluster: str) -> NodeConfig:
        configs = tuning.configs(cluster)
        # Much of the stage's time goes into level changes: what nobody will hear of is not looked for, or
        # told.
        return replace(
            configs.node,
            level_changes=configs.node.level_changes
            and not tuning.silent("level_changes", cluster, rules="change."),
            readings=configs.gray is not None and not tuning.silent("gray", cluster, rules="gray."),
        )

    def make(config: NodeConfig) -> Stage:
        return Gathered(NodeStage(config))

    return Tuned(tuning, config_of=lambda record: config_at(record.cluster), make=make)


def job_stage(
    tuning: Tuning, *, name: str = "job-steps", memory_bytes: int = DEFAULT_MEMORY_BYTES
) -> "Tuned[JobStageConfig]":
    """Return the job stage; ``memory_bytes`` bounds the jobs of each distinct setting."""

    def config_of(record: Record) -> Any:
        return tuning.configs(record.cluster, record.job_id).job if isinstance(record, JobSteps) else None

    make = partial(JobStage, name=name, memory_bytes=memory_bytes)
    return Tuned(tuning, config_of=config_of, make=make)


def job_memory(stage: Stage) -> JobMemory:
    """Return what the jobs of a stage take; nothing for a stage without jobs."""
    stages = stage.stages if isinstance(stage, Tuned) else (stage,)
    return sum((s.memory for s in stages if isinstance(s, JobStage)), start=JobMemory())


def finding_stage(tuning: Tuning) -> Stage:
    """Return the finding stage; its settings differ by cluster only, as a cause may cost several jobs."""
    findings = Tuned(tuning, config_of=lambda s: tuning.finding(s.cluster), make=FindingStage)
    return GrayNodes(findings, tuning)
