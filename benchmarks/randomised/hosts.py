"""Power and utilisation of the GPUs of a job, as a node's exporter reads them; derived from the steps."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from benchmarks.randomised.delivery import CLUSTER, Row, clock_offsets, node_name
from benchmarks.randomised.job import JobPlan
from benchmarks.randomised.layout import Floats
from benchmarks.randomised.ranges import log_uniform
from benchmarks.randomised.timeline import Attempt, Run

MOST_ROWS = 30_000


def host_rows(plan: JobPlan, run: Run, until: float, rng: np.random.Generator) -> Iterator[tuple[float, Row]]:
    """Yield (time of arrival, sample row) of every GPU of the job until ``until``.

    A GPU in a step draws busy power for its compute and spins for the rest, at 100 % utilisation; between
    steps it idles. In a hang the culprit idles and all others spin in the collective that it never joins.
    What a resize leaves out is read on and idles: an exporter reads all GPUs of its node, whosever they are.
    """
    idle, busy = rng.uniform(60, 120), rng.uniform(350, 690)  # idle and training A100/H100 (Kalos quantiles)
    spin = idle + rng.uniform(0.1, 0.4) * (busy - idle)  # assumption: 30-50 % of full power in all
    start = float(run.attempts[0].ends[0])
    # An exporter reads every 1-10 s; large jobs less often, so that the file stays small.
    interval = max(log_uniform(rng, 1, 10), plan.layout.ranks * 2 * (until - start) / MOST_ROWS)
    offsets = clock_offsets(plan, -(-plan.layout.ranks // plan.layout.gpus_per_node))
    for now in np.arange(start, until, interval):
        attempt = _attempt_at(run, float(now))
        work = np.full(plan.layout.ranks, np.nan)
        work[: attempt.layout.ranks] = _working(plan, attempt, float(now), run)
        watts = np.where(np.isnan(work), idle, spin + np.nan_to_num(work) * (busy - spin))
        watts *= 1 + 0.02 * rng.standard_normal(len(watts))
        for rank, power in enumerate(watts):
            node, local = divmod(rank, plan.layout.gpus_per_node)
            row: Row = {
                "kind": "sample",
                "cluster": CLUSTER,
                "node": node_name(plan.job_id, node),
                "ts": round(float(now + offsets[node]), 3),
                "instance": str(local),
            }
            if node <= attempt.where.node[-1]:
                row["job_id"] = plan.job_id
            arrival = float(now) + 0.1
            yield arrival, row | {"metric": "gpu.power_watts", "value": round(float(power), 1)}
            used = 0.0 if np.isnan(work[rank]) else 1.0
            yield arrival, row | {"metric": "gpu.utilization_ratio", "value": used}


def _attempt_at(run: Run, now: float) -> Attempt:
    return next((a for a in run.attempts if now <= a.ends[-1]), run.attempts[-1])


def _working(plan: JobPlan, attempt: Attempt, now: float, run: Run) -> Floats:
    """Return the share of time that each rank computes around ``now``; NaN where its GPU idles."""
    step = int(np.searchsorted(attempt.ends, now))
    ranks = attempt.layout.ranks
    hangs = plan.fault.kind == "hang" and attempt is run.attempts[-1]
    if hangs and step >= len(attempt.ends) - 1:
        share = np.zeros(ranks)
        share[plan.fault.culprit] = np.nan
        return share
    step = min(step, len(attempt.ends) - 1)
    if now < attempt.ends[step] - attempt.steps.total[step]:
        return np.full(ranks, np.nan)
    working: Floats = attempt.steps.compute[step] / attempt.steps.total[step]
    return working
