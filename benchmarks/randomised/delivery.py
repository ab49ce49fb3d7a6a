"""From what ranks measure to the rows that arrive: columns, labels, clocks, rows lost, late or repeated."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from benchmarks.randomised.layout import MODELS, Floats, Layout, coords_of, slower_class
from benchmarks.randomised.ranges import chance, log_uniform, pick

if TYPE_CHECKING:
    from benchmarks.randomised.job import JobPlan
    from benchmarks.randomised.timeline import Attempt, Run

CLUSTER = "drawn"

Columns = Literal["full", "no_wait", "no_data", "compute_wait", "compute_only", "step_only"]
Row = dict[str, Any]

PRESENT: dict[Columns, tuple[str, ...]] = {
    "full": ("compute_seconds", "wait_seconds", "comm_seconds", "data_seconds"),
    # A collective's kernel runs while it waits: transfer and wait in one figure (nccl profilers, xpu_timer).
    "no_wait": ("compute_seconds", "comm_seconds", "data_seconds"),
    "no_data": ("compute_seconds", "wait_seconds", "comm_seconds"),
    "compute_wait": ("compute_seconds", "wait_seconds"),
    "compute_only": ("compute_seconds",),
    "step_only": (),
}


@dataclass(frozen=True, slots=True)
class Delivery:
    """Which columns a job sends, and what happens to its rows. All ranges are assumptions.

    Every ``older_every``-th node runs an older hook without ``older_lacks``. ``outages`` are
    (node, share of the run, seconds) of rows that never come.
    """

    columns: Columns
    older_every: int
    older_lacks: str
    coords: bool
    world_size: bool
    measure_cv: float
    lost: float
    outages: tuple[tuple[int, float, float], ...]
    flush_seconds: float
    late: float
    late_seconds: float
    repeated: float
    skew_sd: float
    skewed_node: int
    skew_seconds: float


def draw_delivery(rng: np.random.Generator, layout: Layout) -> Delivery:
    """Draw how the rows of a job of ``layout`` are sent and carried."""
    nodes = -(-layout.ranks // layout.gpus_per_node)
    columns: Columns = pick(rng, tuple(PRESENT), (0.45, 0.15, 0.1, 0.05, 0.17, 0.08))
    gone = int(rng.integers(1, 4)) if chance(rng, 0.2) else 0
    return Delivery(
        columns=columns,
        older_every=int(rng.integers(3, 12)) if chance(rng, 0.2) else 0,
        older_lacks=pick(rng, ("compute_seconds", "wait_seconds", "comm_seconds", "data_seconds", "tokens")),
        coords=chance(rng, 0.75),
        world_size=chance(rng, 0.7),
        measure_cv=log_uniform(rng, 0.0002, 0.003),
        lost=log_uniform(rng, 1e-4, 1e-2) if chance(rng, 0.5) else 0.0,
        outages=tuple(
            (int(rng.integers(nodes)), rng.uniform(0, 1), log_uniform(rng, 5, 60)) for _ in range(gone)
        ),
        flush_seconds=log_uniform(rng, 0.2, 10),
        late=log_uniform(rng, 1e-4, 2e-2) if chance(rng, 0.5) else 0.0,
        late_seconds=log_uniform(rng, 1, 60),
        repeated=log_uniform(rng, 1e-4, 2e-2) if chance(rng, 0.4) else 0.0,
        skew_sd=log_uniform(rng, 1e-4, 0.5),
        skewed_node=int(rng.integers(nodes)) if chance(rng, 0.08) else -1,
        skew_seconds=log_uniform(rng, 1, 45) * pick(rng, (-1, 1)),
    )


def node_name(job_id: str, node: int) -> str:
    """Return the host name of a node."""
    return f"{job_id}-n{node:03d}"


def clock_offsets(plan: JobPlan, nodes: int) -> Floats:
    """Return by how many seconds the clock of each node is ahead."""
    offsets = plan.delivery.skew_sd * np.random.default_rng([plan.seed, nodes]).standard_normal(nodes)
    if 0 <= plan.delivery.skewed_node < nodes:
        offsets[plan.delivery.skewed_node] += plan.delivery.skew_seconds
    return offsets


def has_column(plan: JobPlan, node: int, column: str) -> bool:
    """Return whether ranks of ``node`` send ``column``."""
    how = plan.delivery
    if how.older_every and node % how.older_every == 0 and how.older_lacks == column:
        return False
    always = column in ("step_seconds", "checkpoint_seconds", "tokens", "seq_len_sq_sum")
    return always or column in PRESENT[how.columns]


def step_rows(plan: JobPlan, run: Run, rng: np.random.Generator) -> Iterator[tuple[float, Row]]:
    """Yield (time of arrival, row) of all rows that arrive, in no order."""
    how = plan.delivery
    first = run.attempts[0].ends[0]
    outages = [(node, first + share * (run.ended_at - first), lasts) for node, share, lasts in how.outages]
    offsets = clock_offsets(plan, -(-plan.layout.ranks // plan.layout.gpus_per_node))
    for attempt in run.attempts:
        values = _measured(plan, attempt, rng)
        shape = (len(attempt.positions), attempt.layout.ranks)
        kept = rng.random(shape) >= how.lost
        late = np.where(rng.random(shape) < how.late, how.late_seconds * rng.exponential(1, shape), 0.0)
        again = rng.random(shape) < how.repeated
        kept &= _made(plan, attempt)
        for rank in range(attempt.layout.ranks):
            node = int(attempt.where.node[rank])
            head = _head(plan, attempt, rank)
            present = [name for name in values if has_column(plan, node, name)]
            lost = [(begin, begin + lasts) for where, begin, lasts in outages if where == node]
            phase = (node * 0.618) % 1
            for i in np.flatnonzero(kept[:, rank]):
                end = float(attempt.ends[i])
                if any(begin <= end < until for begin, until in lost):
                    continue
                row = head | {"step": int(attempt.step[i]), "ts": round(end + offsets[node], 4)}
                row |= {name: float(f"{values[name][i, rank]:.6g}") for name in present}
                flushed = (np.floor(end / how.flush_seconds + phase) + 1 - phase) * how.flush_seconds
                arrival = float(flushed + late[i, rank])
                yield arrival, row
                if again[i, rank]:
                    yield arrival + how.flush_seconds, row


def _made(plan: JobPlan, attempt: Attempt) -> np.ndarray:
    """Return which rows [steps, ranks] the ranks made at all: a hang or a lost rank makes no more."""
    made = np.ones((len(attempt.positions), attempt.layout.ranks), bool)
    fault = plan.fault
    if fault.kind == "lost_rank":
        made[(attempt.positions >= fault.onset) & (attempt.positions < fault.end), fault.culprit] = False
    elif fault.kind == "hang":
        last = attempt.positions >= fault.onset
        made[last, fault.culprit] = False
        if not fault.reports_before:
            made[last] = False
    return made


def _measured(plan: JobPlan, attempt: Attempt, rng: np.random.Generator) -> dict[str, Floats]:
    """Return the columns [steps, ranks] as the ranks would send them, each with an error of measurement."""
    steps, shape = attempt.steps, attempt.steps.compute.shape
    whole = (steps.total + attempt.checkpoint + attempt.inside)[:, None]
    columns = {"step_seconds": np.broadcast_to(whole, shape)}
    names = PRESENT[plan.delivery.columns]
    comm = steps.comm if "wait_seconds" in names else steps.comm + steps.wait
    spans = {
        "compute_seconds": steps.compute,
        "wait_seconds": steps.wait,
        "comm_seconds": comm,
        "data_seconds": steps.data,
    }
    columns |= {name: spans[name] for name in names}
    sent = {
        name: span * (1 + plan.delivery.measure_cv * rng.standard_normal(shape))
        for name, span in columns.items()
    }
    # All ranks end a step together but for the jitter of their processes.
    sent["step_seconds"] = np.maximum(
        sent["step_seconds"], sum(sent[name] for name in names) if names else 0.0
    )
    if attempt.checkpoint.any():
        sent["checkpoint_seconds"] = np.broadcast_to(attempt.checkpoint[:, None], shape)
    counts = plan.workload.counts
    replica = attempt.where.d
    if counts in ("both", "tokens"):
        sent["tokens"] = attempt.amounts.tokens[:, replica]
    if counts in ("both", "squares"):
        sent["seq_len_sq_sum"] = attempt.amounts.squares[:, replica]
    return sent


def _head(plan: JobPlan, attempt: Attempt, rank: int) -> Row:
    """Return the fields that all rows of a rank share."""
    where = attempt.where
    node, local = int(where.node[rank]), int(where.local[rank])
    row: Row = {
        "kind": "step",
        "cluster": CLUSTER,
        "job_id": plan.job_id,
        "attempt": attempt.number,
        "node": node_name(plan.job_id, node),
        "rank": rank,
        "local_rank": local,
        "gpu_index": local,
    }
    if plan.delivery.coords:
        row["coords"] = coords_of(attempt.layout, where, rank)
    if plan.delivery.world_size:
        row["world_size"] = attempt.layout.ranks
    if plan.machines and plan.machines.label_known:
        slow = bool(slower_class(plan.machines, where.node[rank : rank + 1])[0])
        row["labels"] = {"gpu_model": MODELS[int(slow)]}
    return row
