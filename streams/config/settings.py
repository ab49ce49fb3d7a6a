"""The modes of the detectors and the settings of the stages, by cluster and job.

Pure: ``toml_file`` reads the tables, ``stages`` builds the stages. A table for jobs takes precedence over one
for clusters, and that over the one for all; within one kind a full name over a pattern, a longer pattern over
a shorter.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any, Literal

import msgspec

from alerts.config import FindingConfig
from detectors.node.gray_envelope import Envelope
from slowrank.telemetry import LinkDelay, LoadedMinute, NodeAnnounced, StartupPhase, Suspicion
from streams.job.config import JobStageConfig
from streams.node.config import NodeConfig
from streams.stage import Output

Mode = Literal["on", "shadow", "off"]

# Cached clusters and jobs. Chosen: their names come from telemetry, and memory must be bounded.
REMEMBERED = 4096


@dataclass(frozen=True, slots=True)
class Configs:
    """The settings of the three stages, and the healthy region with which nodes are compared, if any."""

    job: JobStageConfig = field(default_factory=JobStageConfig)
    node: NodeConfig = field(default_factory=NodeConfig)
    finding: FindingConfig = field(default_factory=FindingConfig)
    gray: Envelope | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One table: its clusters and jobs (patterns; None: any), the modes by detector or rule, and the
    settings.

    ``knobs`` is a tree along the fields of ``Configs``; ``where`` is the name of the table in its file.
    """

    where: str
    cluster: str | None = None
    job: str | None = None
    modes: Mapping[str, Mode] = field(default_factory=dict)
    knobs: Mapping[str, Any] = field(default_factory=dict)

    def applies(self, cluster: str, job: str | None) -> bool:
        """Return whether the table applies to a job of a cluster, or with None to the cluster."""
        if self.cluster is not None and not fnmatchcase(cluster, self.cluster):
            return False
        return self.job is None or (job is not None and fnmatchcase(job, self.job))

    @property
    def precedence(self) -> tuple[bool, bool, bool, int]:
        """Sort key: the greater takes precedence."""
        pattern = self.job or self.cluster or ""
        return self.job is not None, self.cluster is not None, not is_pattern(pattern), len(pattern)


class Tuning:
    """Layers of settings over the defaults."""

    def __init__(self, layers: Sequence[Layer] = (), base: Configs | None = None) -> None:
        self.base = base or Configs()
        # Lowest precedence first: settings are merged in this order, modes are looked up in reverse.
        self.layers = tuple(sorted(layers, key=lambda layer: layer.precedence))
        self._for = lru_cache(REMEMBERED)(self._matching)
        self._configs = lru_cache(REMEMBERED)(self._applied)
        self._has_modes = any(layer.modes for layer in self.layers)

    def configs(self, cluster: str, job: str | None = None) -> Configs:
        """Return the settings for a job, or for a cluster outside of jobs."""
        return self._configs(self._for(cluster, job))

    def finding(self, cluster: str) -> FindingConfig:
        """Return the settings of a cluster's findings, which are the same for all jobs."""
        return self.configs(cluster).finding

    def with_region(self, region: Envelope) -> "Tuning":
        """Return a copy with one healthy region for all clusters."""
        layers = [replace(x, knobs={k: v for k, v in x.knobs.items() if k != "gray"}) for x in self.layers]
        return Tuning(layers, replace(self.base, gray=region))

    def with_runbooks(self, template: str) -> "Tuning":
        """Return a copy with the URL of the runbooks, with ``{kind}`` in it."""
        return Tuning(self.layers, replace(self.base, finding=replace(self.base.finding, runbooks=template)))

    def mode(self, name: str, cluster: str, job: str | None = None, *, rule: str = "") -> tuple[Mode, str]:
        """Return the mode of a detector, or of one of its rules, and the table that sets it ("": none)."""
        for place in reversed(self._for(cluster, job)):
            layer = self.layers[place]
            mode = layer.modes.get(rule) or layer.modes.get(name)
            if mode is not None:
                return mode, layer.where
        return "on", ""

    def silent(self, name: str, cluster: str, *, rules: str) -> bool:
        """Return whether a detector is off in a cluster, whatever the job or the rule (``rules``: prefix)."""
        if self.mode(name, cluster)[0] != "off":
            return False
        applying = [self.layers[i] for i in self._for(cluster, None)]
        exceptions = {mode for layer in self.layers if layer.job is not None for mode in layer.modes}
        exceptions |= {rule for layer in applying for rule in layer.modes if rule.startswith(rules)}
        return not any(mode == name or mode.startswith(rules) for mode in exceptions)

    def judged(self, output: Output) -> Output | None:
        """Return an output under the mode of its detector: itself, marked as one in shadow, or None (off).

        A clear always passes: its suspicion may have been raised under another mode, when the node ran
        another job. Outputs without a detector pass too.
        """
        if not self._has_modes:
            return output
        match output:
            case NodeAnnounced():
                # Without domains the node still counts among those that should report.
                on = self.mode("domains", output.cluster, output.job_id)[0] == "on"
                return output if on else msgspec.structs.replace(output, rack=None, switch=None)
            case Suspicion() if output.state != "clear":
                job, rule = output.subject.job_id, output.rule_id
                mode, _ = self.mode(output.catalogue_id, output.cluster, job, rule=rule)
            case LinkDelay():
                mode, _ = self.mode("pairwise", output.cluster)
            case LoadedMinute():
                mode, _ = self.mode("node_clocks", output.cluster, output.job_id)
            case StartupPhase():
                mode, _ = self.mode("startup", output.cluster, output.job_id)
            case _:
                return output
        if mode == "off":
            return None
        return output if mode == "on" else msgspec.structs.replace(output, shadow=True)

    def _matching(self, cluster: str, job: str | None) -> tuple[int, ...]:
        return tuple(i for i, layer in enumerate(self.layers) if layer.applies(cluster, job))

    def _applied(self, places: tuple[int, ...]) -> Configs:
        return with_knobs(self.base, *(self.layers[i].knobs for i in places))


def is_pattern(name: str) -> bool:
    """Return whether a name is a pattern."""
    return not set("*?[").isdisjoint(name)


def with_knobs(base: Configs, *trees: Mapping[str, Any]) -> Configs:
    """Return the settings with those of the trees in their place; later trees take precedence.

    Raises ``ValueError`` where they contradict each other.
    """
    merged: dict[str, Any] = {}
    for tree in trees:
        _merge(merged, tree)
    configs: Configs = _set(base, merged)
    return configs


def _merge(into: dict[str, Any], tree: Mapping[str, Any]) -> None:
    for name, value in tree.items():
        if isinstance(value, Mapping):
            _merge(into.setdefault(name, {}), value)
        else:
            into[name] = value


def _set(config: Any, tree: Mapping[str, Any]) -> Any:
    if not tree:
        return config
    return replace(
        config,
        **{k: _set(getattr(config, k), v) if isinstance(v, Mapping) else v for k, v in tree.items()},
    )
