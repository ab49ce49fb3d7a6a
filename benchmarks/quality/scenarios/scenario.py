"""A scenario of the evaluation, and what it says went wrong in the form in which alarms are matched."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from benchmarks.quality.matching import Coords, Event
from simulator import ClusterSpec, Fault, JobSpec, Truth
from simulator.cluster.layout import coords
from simulator.cluster.truth import planned_truths

TUNING_SEEDS = range(1000)
REPORT_SEEDS = range(1000, 2000)
"""Knobs and thresholds are chosen on tuning seeds or beyond both, figures reported from report seeds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One run. ``rows`` names per fault the line of the table it counts in, ``row`` that of all the rest.

    ``expected`` is by job what would be right to say of it, ``benign`` which benign row it stands for where
    all rows are on; ``compared`` tells whether baselines watch too. Faults in a row of ``as_one`` have one
    cause together, as the nodes of a rack. With ``steps_alone`` nothing but the step rows is to be seen.
    Columns in ``without`` are missing in every sample, which only our own detectors see then.
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
    as_one: tuple[str, ...] = ()
    steps_alone: bool = False
    without: tuple[str, ...] = ()


CAUSES: dict[str, tuple[str, ...]] = {
    "thermal_throttle": ("throttle.thermal",),
    "power_brake": ("throttle.power",),
    "clock_lock": ("clock.low",),
}
"""The right hypothesis where kinds that are right about a fault do not all explain it."""

_SYMPTOMS = ("straggler.", "hang.")


def job_of(
    rng: np.random.Generator,
    number: int,
    layouts: Sequence[tuple[int, int, int]],
    *,
    first_node: int,
    shortest: float,
) -> JobSpec:
    """Draw a fixed-length job in one of ``layouts`` (dp, pp, tp).

    Its steps take about a second, half of them 0.7 to 1.5 s, and ``shortest`` to 4 seconds at the extremes.
    """
    dp, pp, tp = layouts[int(rng.integers(len(layouts)))]
    return JobSpec(
        dp=dp,
        pp=pp,
        tp=tp,
        job_id=f"job-{number}",
        first_node=first_node,
        step_seconds=float(np.clip(rng.lognormal(0.0, 0.6), shortest, 4.0)),
        first_step=int(rng.integers(100, 100_000)),
        micro_batches=int(rng.choice([4, 8, 16])),
    )


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
    told = [
        _event(scenario, row, fault, truth)
        for row, fault, truth in zip(scenario.rows, scenario.faults, truths, strict=True)
    ]
    joint = {row: [event for event in told if event.row == row] for row in scenario.as_one}
    whole = {row: _as_one(some) for row, some in joint.items()}
    # Each row once, where its first fault stood.
    return tuple(
        whole.get(event.row, event)
        for event in told
        if event.row not in joint or event is joint[event.row][0]
    )


def _event(scenario: Scenario, row: str, fault: Fault, truth: Truth) -> Event:
    steps = {job.job_id: job.step_seconds for job in scenario.spec.jobs}
    # Of a node without a job nothing is known between two of its samples.
    without = max(1.0, scenario.spec.send_seconds)
    groups = tuple(_groups(scenario.spec, fault)) if truth.scope == "nic" else ()
    # Which port of a group it is, step times cannot tell.
    group = scenario.steps_alone and bool(groups)
    return Event(
        row=row,
        fault=truth.kind,
        nodes=truth.nodes,
        gpu=truth.gpu_index,
        job_id=truth.job_id,
        onset=truth.onset,
        end=truth.end,
        step_seconds=steps.get(truth.job_id or "", without),
        magnitude=truth.magnitude,
        verdicts=(*truth.verdicts, "straggler.job_wide") if group else truth.verdicts,
        causes=("group",)
        if group
        else CAUSES.get(truth.kind, truth.hypotheses) or _explaining(truth.verdicts),
        machine=truth.machine,
        groups=groups,
    )


def _as_one(events: Sequence[Event]) -> Event:
    nodes = tuple(node for event in events for node in event.nodes)
    # What many nodes of a rack share is what explains them all.
    return replace(events[0], nodes=nodes, causes=("domain", *events[0].causes))


def _groups(spec: ClusterSpec, fault: Fault) -> Iterator[Coords]:
    """Yield what the members share of each data-parallel group that transfers through the port."""
    job = spec.job_at(fault.node, fault.onset)
    if job is None:
        return
    _, stage, shard = coords(job)
    first = (fault.node - spec.nodes_of_job(job).start) * spec.gpus
    behind = [gpu for gpu in range(spec.gpus) if spec.nic_of(gpu) == spec.nic_of(fault.gpu or 0)]
    for pp, tp in sorted({(int(stage[first + gpu]), int(shard[first + gpu])) for gpu in behind}):
        yield ("pp", pp), ("tp", tp)


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
