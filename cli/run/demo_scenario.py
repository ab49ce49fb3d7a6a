"""What the demo injects, drawn from its seed, and how its findings are judged against that."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from simulator import Cluster, ClusterSpec, Fault, Truth
from simulator.layout import one_job

NODES, GPUS, NICS = 16, 8, 2
CLUSTER = "sim"
FAULTS = ("thermal_throttle", "clock_lock", "silent_slow", "host_contention")
# The change detectors learn a series for 80 s before they trust its level.
ONSET_SECONDS = (90.0, 115.0)
# Simulated seconds: until the demo gives up, and after the right finding, for wrong ones to show.
PATIENCE_SECONDS = 60.0
SETTLE_SECONDS = 20.0

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What ``--json`` holds: whether the culprit was named, and who else was."""

    seed: int
    found: bool
    correct: bool
    seconds_to_finding: float | None
    false_findings: int
    finding: Json | None
    injected: Json

    @property
    def passed(self) -> bool:
        """Whether the right machine was named and no healthy one."""
        return self.found and self.correct and not self.false_findings

    def to_json(self) -> Json:
        """Return the verdict JSON-ready."""
        return asdict(self)


def draw(seed: int, *, start: float) -> Cluster:
    """Return the cluster of ``seed`` with one fault in it: kind, place, onset and size from the seed.

    ``start`` is the Unix time of its first second.
    """
    rng = np.random.default_rng([seed, 16, 8])
    kind = str(rng.choice(FAULTS))
    fault = Fault(
        kind=kind,
        node=int(rng.integers(NODES)),
        gpu=None if kind == "host_contention" else int(rng.integers(GPUS)),
        onset=float(rng.uniform(*ONSET_SECONDS)),
        magnitude=float(rng.uniform(1.12, 1.45)),
        shape="ramp" if kind == "thermal_throttle" else "step",
        period=float(rng.uniform(3.0, 12.0)),
    )
    spec = ClusterSpec(
        nodes=NODES, gpus=GPUS, nics=NICS, name=CLUSTER, start=start, jobs=(one_job(NODES, GPUS),)
    )
    return Cluster(spec, seed=seed, faults=[fault])


def names_culprit(finding: Json, truth: Truth) -> bool:
    """Return whether a finding names the machine at fault, as one of the kinds that are right about it."""
    subject = finding["subject"]
    place = subject.get("node") == truth.node and subject.get("gpu_index") == truth.gpu_index
    return place and finding["kind"] in truth.verdicts


def accuses_healthy(finding: Json, truth: Truth) -> bool:
    """Return whether a finding names a machine that is well: another node, or another GPU of the node."""
    subject = finding["subject"]
    if subject.get("node") is None:
        return False
    gpu = subject.get("gpu_index")
    well = gpu is not None and truth.gpu_index is not None and gpu != truth.gpu_index
    return subject["node"] != truth.node or well


def judge(seed: int, truth: Truth, findings: Iterable[Json], *, seconds: float | None) -> Verdict:
    """Return the verdict over all findings of the run; ``seconds`` from injection to the right one."""
    told = list(findings)
    right = [f for f in told if names_culprit(f, truth)]
    wrong = [f for f in told if accuses_healthy(f, truth)]
    shown = next(iter(right or told), None)
    return Verdict(
        seed=seed,
        found=bool(told),
        correct=bool(right),
        seconds_to_finding=seconds,
        false_findings=len(wrong),
        finding=shown,
        injected=truth.to_json(),
    )
