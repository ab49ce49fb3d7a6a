"""A scenario of the evaluation, and what it says went wrong in the form in which alarms are matched."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.quality_matching import Event
from simulator import ClusterSpec, Fault, Truth
from simulator.truth import planned_truths

TUNING_SEEDS = range(1000)
REPORT_SEEDS = range(1000, 2000)
"""Knobs and thresholds are chosen on tuning seeds or beyond both, figures reported from report seeds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One run. ``rows`` names per fault the line of the table it counts in, ``row`` that of all the rest.

    ``expected`` is by job what would be right to say of it, ``benign`` which benign row it stands for where
    all rows are on; ``compared`` tells whether baselines watch too.
    """

    part: str
    row: str
    seed: int
    spec: ClusterSpec
    seconds: float
    faults: tuple[Fault, ...] = ()
    rows: tuple[str, ...] = ()
    expected: dict[str, tuple[str, ...]] = field(default_factory=dict)
    compared: bool = True
    benign: dict[str, str] = field(default_factory=dict)


CAUSES: dict[str, tuple[str, ...]] = {
    "thermal_throttle": ("throttle.thermal",),
    "power_brake": ("throttle.power",),
    "clock_lock": ("clock.low",),
}
"""The right hypothesis where kinds that are right about a fault do not all explain it."""

_SYMPTOMS = ("straggler.", "hang.")


def scenario(
    part: str,
    seed: int,
    spec: ClusterSpec,
    faults: Sequence[Fault],
    *,
    rows: Sequence[str],
    seconds: float,
    compared: bool = True,
) -> Scenario:
    """Return a scenario whose ``expected`` follows from what the jobs do although all is well."""
    expected: dict[str, tuple[str, ...]] = {}
    for truth in planned_truths(spec):
        job = truth.job_id or ""
        right = truth.verdicts if truth.cause == "planned" else truth.hypotheses
        expected[job] = (*expected.get(job, ()), *right)
    return Scenario(
        part=part,
        row=part,
        seed=seed,
        spec=spec,
        seconds=seconds,
        faults=tuple(faults),
        rows=tuple(rows),
        expected=expected,
        compared=compared,
    )


def events_of(scenario: Scenario, truths: Sequence[Truth]) -> tuple[Event, ...]:
    """Return the truths of a run in the form they are matched in."""
    steps = {job.job_id: job.step_seconds for job in scenario.spec.jobs}
    # Of a node without a job nothing is known between two of its samples.
    without = max(1.0, scenario.spec.send_seconds)
    return tuple(
        Event(
            row=row,
            fault=truth.kind,
            nodes=truth.nodes,
            gpu=truth.gpu_index,
            job_id=truth.job_id,
            onset=truth.onset,
            end=truth.end,
            step_seconds=steps.get(truth.job_id or "", without),
            magnitude=truth.magnitude,
            verdicts=truth.verdicts,
            causes=CAUSES.get(truth.kind, truth.hypotheses) or _explaining(truth.verdicts),
            machine=truth.machine,
        )
        for row, truth in zip(scenario.rows, truths, strict=True)
    )


def domains_of(spec: ClusterSpec) -> dict[str, tuple[str, ...]]:
    """Return the nodes of every rack and switch, by its name."""
    members: dict[str, tuple[str, ...]] = {}
    for node in range(spec.nodes):
        labels = spec.labels(node)
        for name in (labels["rack"], labels["switch"]):
            members[name] = (*members.get(name, ()), spec.node_name(node))
    return members


def _explaining(verdicts: tuple[str, ...]) -> tuple[str, ...]:
    """Return the verdicts that say why, or all where none does: a silent slow GPU has no other name."""
    causes = tuple(verdict for verdict in verdicts if not verdict.startswith(_SYMPTOMS))
    return causes or verdicts
