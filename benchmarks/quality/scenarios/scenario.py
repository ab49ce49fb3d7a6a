"""A scenario of the evaluation, and its injected faults as the events that alarms are matched with."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from benchmarks.quality.scoring.matching import Coords, Event
from simulator import ClusterSpec, Fault, JobSpec, Truth
from simulator.cluster.layout import coords
from simulator.cluster.truth import planned_truths

# Parameters and thresholds are chosen on tuning seeds or seeds above both, figures come from report seeds.
TUNING_SEEDS = range(1000)
REPORT_SEEDS = range(1000, 2000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One run. ``rows`` has the table row of each fault, ``row`` is that of everything else.

    ``expected`` are the right kinds of findings by job, ``benign`` the benign row of each job where all rows
    are on; ``compared``: whether the baselines run too. Faults in a row of ``as_one`` have one common cause,
    such as the nodes of a rack. With ``steps_alone`` the detectors get step rows only. Columns in ``without``
    are missing in every sample; the baselines do not run then.
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


# The right hypothesis of faults for which not all of the right kinds are explanations.
CAUSES: dict[str, tuple[str, ...]] = {
    "thermal_throttle": ("throttle.thermal",),
    "power_brake": ("throttle.power",),
    "clock_lock": ("clock.low",),
}

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
    """Return a scenario whose ``expected`` follows from the planned changes and pauses of its jobs."""
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
    """Return the events of a run, with the faults of a row in ``as_one`` merged."""
    events = [
        _event(scenario, row, fault, truth)
        for row, fault, truth in zip(scenario.rows, scenario.faults, truths, strict=True)
    ]
    joint = {row: [event for event in events if event.row == row] for row in scenario.as_one}
    whole = {row: _as_one(some) for row, some in joint.items()}
    # Each merged row once, in the place of its first fault.
    return tuple(
        whole.get(event.row, event)
        for event in events
        if event.row not in joint or event is joint[event.row][0]
    )


def _event(scenario: Scenario, row: str, fault: Fault, truth: Truth) -> Event:
    steps = {job.job_id: job.step_seconds for job in scenario.spec.jobs}
    # A node without a job cannot be dated more finely than its samples.
    without = max(1.0, scenario.spec.send_seconds)
    groups = tuple(_groups(scenario.spec, fault)) if truth.scope == "nic" else ()
    # Step times show the group, and not which of its ports is slow.
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
    # A common cause is right as well: the rack or switch.
    return replace(events[0], nodes=nodes, causes=("domain", *events[0].causes))


def _groups(spec: ClusterSpec, fault: Fault) -> Iterator[Coords]:
    """Yield the common coordinates of each data-parallel group that transfers through the port."""
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
    """Return the verdicts that are causes and not symptoms, or all of them where none is a cause."""
    causes = tuple(verdict for verdict in verdicts if not verdict.startswith(_SYMPTOMS))
    return causes or verdicts
