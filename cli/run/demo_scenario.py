"""The demo's fault, drawn from its seed, and the evaluation of its findings."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from simulator import Cluster, ClusterSpec, Fault, Truth, Workload
from simulator.cluster.layout import one_job

# A size that a laptop simulates at ten times real time.
NODES, GPUS, NICS = 16, 8, 2
CLUSTER = "sim"
FAULTS = ("thermal_throttle", "clock_lock", "silent_slow", "host_contention")
# After the warm-up and baseline of the change detectors, 80 s.
ONSET_SECONDS = (90.0, 115.0)
# Simulated seconds: timeout after the onset; and how long the run goes on after the right finding, so that
# false findings show. Chosen: the demo ends within a minute at ten times real time.
TIMEOUT_SECONDS = 60.0
SETTLE_SECONDS = 20.0

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class DemoResult:
    """Content of ``--json``: whether the faulty machine was named, and how many healthy ones were."""

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
        """Return a JSON-ready dict."""
        return asdict(self)


def draw(seed: int, *, start: float) -> Cluster:
    """Return the cluster of ``seed`` with one fault: kind, machine, onset and magnitude from the seed.

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
    # A deploy is announced by an event, as docs/records.md asks for; a job that stopped starts again soon.
    job = replace(one_job(NODES, GPUS), restart_seconds=20.0, workload=Workload(announced=True))
    spec = ClusterSpec(
        nodes=NODES,
        gpus=GPUS,
        nics=NICS,
        name=CLUSTER,
        start=start,
        nodes_per_switch=NODES // 2,
        jobs=(job,),
    )
    return Cluster(spec, seed=seed, faults=[fault])


def names_culprit(finding: Json, truth: Truth) -> bool:
    """Return whether a finding names the faulty machine, with one of the expected kinds."""
    subject = finding["subject"]
    same = subject.get("node") == truth.node and subject.get("gpu_index") == truth.gpu_index
    return same and finding["kind"] in truth.verdicts


def accuses_healthy(finding: Json, truth: Truth) -> bool:
    """Return whether a finding names a healthy machine: another node, or another GPU of the node."""
    subject = finding["subject"]
    if subject.get("node") is None:
        return False
    gpu = subject.get("gpu_index")
    other_gpu = gpu is not None and truth.gpu_index is not None and gpu != truth.gpu_index
    return subject["node"] != truth.node or other_gpu


def evaluate(seed: int, truth: Truth, findings: Iterable[Json], *, seconds: float | None) -> DemoResult:
    """Return the result for all findings of the run; ``seconds``: from injection to the right one."""
    shown = list(findings)
    right = [f for f in shown if names_culprit(f, truth)]
    wrong = [f for f in shown if accuses_healthy(f, truth)]
    best = next(iter(right or shown), None)
    return DemoResult(
        seed=seed,
        found=bool(shown),
        correct=bool(right),
        seconds_to_finding=seconds,
        false_findings=len(wrong),
        finding=best,
        injected=truth.to_json(),
    )
