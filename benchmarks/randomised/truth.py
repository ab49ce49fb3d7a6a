"""What is true of a drawn job, and whether its rows hold enough to name who is at fault."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.randomised.delivery import clock_offsets, has_column, node_name
from benchmarks.randomised.faults import COMPUTE_KINDS
from benchmarks.randomised.job import JobPlan
from benchmarks.randomised.layout import Floats, Places, coords_of, slower_class
from benchmarks.randomised.timeline import Attempt, Run

Unit = dict[str, Any]

# Chosen: with two peers the median is their mean, so one odd peer shifts the comparison.
LEAST_PEERS = 3

# Same-role ranks differ by 1-2 % for good (ST trace: P99 of healthy ratios 1.2-1.7 %).
LEAST_EFFECT = 0.02

# Steps in force; assumption: less is a disturbance.
LEAST_STEPS = 20

# Shift of the unit's mean over its window, in standard deviations of such means without the fault.
#
# Chosen: P(Z > 6) = 1e-9, so 8e-6 of 8,192 Gaussian ranks exceed it in a step; real noise has heavier tails.
LEAST_SHARPNESS = 6.0

# Steps in force that are counted (chosen): 100 steps take up to 100 minutes; later is of little use.
LONGEST_WINDOW = 100


@dataclass(frozen=True, slots=True)
class Truth:
    """What was drawn. A finding about a unit of ``accepted`` names the fault, of ``partial`` a part.

    ``nameable``: a perfect observer of the rows could distinguish the unit from its peers; else ``why_not``
    gives the reason. ``slowed`` are the members with their tensor-parallel mates,
    ``clock_error`` [s] is the greatest error of a node's clock. ``onset`` is an index into ``step_ends``
    (true times of the ends of all steps).
    """

    seed: int
    job_id: str
    kind: str
    shape: str
    effect: float
    onset: int
    onset_at: float
    culprit: Unit
    members: tuple[int, ...]
    slowed: tuple[int, ...]
    accepted: tuple[Unit, ...]
    partial: tuple[Unit, ...]
    nameable: bool
    why_not: str
    sharpness: float
    benign: tuple[str, ...]
    ranks: int
    rank_steps: int
    columns: str
    clock_error: float
    step_ends: tuple[float, ...]


def truth_of(plan: JobPlan, run: Run) -> Truth:
    """Return the truth about ``run``."""
    fault = plan.fault
    ends = np.concatenate([attempt.ends for attempt in run.attempts])
    first = run.attempts[0]
    onset_at = float(ends[fault.onset - 1]) if fault.onset else float(first.ends[0] - first.steps.total[0])
    accepted, partial = units(plan, run)
    why_not, sharpness = _nameable(plan, run, ends)
    node = -1 if fault.culprit < 0 else int(first.where.node[fault.culprit])
    return Truth(
        plan.seed,
        plan.job_id,
        fault.kind,
        fault.shape if fault.kind != "none" else "",
        round(fault.effect, 4),
        fault.onset,
        round(onset_at, 3),
        {} if node < 0 else {"rank": fault.culprit, "node": node_name(plan.job_id, node)},
        fault.members,
        tuple(sorted(_with_mates(first.where, fault.members))),
        accepted,
        partial,
        not why_not,
        why_not,
        round(sharpness, 2),
        _benign(plan),
        plan.layout.ranks,
        sum(attempt.steps.compute.size for attempt in run.attempts),
        plan.delivery.columns,
        round(float(np.abs(clock_offsets(plan, _nodes(plan))).max()), 3),
        tuple(round(float(end), 3) for end in ends),
    )


def units(plan: JobPlan, run: Run) -> tuple[tuple[Unit, ...], tuple[Unit, ...]]:
    """Return the units whose naming is right, and those that are a part of what is at fault."""
    fault, layout = plan.fault, plan.layout
    if fault.kind == "none":
        return (), ()
    ranks = [unit for rank in fault.members for unit in _rank_units(plan, run.attempts[0].where, rank)]
    groups, nodes = _groups(plan, run), _whole_nodes(plan, run)
    alone = _rank_units(plan, run.attempts[0].where, fault.culprit)
    culprit_node = [
        {"type": "node", "node": node_name(plan.job_id, int(run.attempts[0].where.node[fault.culprit]))}
    ]
    kind = fault.kind if layout.tp > 1 or fault.kind != "slow_group" else "slow_rank"
    if kind == "slow_rank":
        return (*alone, *groups, *nodes), ()
    if kind == "slow_replica":
        return (*_replica(plan, run), *ranks, *groups, *nodes), ()
    if kind == "slow_group":
        return (*groups, *nodes), tuple(ranks)
    if kind in ("slow_node", "slow_data"):
        single = ranks if len(fault.members) == 1 else groups if len(groups) == 1 else []
        return (*culprit_node, *single), (*ranks, *groups)
    if kind == "lost_rank":
        return tuple(alone), ()
    # Step rows have no unit for a ring's link; for a hang, a finding about the job is right.
    return (), (*alone, *culprit_node)


def _nodes(plan: JobPlan) -> int:
    return -(-plan.layout.ranks // plan.layout.gpus_per_node)


def _rank_units(plan: JobPlan, where: Places, rank: int) -> list[Unit]:
    node = node_name(plan.job_id, int(where.node[rank]))
    return [
        {"type": "rank", "rank": rank},
        {"type": "gpu", "node": node, "gpu_index": int(where.local[rank])},
    ]


def _groups(plan: JobPlan, run: Run) -> list[Unit]:
    """Return the tensor-parallel groups that hold members; a resize gives them other coordinates."""
    found: list[Unit] = []
    for attempt in run.attempts if plan.layout.tp > 1 else ():
        for rank in plan.fault.members:
            if rank >= attempt.layout.ranks:
                continue
            coords = coords_of(attempt.layout, attempt.where, rank)
            coords.pop("tp", None)
            node = node_name(plan.job_id, int(attempt.where.node[rank]))
            unit = {"type": "group", "node": node, "coords": coords}
            if unit not in found:
                found.append(unit)
    return found


def _replica(plan: JobPlan, run: Run) -> list[Unit]:
    """Return the replica of the culprit as a whole, also with its machine where it is on one; a resize gives
    it other coordinates."""
    found: list[Unit] = []
    for attempt in run.attempts:
        where, culprit = attempt.where, plan.fault.culprit
        if culprit >= attempt.layout.ranks:
            continue
        coords = coords_of(attempt.layout, where, culprit)
        on = np.unique(where.node[where.d == where.d[culprit]]).tolist()
        machine = [node_name(plan.job_id, on[0])] if len(on) == 1 else []
        found += [
            {"type": "group", "node": node, "coords": {"dp": coords["dp"]}}
            for node in (None, *machine)
            if "dp" in coords
        ]
    return [unit for i, unit in enumerate(found) if unit not in found[:i]]


def _whole_nodes(plan: JobPlan, run: Run) -> list[Unit]:
    """Return the nodes whose ranks are all members or share a tensor-parallel group with one."""
    where = run.attempts[0].where
    slowed = _with_mates(where, plan.fault.members)
    nodes = sorted({int(where.node[rank]) for rank in plan.fault.members})
    whole = [n for n in nodes if all(int(rank) in slowed for rank in np.flatnonzero(where.node == n))]
    return [{"type": "node", "node": node_name(plan.job_id, n)} for n in whole]


def _with_mates(where: Places, members: Iterable[int]) -> set[int]:
    return {int(mate) for rank in members for mate in where.at[where.d[rank], where.p[rank]]}


def _nameable(plan: JobPlan, run: Run, ends: Floats) -> tuple[str, float]:
    """Return why the unit cannot be named (empty if it can), and how far it stands out."""
    fault = plan.fault
    if fault.kind == "none":
        return "no fault", 0.0
    if fault.kind == "slow_ring":
        return "no unit in step rows", 0.0
    if fault.kind == "hang":
        pace = float(np.median(np.concatenate([a.steps.total for a in run.attempts])))
        return ("" if fault.silent_seconds >= 5 * pace else "silence of under five steps"), 0.0
    in_force = np.flatnonzero(run.strength[: len(ends)] > 0.3)[:LONGEST_WINDOW]
    if len(in_force) < LEAST_STEPS:
        return "too few steps", 0.0
    if fault.kind == "lost_rank":
        return "", 0.0
    column = "compute_seconds" if fault.kind in COMPUTE_KINDS else "data_seconds"
    peers = _peers(plan, run.attempts[0], column)
    if not has_column(plan, int(run.attempts[0].where.node[fault.culprit]), column):
        return f"no {column}", 0.0
    if peers < LEAST_PEERS:
        return "too few peers", 0.0
    excess, shift, added = _series(plan, run, column)
    rise = float(np.nanmean(shift[in_force]))
    if float(np.nanmean(added[in_force])) < LEAST_EFFECT:
        return "effect below 2 %", 0.0
    spread = _spread_of_means(excess, len(in_force), fault.onset)
    sharpness = rise / max(spread, 1e-9)
    return ("" if sharpness >= LEAST_SHARPNESS else "within the noise"), sharpness


def _peers(plan: JobPlan, attempt: Attempt, column: str) -> int:
    """Return how many healthy tensor-parallel groups of the culprit's role send ``column``."""
    where, culprit = attempt.where, plan.fault.culprit
    role = _roles(plan, attempt) == _roles(plan, attempt)[culprit]
    slowed = _with_mates(where, plan.fault.members)
    healthy = [
        r
        for r in np.flatnonzero(role)
        if int(r) not in slowed and has_column(plan, int(where.node[r]), column)
    ]
    return len({(int(where.d[r]), int(where.p[r])) for r in healthy})


