"""The file of one draw: all rows in their order of arrival, as NDJSON, and the truth about them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np

from benchmarks.randomised.delivery import CLUSTER, Row, node_name, step_rows
from benchmarks.randomised.faults import Kind
from benchmarks.randomised.hosts import host_rows
from benchmarks.randomised.job import MOST_RANKS, JobPlan, draw_companion, draw_job
from benchmarks.randomised.timeline import Run, simulate
from benchmarks.randomised.truth import Truth, truth_of

# How long nodes and other jobs send rows after the job's end event.
GOES_ON_SECONDS = 300.0


def write_job(seed: int, path: Path, *, most_ranks: int = MOST_RANKS, kind: Kind | None = None) -> Truth:
    """Write the job of ``seed`` to ``path`` (gzip), and return the truth about it."""
    plan = draw_job(seed, most_ranks=most_ranks, kind=kind)
    run = simulate(plan)
    rows = all_rows(plan, run)
    with gzip.open(path, "wt", compresslevel=1) as file:
        file.writelines(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)
    return truth_of(plan, run)


def all_rows(plan: JobPlan, run: Run) -> list[Row]:
    """Return the rows of the job, of its hosts and of the job beside it, in their order of arrival."""
    rng = np.random.default_rng([plan.seed, 1])
    arrivals = list(step_rows(plan, run, rng))
    arrivals += [(at, _event(plan, at, code)) for at, code in run.announced]
    until = run.ended_at
    if plan.fault.kind == "hang":
        until += plan.fault.silent_seconds
    elif plan.companion:
        arrivals.append((until, _event(plan, until, "job.end")))
        until += GOES_ON_SECONDS
    if plan.hosts:
        arrivals += host_rows(plan, run, until, rng)
    if plan.companion:
        beside = draw_companion(plan.seed, until - float(run.attempts[0].ends[0]))
        others = step_rows(beside, simulate(beside), rng)
        arrivals += [(at, row) for at, row in others if at <= until]
    return [row for _, row in sorted(arrivals, key=lambda arrival: arrival[0])]


def _event(plan: JobPlan, at: float, code: str) -> Row:
    return {
        "kind": "event",
        "ts": round(at, 3),
        "cluster": CLUSTER,
        "node": node_name(plan.job_id, 0),
        "source": "job",
        "code": code,
        "subject": {"job_id": plan.job_id},
    }