def _roles(plan: JobPlan, attempt: Attempt) -> np.ndarray:
    """Return a number for each rank: its pipeline stage and class of machine."""
    where = attempt.where
    return where.p * 2 + slower_class(plan.machines, where.node)


def _series(plan: JobPlan, run: Run, column: str) -> tuple[Floats, Floats, Floats]:
    """Return the healthy excess of each rank over its role [steps, ranks of the role], and what the fault
    adds to the culprit [steps]: in the same unit, and relative to its compute or, of data, to the step.

    Compute is in logarithms after taking out what the counts explain, data in seconds.
    """
    role = _roles(plan, run.attempts[0])
    mates = np.flatnonzero(role == role[plan.fault.culprit])
    steps = sum(len(attempt.positions) for attempt in run.attempts)
    excess = np.full((steps, len(mates)), np.nan)
    shift, added, begin = np.zeros(steps), np.zeros(steps), 0
    for attempt in run.attempts:
        rows = slice(begin, begin + len(attempt.positions))
        begin += len(attempt.positions)
        here = mates[mates < attempt.layout.ranks]
        here = here[_roles(plan, attempt)[here] == role[plan.fault.culprit]]
        if column == "compute_seconds":
            explained = np.broadcast_to(attempt.amounts.explained, attempt.healthy.shape)
            value = np.log(attempt.healthy[:, here] / explained[:, here])
            moved = attempt.steps.compute[:, plan.fault.culprit] / attempt.healthy[:, plan.fault.culprit]
            shift[rows], added[rows] = np.log(moved), moved - 1
        else:
            extra = plan.fault.effect * plan.compute_seconds * run.strength[attempt.positions]
            value = attempt.steps.data[:, here].copy()
            value[:, np.isin(here, plan.fault.members)] -= extra[:, None]
            shift[rows], added[rows] = extra, extra / attempt.steps.total
        columns = np.searchsorted(mates, here)
        excess[rows, columns] = value - np.median(value, axis=1, keepdims=True)
    return excess, shift, added


def _spread_of_means(excess: Floats, window: int, onset: int) -> float:
    """Return the standard deviation over ranks and windows of the mean excess, less its past if any."""
    if onset >= LEAST_STEPS:
        past = np.nanmean(excess[:onset], axis=0)
        excess = excess - past
    starts = range(0, max(1, len(excess) - window + 1), max(1, window // 2))
    whole = [part for s in starts for part in excess[s : s + window].T if not np.isnan(part).any()]
    return float(np.sqrt(np.mean(np.mean(whole, axis=1) ** 2))) if whole else np.inf


def _benign(plan: JobPlan) -> tuple[str, ...]:
    """Return the names of the harmless causes of uneven times in the job."""
    load, noise = plan.workload, plan.noise
    present = {
        "stage": plan.layout.pp > 1 and load.last_stage > 1.1,
        "workload": load.batches != "fixed",
        "experts": plan.layout.ep > 1,
        "gpu_models": plan.machines is not None and plan.machines.is_model,
        "power_limits": plan.machines is not None and not plan.machines.is_model,
        "curriculum": bool(load.levels),
        "restart": any(b.attempt for b in plan.breaks),
        "resize": any(b.attempt and b.dp != plan.layout.dp for b in plan.breaks),
        "pause": any(not b.attempt for b in plan.breaks),
        "collection": noise.pause_every > 0,
        "spikes": noise.spike_rate > 0,
    }
    return tuple(name for name, there in present.items() if there)
